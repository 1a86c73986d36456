"""What a run is fed: token ids, positions, masks. Told by where a tensor comes in, its name and its dtype."""

from __future__ import annotations

from ..dumps.base import Slot
from ..topology.tree import Node

ORDER = ("weight", "buffer", "token ids", "input", "positions", "mask", "cache", "")
"""In which order kinds of what a run is fed are compared and shown: what explains most comes first."""
BLOCKED = -1e4
"""What a mask adds to a score that nobody may see is this or less: -1e4, the least number of a dtype, or
-Inf. Their exponentials are 0 in every dtype (of float64 below -745), so it does not matter which."""
WEIGHTS = frozenset({"weight", "buffer"})
"""Kinds of what a run is fed once; all others come with each step."""
EXACT = WEIGHTS | {"token ids", "positions", "mask"}
"""Kinds that no rounding changes: they agree or differ, and no error comes through those that agree."""


def fed_kind(node: Node, slot: Slot, dtype: str) -> str:
    """The kind of an input of a module that no module wrote; empty where it may be any result.

    `dtype` is that of torch without `torch.`, empty where it is not known.
    """
    name = str(slot.index[-1]) if slot.index else ""
    whole = dtype.startswith(("int", "uint", "bool"))
    if slot.kind != "input":
        return ""
    if "mask" in name:
        return "mask"
    if "position" in name and (whole or not dtype) and "embed" not in name:
        return "positions"
    if node.op_type == "Embedding" and whole:
        return _looked_up(node)
    if node.parent is not None:
        return ""
    ids = name.endswith(("ids", "tokens")) and "type" not in name
    return "token ids" if dtype.startswith("int") and (ids or slot.index == (0,)) else "input"


def _looked_up(node: Node) -> str:
    last = node.path.rpartition(".")[2].lower()
    if "pos" in last or last == "wpe":
        return "positions"
    return "input" if "type" in last else "token ids"
