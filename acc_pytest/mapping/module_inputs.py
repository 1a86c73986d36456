"""Inputs of modules that are compared beside the outputs: those that no module wrote, or that both dumps do
not trace to one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..dumps.base import Dump
from ..dumps.calls import Place
from ..dumps.torch import TorchDump
from .evidence import Evidence
from .match import Match
from .module_flow import module_flow
from .roles.export import Export


@dataclass(frozen=True, slots=True, eq=False)
class ModuleInputs:
    """The matches of inputs, and when each tensor of mine was there; empty for dumps that do not tell."""

    matches: tuple[Match, ...] = ()
    order: Mapping[Place, int] = field(default_factory=dict)

    def when(self, match: Match) -> tuple[int, int]:
        """What sorts matches by time."""
        node = match.mine.node
        return self.order.get(Place(node.path, match.mine.slot), 0), node.order


NONE = ModuleInputs()


def module_inputs(golden: Dump, mine: Dump, evidence: Evidence) -> ModuleInputs:
    """Of one step of two torch dumps with equal names."""
    if not (isinstance(golden, TorchDump) and isinstance(mine, TorchDump)):
        return NONE
    flow = module_flow(golden.calls(evidence.golden.step), mine.calls(evidence.mine.step), lambda _: True)
    ones, others = evidence.golden.tree.by_path, evidence.mine.tree.by_path
    matches = [
        Match(
            Export(ones[place.path], place.slot, "name"),
            Export(others[place.path], place.slot, "name"),
            "name",
            "equal names",
            fed=flow.fed.get(place, ""),
        )
        for place in flow.order
        if place.slot.kind == "input"
    ]
    return ModuleInputs(tuple(matches), flow.order)
