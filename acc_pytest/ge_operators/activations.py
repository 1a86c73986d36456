"""Activation functions, gated ones included."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from .elementwise import unary
from .registry import GeCall, Unrounded, ge_operator

_FAST = 1.702
"""FastGelu: x * sigmoid(1.702 x)."""


def _gelus(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gelu by erf, and by tanh."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), 0.5 * x * (1 + torch.tanh(inner))


@ge_operator("Gelu", "x")
def _gelu(_call: GeCall, x: torch.Tensor) -> Unrounded:
    # Kernels compute it by erf or by tanh; the graph does not say which.
    by_erf, by_tanh = _gelus(x)
    return Unrounded(by_erf, magnitude=x.abs, others=(by_tanh,))


@ge_operator("GeluV2", "x", approximate="none")
def _gelu_v2(call: GeCall, x: torch.Tensor) -> Unrounded:
    form = call.attrs["approximate"]
    call.need(form in ("none", "tanh"), f"approximate={form!r:.100} is not known")
    return Unrounded(_gelus(x)[form == "tanh"], magnitude=x.abs)


@ge_operator("FastGelu FastGeluV2", "x")
def _fast_gelu(_call: GeCall, x: torch.Tensor) -> Unrounded:
    return Unrounded(x * torch.sigmoid(_FAST * x), magnitude=x.abs)


unary("Sigmoid", torch.sigmoid)
unary("Silu", functional.silu)
unary("LogSigmoid", functional.logsigmoid)
unary("Mish", functional.mish)
unary("Relu", torch.relu)
unary("Tanh", torch.tanh)
unary("Softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x)))
unary("HardSwish", functional.hardswish)


@ge_operator("Swish", "x", scale=1.0)
def _swish(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(call.attrs["scale"] * x)


@ge_operator("LeakyRelu", "x", negative_slope=0.0)
def _leaky_relu(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return torch.where(x >= 0, x, x * call.attrs["negative_slope"])


@ge_operator("Elu", "x", alpha=1.0, scale=1.0, input_scale=1.0)
def _elu(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    alpha, scale, inner = (call.attrs[name] for name in ("alpha", "scale", "input_scale"))
    return torch.where(x > 0, x, alpha * torch.expm1(x * inner)) * torch.tensor(scale)


@ge_operator("SoftplusV2", "x", beta=1.0, threshold=20.0)
def _softplus_v2(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    return functional.softplus(x, call.attrs["beta"], call.attrs["threshold"])


@ge_operator("SwiGlu", "x", dim=-1)
def _swiglu(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    left, right = _halves(call, x)
    return functional.silu(left) * right


@ge_operator("GeGluV2", "x", dim=-1, approximate=1, activate_left=False)
def _geglu(call: GeCall, x: torch.Tensor) -> list[Unrounded]:
    """Outputs are the gated product and the activated half. `approximate` 1 is tanh, 0 erf."""
    left, right = _halves(call, x)
    active, linear = (left, right) if call.attrs["activate_left"] else (right, left)
    call.need(call.attrs["approximate"] in (0, 1), "only approximate 0 and 1 are known")
    gelu = _gelus(active)[call.attrs["approximate"]]
    return [
        Unrounded(gelu * linear, magnitude=lambda: (active * linear).abs()),
        Unrounded(gelu, magnitude=active.abs),
    ]


def _halves(call: GeCall, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    axis = call.axis(call.attrs["dim"], x.ndim)
    call.need(x.shape[axis] % 2 == 0, f"{x.shape[axis]} columns have no halves")
    return torch.chunk(x, 2, axis)
