"""The token ids that a model of ATB was fed, beside those of golden: what its first embedding looks up."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from ..dumps.base import Slot
from ..dumps.modules import ModuleDump, is_of_a_model
from ..errors import AccError
from ..topology.tree import Node
from .dump_step import DumpStep
from .evidence import Evidence
from .fed import fed_kind
from .match import Match
from .roles.export import Export
from .tables import Tables


def token_ids(evidence: Evidence, tables: Tables) -> Iterator[Match]:
    """The match of the ids, where both dumps hold them; nothing where mine is no dump of ATB.

    Ids of another shape are a match too, as long as each side holds one sequence: then the prompts differ in
    length. Batches may be padded on one side and packed on the other, which tells nothing.
    """
    if evidence.mine.dump.kind != "atb" or not is_of_a_model(evidence.golden.dump):
        return
    golden, mine = (_ids(side, tables) for side in (evidence.golden, evidence.mine))
    if golden is None or mine is None:
        return
    match = Match(golden, mine, "roles", "the ids that the first embedding looks up", fed="token ids")
    if not evidence.refusal(match) or _one_sequence(golden, evidence.golden):
        yield match


def _ids(side: DumpStep, tables: Tables) -> Export | None:
    for node in sorted(side.tree.walk(), key=attrgetter("order")):
        if tables.kind_of(node.op_type, node.param) != "embedding" or not node.is_leaf:
            continue
        for slot in side.slots(node):
            if slot.kind == "input" and _kind(side, node, slot) == "token ids":
                return Export(node, slot, "ids")
    return None


def _kind(side: DumpStep, node: Node, slot: Slot) -> str:
    dtype = _header(side, node, slot)[0]
    if isinstance(side.dump, ModuleDump):
        return fed_kind(node, slot, dtype)
    return "token ids" if dtype.startswith("int") else ""


def _one_sequence(export: Export, side: DumpStep) -> bool:
    shape = _header(side, export.node, export.slot)[1]
    return all(size == 1 for size in shape[:-1])


def _header(side: DumpStep, node: Node, slot: Slot) -> tuple[str, tuple[int, ...]]:
    try:
        header = side.slots(node)[slot].header()
    except (AccError, OSError):
        return "", ()
    # Statistics of ids say nothing of them, and are rounded.
    return (header.dtype.name if header.payload == "data" else ""), header.shape
