"""Linear layers of mine beside the projections of golden's weights, whatever the two call them and however
mine shares them out: packed (qkv, gate and up), by columns or by rows over ranks.

The output is looked at as its pair compares it, which is golden's, whole. The input is the same on all ranks,
or a part of it lies on each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ..dumps.torch_outline import Outline
from ..errors import OperatorError
from ..mapping.pair import Operand, Pair
from ..mapping.reconcile import open_pair
from ..tensors.dtypes import by_torch
from ..tensors.source import Source
from .projected import ProjectedLinear, judged_by_projection
from .recomputation import Recomputation

_UNRELATED = 0.5
"""The relative error of tensors that have nothing to do with each other is sqrt(2): rows in another order."""


def layers_of(outline: Outline) -> dict[str, ProjectedLinear]:
    """The linear layers that golden outlines; the weights of mine may have been rounded."""
    return {
        name: ProjectedLinear(
            projection, outline.weights.get(f"{name}.bias"), outline.outputs[name], equal_weights=False
        )
        for name, projection in outline.projections.items()
        if name in outline.outputs
    }


def judged_by_golden(
    pair: Pair, layers: Mapping[str, ProjectedLinear], inputs: Sequence[torch.Tensor], limit: int
) -> Recomputation:
    """Whether the output of a linear layer of mine is what golden's makes of `inputs`, one for each rank.

    Raises `AccError` where that cannot be said.
    """
    layer = layers.get(pair.golden.node)
    if (
        layer is None
        or pair.golden.slot != "output[0]"
        or not is_plain(pair.golden)
        or not is_plain(pair.mine)
    ):
        raise OperatorError("golden's dump does not outline it")
    dtype = pair.mine.refs[0].open().dtype
    if by_torch(dtype).format is None or not all(tensor.is_floating_point() for tensor in inputs):
        raise OperatorError("it is quantised")
    x = _together(inputs, layer.projection.header().shape[0])
    y = whole(open_pair(pair).mine)
    if not layer.outputs or y.numel() % layer.outputs:
        raise OperatorError(f"golden's dump outlines a layer of {layer.outputs} outputs")
    y = y.reshape(-1, layer.outputs)
    recomputed = judged_by_projection(layer, x, y, limit, dtype)
    if recomputed.error is None or recomputed.error > _UNRELATED:
        raise OperatorError("its input has other rows, or another order of columns")
    return recomputed


def is_plain(operand: Operand) -> bool:
    """Whether the rows of a tensor are those of its operator, as floats."""
    return not (
        operand.tokens
        or operand.split
        or operand.experts
        or operand.slots_by
        or operand.scales
        or operand.onward
    )


def whole(source: Source) -> torch.Tensor:
    """All of a source."""
    return source.read(0, math.prod(source.shape)).reshape(source.shape)


def _together(inputs: Sequence[torch.Tensor], features: int) -> torch.Tensor:
    """The input of a layer of so many features: the same on all ranks, or a part of it on each.

    Raises `OperatorError` where ranks have other values of what should be the same.
    """
    rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in inputs]
    if rows[0].shape[-1] != features:
        return torch.cat(rows, -1)
    if not all(torch.equal(rows[0], tensor) for tensor in rows[1:]):
        raise OperatorError("its input is not the same on all ranks")
    return rows[0]
