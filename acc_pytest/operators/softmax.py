"""SoftmaxOperation over one or several neighbouring axes."""

from __future__ import annotations

from .param import integers
from .registry import As, OperatorCall, Outputs, Tensors, operator


@operator("SoftmaxOperation", {"axes": integers()}, ("x",))
def softmax(call: OperatorCall, t: Tensors) -> Outputs:
    """Softmax of `x` over all `axes` together; they are neighbours and may count from the end."""
    x = t["x"]
    axes = sorted(axis + x.ndim if axis < 0 else axis for axis in call.param["axes"])
    call.need(
        bool(axes) and axes[0] >= 0 and axes[-1] < x.ndim and axes == list(range(axes[0], axes[-1] + 1)),
        f"parameter axes is {list(call.param['axes'])}; it must name neighbouring axes of {list(x.shape)}",
    )
    first, last = axes[0], axes[-1]
    flat = call.wide(x).flatten(first, last).softmax(first)
    return [As(flat.reshape(x.shape), x.dtype)]
