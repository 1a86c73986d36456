"""Operators of GE that compute nothing: their output holds the values of their first input, perhaps moved."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ...topology.ge_graph import GeConstant, GeGraph, GeNode

KEEPING = frozenset({"Cast", "Identity", "TensorMove"})
"""Operators whose output has the shape of their first input too, rounding of a Cast aside."""
SAME_VALUES = KEEPING | {
    *("Reshape", "Flatten", "FlattenV2", "ExpandDims"),
    *("Squeeze", "SqueezeV2", "SqueezeV3", "Unsqueeze", "UnsqueezeV2", "UnsqueezeV3"),
}
"""Operators whose output holds the values of their first input in their order."""
_CODES = {"DT_INT64": "q", "DT_INT32": "i"}


@dataclass(frozen=True, slots=True)
class Move:
    """The effect of an operator on its first input: `keeps` its shape, or not; `order` are the places of the
    dimensions where it turns them round, empty where it does not."""

    keeps: bool
    order: tuple[int, ...] = ()


def move_of(node: GeNode, graph: GeGraph) -> Move | None:
    """The move of values by an operator of the graph; `None` for one that computes, or permutes somehow."""
    if not node.data_inputs:
        return None
    if node.op_type in SAME_VALUES:
        return Move(node.op_type in KEEPING)
    if node.op_type != "Transpose" or len(node.data_inputs) != 2:
        return None
    order = _constant(graph.by_name.get(node.data_inputs[1].producer))
    return Move(False, order) if order and sorted(order) == list(range(len(order))) else None


def composed(first: Sequence[int], then: Sequence[int]) -> tuple[int, ...]:
    """One order for permuting by `first` and then by `then`; empty where that changes nothing."""
    if not first or not then:
        return tuple(first or then)
    order = tuple(first[place] for place in then)
    return () if order == tuple(range(len(order))) else order


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The order that undoes `order`."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _constant(node: GeNode | None) -> tuple[int, ...]:
    """The integers that a Const holds; empty where it is none or does not say them."""
    value = node.attrs.get("value") if node is not None else None
    code = _CODES.get(value.desc.dtype) if isinstance(value, GeConstant) else None
    if not isinstance(value, GeConstant) or code is None:
        return ()
    count = len(value.data) // struct.calcsize(code)
    return struct.unpack(f"<{count}{code}", value.data[: count * struct.calcsize(code)])
