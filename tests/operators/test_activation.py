from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute

ACTIVATION = "ActivationOperation"
EXACT: dict[str, Any] = {"accumulate": torch.float64, "round_outputs": False}


def fast_gelu(x: torch.Tensor) -> torch.Tensor:
    """As the kernel writes it."""
    return x * torch.exp(0.851 * (x - x.abs())) / (1 + torch.exp(-1.702 * x.abs()))


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (1, F.relu),
        (2, lambda x: F.gelu(x, approximate="tanh")),
        (3, fast_gelu),
        (4, F.silu),
        (8, torch.sigmoid),
        (9, lambda x: x * torch.sigmoid(1.702 * x.abs()) * torch.exp(0.851 * (x - x.abs()))),
    ],
)
def test_functions(kind: int, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.linspace(-8, 8, 101, dtype=torch.float64)
    (out,) = compute(ACTIVATION, {"activationType": kind}, [x], **EXACT)
    torch.testing.assert_close(out, function(x), rtol=1e-12, atol=1e-14)
    (half,) = compute(ACTIVATION, {"activationType": kind}, [x.half()])
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.double(), function(x.half().double()), rtol=2**-10, atol=2**-20)


def test_variants() -> None:
    x = torch.linspace(0.1, 4, 20, dtype=torch.float64)
    (exact,) = compute(ACTIVATION, {"activationType": 2, "geluMode": 1}, [x], **EXACT)
    torch.testing.assert_close(exact, F.gelu(x))
    (scaled,) = compute(ACTIVATION, {"activationType": 4, "scale": 2.0}, [x], **EXACT)
    torch.testing.assert_close(scaled, x * torch.sigmoid(2 * x))
    (log,) = compute(ACTIVATION, {"activationType": 5}, [x], **EXACT)
    torch.testing.assert_close(log, x.log())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_swiglu_and_its_gradient(dim: int) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    gate, up = x.chunk(2, dim)
    y = F.silu(gate) * up
    dy = torch.randn_like(y)
    y.backward(dy)
    (out,) = compute(ACTIVATION, {"activationType": 6, "dim": dim}, [x.detach()], **EXACT)
    torch.testing.assert_close(out, y.detach())
    (dx,) = compute(ACTIVATION, {"activationType": 7, "dim": dim}, [dy, x.detach()], **EXACT)
    torch.testing.assert_close(dx, x.grad)


def test_wrong_shapes() -> None:
    with pytest.raises(OperatorError, match="dimension -1 of x has odd size 3"):
        compute(ACTIVATION, {"activationType": 6}, [torch.ones(2, 3)])
    with pytest.raises(OperatorError, match="x has no dimension 2"):
        compute(ACTIVATION, {"activationType": 6, "dim": 2}, [torch.ones(2, 4)])
    with pytest.raises(OperatorError, match="is not half of x"):
        compute(ACTIVATION, {"activationType": 7}, [torch.ones(2, 3), torch.ones(2, 4)])
    with pytest.raises(OperatorError, match="activationType is missing"):
        compute(ACTIVATION, {}, [torch.ones(2)])
    with pytest.raises(OperatorError, match=r"activationType must be one of 1 .relu.*, got 10"):
        compute(ACTIVATION, {"activationType": 10}, [torch.ones(2)])


@pytest.mark.parametrize(("axes", "first"), [([-1], 2), ([1, 2], 1), ([0], 0), ([-1, -2], 1)])
def test_softmax_over_neighbouring_axes(axes: list[int], first: int) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    (out,) = compute("SoftmaxOperation", {"axes": axes}, [x], **EXACT)
    last = first + len(axes) - 1
    torch.testing.assert_close(out, x.flatten(first, last).softmax(first).reshape(x.shape))


def test_softmax_refuses_axes_apart() -> None:
    for axes in ([0, 2], [], [3]):
        with pytest.raises(OperatorError, match="must name neighbouring axes"):
            compute("SoftmaxOperation", {"axes": axes}, [torch.ones(2, 3, 4)])
