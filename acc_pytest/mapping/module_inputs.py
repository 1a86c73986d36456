"""Inputs of modules that are compared beside the outputs: inputs that no module wrote, or that both dumps do
not trace to one place."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..dumps.base import Dump, NodeSlot, Slot
from ..errors import AccError
from ..tensors.dtypes import by_name
from ..tensors.ref import readable
from ..topology.tree import Node
from .dump_step import DumpStep, LayeredTree
from .evidence import Evidence
from .match import Export, Match
from .module_flow import ModuleFlow, module_flow
from .trees import TreeMatcher

if TYPE_CHECKING:
    from ..dumps.modules import Calls


@dataclass(frozen=True, slots=True, eq=False)
class ModuleInputs:
    """The matches of inputs, when each tensor of mine was there, the coarsest dtype that it was computed
    from, and the error that rounded frequencies explain in it; empty for dumps that do not tell. Golden has a
    coarsest dtype of its own where its modules are others."""

    matches: tuple[Match, ...] = ()
    order: Mapping[NodeSlot, int] = field(default_factory=dict)
    coarsest: Mapping[NodeSlot, str] = field(default_factory=dict)
    golden_coarsest: Mapping[NodeSlot, str] = field(default_factory=dict)
    frequencies: Mapping[NodeSlot, float] = field(default_factory=dict)

    def when(self, match: Match) -> tuple[int, int]:
        """The sort key of matches by time."""
        node = match.mine.node
        return self.order.get(NodeSlot(node.path, match.mine.slot), 0), node.order

    def computed_in(self, match: Match) -> str:
        """See `Pair.computed_in`."""
        golden = self.golden_coarsest.get(NodeSlot(match.golden.node.path, match.golden.slot), "")
        mine = self.coarsest.get(NodeSlot(match.mine.node.path, match.mine.slot), "")
        return max(mine, golden, key=_roundoff)

    def rounded_frequencies(self, match: Match) -> float:
        """See `Pair.rounded_frequencies`."""
        return self.frequencies.get(NodeSlot(match.mine.node.path, match.mine.slot), 0.0)


def module_inputs(golden: Dump, mine: Dump, evidence: Evidence) -> ModuleInputs:
    """The inputs of one step of two torch dumps with equal names."""
    if not (golden.has_modules and mine.has_modules):
        return ModuleInputs()
    golden_calls, mine_calls = golden.calls(evidence.golden.step), mine.calls(evidence.mine.step)
    flow = module_flow(golden_calls, mine_calls, lambda _: True)
    golden_nodes, mine_nodes = evidence.golden.tree.by_path, evidence.mine.tree.by_path
    matches = [
        Match(
            Export(golden_nodes[evidence.calls.get(place.path, place.path)], place.slot, "name"),
            Export(mine_nodes[place.path], place.slot, "name"),
            "name",
            "equal names",
            fed=flow.fed.get(place, ""),
        )
        for place in flow.order
        if place.slot.kind == "input" and not _is_before_a_write(mine_nodes[place.path], place.slot)
    ]
    matches = [match for match in matches if _is_same_argument(evidence, match)]
    sides = (golden_calls, evidence.golden), (mine_calls, evidence.mine)
    coarsest = _coarsest(flow, *(_dtypes(*side) for side in sides))
    frequencies = explained_by_frequencies(golden, mine, evidence, flow)
    return ModuleInputs(tuple(matches), _times(mine_calls, flow.order), coarsest, frequencies=frequencies)


def _is_same_argument(evidence: Evidence, match: Match) -> bool:
    """Whether inputs at one place may be one argument: classes of other names may list theirs otherwise."""
    if match.golden.node.op_type == match.mine.node.op_type:
        return True
    sides = (evidence.golden, match.golden), (evidence.mine, match.mine)
    headers = [readable(side.slots(export.node).get(export.slot)) for side, export in sides]
    kinds = {header.dtype.kind == "float" for header in headers if header is not None}
    return len(kinds) < 2 and not evidence.refusal(match)


_WRITES = (
    "setitem",
    "copy",
    "fill",
    "zero",
    "index_put",
    "index_copy",
    "index_fill",
    "scatter",
    "masked_scatter",
)
"""Functions in place that do not read what they write to: it may be memory that nobody wrote to before."""


def _is_before_a_write(node: Node, slot: Slot) -> bool:
    """Whether a tensor is what memory held before a function wrote to it, which is no result."""
    return slot == Slot("input", (0,)) and node.op_type.endswith("_") and node.op_type.strip("_") in _WRITES


def _times(mine: Calls, order: Mapping[NodeSlot, int]) -> dict[NodeSlot, int]:
    """When each tensor of mine was there: by the `order` of those that both dumps have at one place, the
    others after the last of these. What one model returns by name, another may return as it is."""
    times, latest = dict(order), 0
    for call, ends in mine.events:
        for slot in call.outputs if ends else call.inputs:
            place = NodeSlot(call.node.path, slot)
            if place in order:
                latest = max(latest, order[place])
            else:
                times[place] = latest
    return times


def unlike_inputs(golden: Dump, mine: Dump, evidence: Evidence, matcher: TreeMatcher) -> ModuleInputs:
    """The token ids of one step of two torch dumps with unlike modules. All other inputs that are compared
    have a role."""
    if not (golden.has_modules and mine.has_modules):
        return ModuleInputs()
    calls = mine.calls(evidence.mine.step)
    order = {
        NodeSlot(event.call.node.path, slot): number
        for number, event in enumerate(calls.events)
        for slot in (event.call.outputs if event.ends else event.call.inputs)
    }
    ids = [_token_ids(side, tree) for side, tree in _sides(evidence, matcher)]
    golden_ids, mine_ids = ids
    matches: tuple[Match, ...] = ()
    if golden_ids is not None and mine_ids is not None:
        reason = "the ids that the embedding looks up"
        matches = (Match(golden_ids, mine_ids, "roles", reason, fed="token ids"),)
    sides = (golden.calls(evidence.golden.step), evidence.golden), (calls, evidence.mine)
    of_golden, of_mine = (
        _coarsest(module_flow(side_calls, side_calls, lambda _: True), _dtypes(side_calls, side))
        for side_calls, side in sides
    )
    return ModuleInputs(matches, order, of_mine, golden_coarsest=of_golden)


def _sides(evidence: Evidence, matcher: TreeMatcher) -> tuple[tuple[DumpStep, LayeredTree], ...]:
    return (evidence.golden, matcher.golden), (evidence.mine, matcher.mine)


def _token_ids(side: DumpStep, tree: LayeredTree) -> Export | None:
    """The integers that the first embedding is handed."""
    for export in tree.model_exports():
        if export.role == "embed":
            for slot, ref in side.slots(export.node).items():
                header = readable(ref) if slot.kind == "input" else None
                if header is not None and header.dtype.name.startswith(("int", "uint")):
                    return Export(export.node, slot, "ids")
    return None


def _dtypes(calls: Calls, side: DumpStep) -> dict[NodeSlot, str]:
    """The dtype of each tensor, by its header where the calls do not say, as of statistics."""
    dtypes = {}
    for place, dtype in calls.dtypes.items():
        header = None if dtype else readable(side.slots(side.tree.by_path[place.path]).get(place.slot))
        dtypes[place] = header.dtype.name if header is not None else dtype
    return dtypes


def _coarsest(flow: ModuleFlow, *sides: Mapping[NodeSlot, str]) -> dict[NodeSlot, str]:
    """The float dtype with the largest unit roundoff among a tensor and all that it was computed from."""
    coarsest: dict[NodeSlot, str] = {}
    for place in flow.order:
        names = [
            *(side.get(place, "") for side in sides),
            *(coarsest.get(source, "") for source in flow.upstream[place]),
        ]
        coarsest[place] = max(names, key=_roundoff)
    return coarsest


@functools.cache
def _roundoff(dtype: str) -> float:
    dtype_entry = by_name(dtype) if dtype else None
    return (dtype_entry.roundoff or 0.0) if dtype_entry is not None and dtype_entry.kind == "float" else 0.0


_NAMED = "freq"
"""The word in names of buffers of frequencies: `inv_freq`, `original_inv_freq`, `freqs`."""


def explained_by_frequencies(
    golden: Dump, mine: Dump, evidence: Evidence, flow: ModuleFlow
) -> dict[NodeSlot, float]:
    """The relative error that rounded frequencies explain in tables and in caches of keys, of one step."""
    modules = _rounded(golden, mine)
    largest = _largest_position(evidence, flow, modules) if modules else 0
    if not largest:
        return {}
    default = max(modules.values())
    return {
        place: largest * modules.get(place.path, default) / 3
        for place in flow.order
        if (place in flow.caches and (not any("value" in str(index) for index in place.slot.index[1:])))
        or (place.path in modules and place.slot.kind == "output")
    }


def _rounded(golden: Dump, mine: Dump) -> dict[str, float]:
    """rms(f) * u of the modules whose frequencies are golden's, rounded to a coarser dtype."""
    modules: dict[str, float] = {}
    exact = golden.weights(golden.ranks[0])
    for name, saved in mine.weights(mine.ranks[0]).items():
        module, _, last = name.rpartition(".")
        golden_digest = exact[name].digest if name in exact else None
        if saved.kind != "buffer" or _NAMED not in last or saved.digest is None or golden_digest is None:
            continue
        roundoffs = [by_name(digest.dtype).roundoff or 0.0 for digest in (golden_digest, saved.digest)]
        if roundoffs[1] > roundoffs[0] and golden_digest.same_values(saved.digest):
            rms = golden_digest.norm / math.sqrt(max(1, math.prod(golden_digest.shape)))
            modules[module] = max(modules.get(module, 0.0), rms * roundoffs[1])
    return modules


def _largest_position(evidence: Evidence, flow: ModuleFlow, modules: Iterable[str]) -> int:
    """The largest position that golden's modules, or its step, were given; 0 where none was dumped."""
    nodes = evidence.golden.tree.by_path
    places = [place for place, kind in flow.fed.items() if kind == "positions" and place.path in nodes]
    for path in (path for path in modules if path in nodes):
        places += [
            NodeSlot(path, slot) for slot in evidence.golden.slots(nodes[path]) if slot.kind == "input"
        ]
    largest = 0
    for place in places:
        ref = evidence.golden.slots(nodes[place.path]).get(place.slot)
        try:
            if ref is not None and ref.header().numel and ref.header().dtype.format is None:
                largest = max(largest, int(ref.open().max()))
        except AccError:
            continue  # its own pair says what is wrong with it
    return largest
