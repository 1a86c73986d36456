"""Int8 results of operators that quantise, read as the numbers they stand for: (q - offset) * scale.

ATB's quantising norms and element-wise operators take scale and offset as their last two inputs.
"""

from __future__ import annotations

from ..dumps.base import Slot
from ..lazy_torch import torch
from ..topology.tree import Node
from .operand_shards import OperandShards
from .pair import Operand

_PER_CHANNEL = 17
"""`elewiseType` of the quantisation with tensors of scales."""


def scale_and_offset(node: Node) -> tuple[Slot, Slot] | None:
    """The inputs that hold them, `None` for a node that does not quantise by tensors."""
    if not _quantises(node) or len(node.inputs) < 3:
        return None
    last = len(node.inputs) - 1
    return Slot("input", (last - 1,)), Slot("input", (last,))


def _quantises(node: Node) -> bool:
    if node.param.get("elewiseType") == _PER_CHANNEL:
        return True
    norm_params = [value for key, value in node.param.items() if key.endswith("ormParam")]
    return any(isinstance(param, dict) and param.get("quantType") for param in norm_params)


def dequantised(side: OperandShards, operand: Operand, opposite: OperandShards) -> OperandShards:
    """`side` in the dtype of its scale where it is int8 and the other side is not; else as it is.

    Costs the memory of the tensor: int8 results are activations of one step.
    """
    kinds = side.shards[0].dtype, opposite.shards[0].dtype
    if kinds[0] != torch.int8 or not kinds[1].is_floating_point or not operand.scales:
        return side
    shards = []
    for shard, (scale_ref, offset_ref) in zip(side.shards, operand.scales):
        scale = scale_ref.open()
        offset = offset_ref.open().float() if offset_ref.header().numel else torch.zeros(1)
        shards.append(((shard.float() - offset) * scale.float()).to(scale.dtype))
    return OperandShards(shards, side.view, side.part_sizes, side.bias)
