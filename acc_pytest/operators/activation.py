"""ActivationOperation: the nonlinear functions and SwiGLU, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .param import choice, integer, number
from .registry import As, OperatorCall, Outputs, Tensors, operator

RELU, GELU, FAST_GELU, SWISH, LOG, SWIGLU, SWIGLU_BACKWARD, SIGMOID, FASTER_GELU = range(1, 10)
ACTIVATION = {
    "activationType": choice(
        0,
        "relu",
        "gelu",
        "fast gelu",
        "swish",
        "log",
        "swiglu",
        "swiglu backward",
        "sigmoid",
        "faster gelu",
        start=1,
        extra={0: "undefined"},
    ),
    "scale": number(1.0),
    "dim": integer(-1),
    "geluMode": choice(0, "tanh approximation", "exact"),
}


@operator(
    "ActivationOperation",
    ACTIVATION,
    lambda param: ("dy", "x") if param["activationType"] == SWIGLU_BACKWARD else ("x",),
)
def activation(call: OperatorCall, t: Tensors) -> Outputs:
    """One nonlinearity of `x`; SwiGLU halves the dimension `dim`, its backward takes `dy` and `x`."""
    kind = call.param["activationType"]
    call.need(kind != 0, "parameter activationType is missing")
    x = call.wide(t["x"])
    if kind in (SWIGLU, SWIGLU_BACKWARD):
        dim = call.param["dim"]
        call.need(-x.ndim <= dim < x.ndim, f"x has no dimension {dim}")
        call.need(x.shape[dim] % 2 == 0, f"dimension {dim} of x has odd size {x.shape[dim]}")
        gate, up = x.chunk(2, dim)
        if kind == SWIGLU:
            return [As(F.silu(gate) * up, t["x"].dtype)]
        call.need(t["dy"].shape == gate.shape, f"dy {list(t['dy'].shape)} is not half of x {list(x.shape)}")
        dy, s = call.wide(t["dy"]), torch.sigmoid(gate)
        slope = s + gate * s * (1 - s)
        return [As(torch.cat((up * dy * slope, dy * gate * s), dim), t["x"].dtype)]
    return [As(_FUNCTIONS[kind](call, x), t["x"].dtype)]


_FUNCTIONS: dict[int, Callable[[OperatorCall, torch.Tensor], torch.Tensor]] = {
    RELU: lambda _, x: F.relu(x),
    GELU: lambda call, x: F.gelu(x, approximate="none" if call.param["geluMode"] else "tanh"),
    FAST_GELU: lambda _, x: x * torch.sigmoid(1.702 * x),
    SWISH: lambda call, x: x * torch.sigmoid(call.param["scale"] * x),
    LOG: lambda _, x: torch.log(x),
    SIGMOID: lambda _, x: torch.sigmoid(x),
    # the kernels write the two differently (exp(0.851 (x - |x|)) keeps exp small), the function is one
    FASTER_GELU: lambda _, x: x * torch.sigmoid(1.702 * x),
}
