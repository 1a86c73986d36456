"""The shards of a side as one tensor, or as one for each rank that holds the whole."""

from __future__ import annotations

from ..errors import Incomparable, ShapesDiffer
from ..lazy_torch import torch
from ..tensors.read_source import source_of
from ..tensors.source import Source, TensorSource
from ..tensors.views import Columns, ExactSum, PlusRow, Rows, Sum
from .operand_shards import OperandShards
from .partial_sums import with_residual
from .shapes import Merge, Shape, rows_and_width, same_order


def mismatch(golden: OperandShards, mine: OperandShards) -> ShapesDiffer:
    return ShapesDiffer(f"data shape doesn't match: golden {golden.describe()}, mine {mine.describe()}")


def whole_shapes(side: OperandShards, partner: OperandShards) -> list[Shape]:
    """The shapes that the shards of a side could make up, the likeliest first.

    Shards of one shape on both sides are replicas; shards of different shapes are pieces. Of two runs on
    several ranks each, shards that hold other values than their neighbours are pieces, too.
    """
    if side.count == 1 or side.summed:
        return [side.shape]
    rows, width = rows_and_width(side.shape)
    pieces: list[Shape] = [(rows, width * side.count), (rows * side.count, width)]
    if not same_order(side.shape, partner.shape):
        return [*pieces, side.shape]
    return pieces if _are_pieces(side, partner) else [side.shape, *pieces]


def _are_pieces(side: OperandShards, partner: OperandShards) -> bool:
    """Whether the values tell that shards are pieces; `False` for tensors without values."""
    shards = min(side.shards, partner.shards, key=len)
    if len(shards) < 2 or shards[0].device.type == "meta":
        return False
    return not all(torch.equal(shards[0], shard) for shard in shards[1:])


def merged(
    side: OperandShards, target: Shape, golden: OperandShards, mine: OperandShards
) -> tuple[list[Source], str]:
    """The shards of a side as sources of `target`'s order: one, or one per replica."""
    rule = side.rule(target)
    if rule is None:
        raise mismatch(golden, mine)
    sources, note = _joined(side, rule, target)
    if side.residual:
        sources = [with_residual(source, side.residual, place) for place, source in enumerate(sources)]
        return sources, "; ".join(filter(None, (note, "residual added")))
    if not side.bias:
        return sources, note
    stride = rule.replicas if rule.how == "columns" else len(side.bias)
    biases = [torch.cat(side.bias[first::stride], -1) for first in range(rule.replicas)]
    if rule.how == "rows" or biases[0].numel() != rows_and_width(target)[1]:
        raise Incomparable(f"a bias of shape {list(biases[0].shape)} does not fit {side.describe()}")
    added = [PlusRow(source, bias) for source, bias in zip(sources, biases * len(sources))]
    return [*added], "; ".join(filter(None, (note, "bias added")))


def _joined(side: OperandShards, rule: Merge, target: Shape) -> tuple[list[Source], str]:
    shards, note = side.shards, rule.describe(side.count)
    if rule.how == "single":
        return [source_of(shards[0])], note
    if rule.how == "replicated":
        return [TensorSource(shard) for shard in shards], note
    if rule.how == "sum":
        add = ExactSum if side.settled else Sum
        return [add([TensorSource(shard) for shard in shards])], note
    rows, width = rows_and_width(target)
    copies = [shards[first :: rule.replicas] for first in range(rule.replicas)]
    if rule.how == "rows":
        return [Rows([TensorSource(shard) for shard in replica], width) for replica in copies], note
    return [Columns([shard.reshape(rule.rows or rows, -1) for shard in replica]) for replica in copies], note
