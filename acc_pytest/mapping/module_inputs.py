"""Inputs of modules that are compared beside the outputs: those that no module wrote, or that both dumps do
not trace to one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..dumps.base import Dump
from ..dumps.calls import NodeSlot
from ..dumps.modules import ModuleDump
from ..tensors.dtypes import by_name
from .evidence import Evidence
from .match import Match
from .module_flow import ModuleFlow, module_flow
from .roles.export import Export
from .rounded_frequencies import explained_by_frequencies


@dataclass(frozen=True, slots=True, eq=False)
class ModuleInputs:
    """The matches of inputs, when each tensor of mine was there, the coarsest dtype that it was computed
    from, and the error that rounded frequencies explain in it; empty for dumps that do not tell."""

    matches: tuple[Match, ...] = ()
    order: Mapping[NodeSlot, int] = field(default_factory=dict)
    coarsest: Mapping[NodeSlot, str] = field(default_factory=dict)
    frequencies: Mapping[NodeSlot, float] = field(default_factory=dict)

    def when(self, match: Match) -> tuple[int, int]:
        """What sorts matches by time."""
        node = match.mine.node
        return self.order.get(NodeSlot(node.path, match.mine.slot), 0), node.order

    def computed_in(self, match: Match) -> str:
        """See `Pair.computed_in`."""
        return self.coarsest.get(NodeSlot(match.mine.node.path, match.mine.slot), "")

    def rounded_frequencies(self, match: Match) -> float:
        """See `Pair.rounded_frequencies`."""
        return self.frequencies.get(NodeSlot(match.mine.node.path, match.mine.slot), 0.0)


def module_inputs(golden: Dump, mine: Dump, evidence: Evidence) -> ModuleInputs:
    """Of one step of two torch dumps with equal names."""
    if not (isinstance(golden, ModuleDump) and isinstance(mine, ModuleDump)):
        return ModuleInputs()
    golden_calls, mine_calls = golden.calls(evidence.golden.step), mine.calls(evidence.mine.step)
    flow = module_flow(golden_calls, mine_calls, lambda _: True)
    golden_nodes, mine_nodes = evidence.golden.tree.by_path, evidence.mine.tree.by_path
    matches = [
        Match(
            Export(golden_nodes[place.path], place.slot, "name"),
            Export(mine_nodes[place.path], place.slot, "name"),
            "name",
            "equal names",
            fed=flow.fed.get(place, ""),
        )
        for place in flow.order
        if place.slot.kind == "input"
    ]
    coarsest = _coarsest(flow, golden_calls.dtypes, mine_calls.dtypes)
    frequencies = explained_by_frequencies(golden, mine, evidence, flow)
    return ModuleInputs(tuple(matches), flow.order, coarsest, frequencies)


def _coarsest(flow: ModuleFlow, *sides: Mapping[NodeSlot, str]) -> dict[NodeSlot, str]:
    """The float dtype with the largest unit roundoff among a tensor and all that it was computed from."""
    coarsest: dict[NodeSlot, str] = {}
    for place in flow.order:
        names = [
            *(side.get(place, "") for side in sides),
            *(coarsest.get(source, "") for source in flow.above[place]),
        ]
        coarsest[place] = max(names, key=_roundoff)
    return coarsest


def _roundoff(dtype: str) -> float:
    known = by_name(dtype) if dtype else None
    return (known.roundoff or 0.0) if known is not None and known.kind == "float" else 0.0
