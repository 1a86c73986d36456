"""Kinds of inputs of a run (token ids, positions, masks), by the module that reads them, name and dtype."""

from __future__ import annotations

from ..dumps.base import Slot
from ..topology.tree import Node

INPUT_KINDS = ("weight", "buffer", "token ids", "input", "positions", "mask", "cache", "")
"""Kinds of inputs in the order in which they are compared and shown: those that explain most come first."""
BLOCKED = -1e4
"""Largest number that a mask adds to a blocked score: -1e4, the least number of a dtype, or -Inf. Their
exponentials are 0 in every dtype (of float64 below -745), so it does not matter which."""
WEIGHTS = frozenset({"weight", "buffer"})
"""Kinds of inputs that a run gets once; all others come with each step."""
EXACT = WEIGHTS | {"token ids", "positions", "mask"}
"""Kinds that no rounding changes: they agree or differ, and those that agree pass no error on."""


def fed_kind(node: Node, slot: Slot, dtype: str) -> str:
    """The kind of an input that no module wrote; empty where it may be any result.

    `dtype` is that of torch without `torch.`, empty where it is not known.
    """
    name = str(slot.index[-1]) if slot.index else ""
    is_integer = dtype.startswith(("int", "uint", "bool"))
    if slot.kind != "input":
        return ""
    if "mask" in name:
        return "mask"
    if "position" in name and (is_integer or not dtype) and "embed" not in name:
        return "positions"
    if node.op_type == "Embedding" and is_integer:
        return _embedding_kind(node)
    if node.parent is not None:
        return ""
    ids = name.endswith(("ids", "tokens")) and "type" not in name
    return "token ids" if dtype.startswith("int") and (ids or slot.index == (0,)) else "input"


def _embedding_kind(node: Node) -> str:
    last = node.path.rpartition(".")[2].lower()
    if "pos" in last or last == "wpe":
        return "positions"
    return "input" if "type" in last else "token ids"
