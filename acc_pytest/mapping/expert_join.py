"""Matches of what is inside of experts: all of them in one tensor, or one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..dumps.base import Slot
from ..tensors.ref import readable
from .dumped_roles import choice
from .layered_tree import LayeredTree
from .match import WHOLE, ExpertRule, Match, ViewRule
from .roles.export import Export

_INSIDE = re.compile(r"^(?:expert\.(\d+)|experts)\.(\w+)$")
_HALVES = ("gate", "up")
"""What `mlp_in` packs."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """A tensor inside of experts, which of them (`None` for all), and what it is there."""

    export: Export
    expert: int | None
    part: str


def expert_matches(
    golden: tuple[LayeredTree, Sequence[Export]],
    mine: tuple[LayeredTree, Sequence[Export]],
    fits: Callable[[Match], bool],
) -> Iterator[Match]:
    """Of one layer, where both sides tell the experts of each token."""
    one_chosen, one_router = choice(golden[1])
    other_chosen, other_router = choice(mine[1])
    if one_chosen is None or other_chosen is None:
        return
    sides = [list(_inside(exports)) for _, exports in (golden, mine)]
    indices = tuple(tuple(_indices(tree, exports)) for tree, exports in (golden, mine))
    for one in sides[0]:
        for other in sides[1]:
            rules = _rules(one.part, other.part)
            if rules is None or (None not in (one.expert, other.expert) and one.expert != other.expert):
                continue
            experts = ExpertRule(
                (one_chosen, other_chosen),
                (one_router, other_router),
                (one.expert, other.expert),
                (indices[0], indices[1]),
            )
            number = one.expert if one.expert is not None else other.expert
            tag = one.part if number is None else f"{one.part}{number}"
            reason = f"`{one.part}` of experts, row by row of their tokens"
            match = Match(one.export, other.export, "role", reason, *rules, tag=tag, experts=experts)
            if fits(match):
                yield match


def _inside(exports: Sequence[Export]) -> Iterator[_Inside]:
    made = {export.role for export in exports if export.slot.kind == "output"}
    for export in exports:
        found = _INSIDE.match(export.role)
        copied = export.slot.kind == "input" and export.role in made
        if found and export.form == "plain" and not copied:
            yield _Inside(export, int(found[1]) if found[1] else None, found[2])


def _rules(golden: str, mine: str) -> tuple[ViewRule, ViewRule] | None:
    """How both are read to be one: as they are, or the half that one packs."""
    if golden == mine:
        return WHOLE, WHOLE
    if mine == "mlp_in" and golden in _HALVES:
        return WHOLE, ViewRule("own_columns", _HALVES.index(golden))
    if golden == "mlp_in" and mine in _HALVES:
        return ViewRule("own_columns", _HALVES.index(mine)), WHOLE
    return None


def _indices(tree: LayeredTree, exports: Sequence[Export]) -> Iterator[Export]:
    """Whole numbers in one row, in the module around the experts."""
    around = {export.node.parent for export in exports if export.role.startswith("experts.")}
    around |= {node.parent for node in around if node is not None}
    for node in tree.side.tree.walk():
        if node.parent in around or node in around:
            for slot, ref in tree.side.slots(node).items():
                header = readable(ref)
                if header is not None and len(header.shape) == 1 and header.dtype.name.startswith("int"):
                    yield Export(node, Slot(slot.kind, slot.index), "index")
