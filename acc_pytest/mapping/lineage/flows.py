"""The dataflow of each step of mine, from its topology or its graph text; equal steps are read once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ...dumps.base import Dump, NodeSlot, Rank, Step, StepLabel
from ..module_flow import ModuleFlow, module_flow
from ..pair import Pair
from ..steps import common_steps
from ..tables import Tables
from .parents import Flow, SlotName, Upstream

if TYPE_CHECKING:
    from ...dumps.ge import GeDump
    from ...dumps.modules import Calls
    from ...dumps.torchair import AnyDump

FlowOf = Callable[[StepLabel, str, int | None, frozenset[SlotName]], Flow | None]
"""Step, graph, rank, and the places that are compared there; `None` without a dataflow."""


def atb_flows(golden: Dump, mine: Dump, tables: Tables) -> FlowOf:
    """The flows of an ATB dump. A pair's step has golden's label."""
    from .atb import atb_flow

    trees = {common.label: common.mine.tree for common in common_steps(golden, mine)}
    flow_of = functools.cache(functools.partial(atb_flow, tables=tables))

    def flow(step: StepLabel, graph: str, rank: int | None, places: frozenset[SlotName]) -> Flow | None:
        return flow_of(trees[step], places) if step in trees else None

    return flow


def torch_flows(golden: Dump, mine: Dump, unlike: bool) -> FlowOf:
    """The flows of two torch dumps, as their first ranks tell.

    `unlike` says that pairs join other modules than those of equal names.
    """

    steps = {common.label: (common.golden, common.mine) for common in common_steps(golden, mine)}

    def flow(step: StepLabel, graph: str, rank: int | None, places: frozenset[SlotName]) -> Flow | None:
        if step not in steps:
            return None
        golden_step, mine_step = steps[step]
        return modules_flow(golden.calls(golden_step), mine.calls(mine_step), places, unlike)

    return flow


def fx_flows(dump: Dump) -> FlowOf:
    """The flows of an FX dump, rank by rank."""
    from .fx import fx_flow

    mine = cast("AnyDump", dump)
    run_of = _runs(mine)

    def flow(step: StepLabel, graph: str, rank: int | None, places: frozenset[SlotName]) -> Flow | None:
        run = run_of(step, graph, rank)
        return None if run is None else fx_flow(mine, *run, places)

    return flow


def captured_flows(dump: Dump, pairs: Iterable[Pair]) -> FlowOf:
    """The flows of FX, for tensors of mine that were saved inside of a captured graph: each at the place of
    its partner."""
    from .fx import fx_flow

    golden = cast("AnyDump", dump)
    run_of = _runs(golden)
    ranks = {rank.index for rank in golden.ranks}
    partners: dict[tuple[StepLabel, str, int | None], dict[SlotName, SlotName]] = {}
    for pair in pairs:
        group = partners.setdefault((pair.step, pair.graph, pair.rank), {})
        group[pair.golden.node, pair.golden.slot] = pair.mine.node, pair.mine.slot

    def flow(step: StepLabel, graph: str, rank: int | None, places: frozenset[SlotName]) -> Flow | None:
        run = run_of(step, graph, rank if rank in ranks else None)
        if run is None:
            return None
        mine_of = partners[step, graph, rank]
        golden_flow = fx_flow(golden, *run, mine_of)
        return Flow(
            {
                mine_of[place]: replace(
                    upstream, places={mine_of[source]: crosses for source, crosses in upstream.places.items()}
                )
                for place, upstream in golden_flow.upstream.items()
            },
            frozenset(),
        )

    return flow


def ge_flows(dump: Dump) -> FlowOf:
    """The flows of a GE dump, rank by rank."""
    from ..torchair.graph import GraphIndexes
    from ..torchair.operators import operators
    from .ge import ge_flow

    mine = cast("GeDump", dump)
    run_of, indexes = _runs(mine), GraphIndexes()
    flows: dict[Hashable, Flow] = {}

    def flow(step: StepLabel, graph: str, rank: int | None, places: frozenset[SlotName]) -> Flow | None:
        run = run_of(step, graph, rank)
        index = None if run is None else indexes.of(mine, *run)
        if run is None or index is None:
            return None
        dumped = operators(mine, *run, index)
        key = (id(index), places, tuple(operator.identity for operator in dumped))
        if key not in flows:
            flows[key] = ge_flow(index, dumped, places)
        return flows[key]

    return flow


def _runs(dump: AnyDump) -> Callable[[StepLabel, str, int | None], tuple[Step, Rank] | None]:
    """A function from label, graph and rank number to the step and the rank, if they were dumped."""
    steps = {(step.graph, step.label): step for step in dump.steps}
    ranks = {rank.index: rank for rank in dump.ranks}

    def run(label: StepLabel, graph: str, number: int | None) -> tuple[Step, Rank] | None:
        step, rank = steps.get((graph, label)), dump.ranks[0] if number is None else ranks.get(number)
        return (step, rank) if step is not None and rank is not None and dump.has(step, rank) else None

    return run


# The dataflow of a step of two torch dumps, from the tensors that both saw at the same places.


def modules_flow(golden: Calls, mine: Calls, places: Iterable[SlotName], unlike: bool) -> Flow:
    """The flow above `places`, which are compared. The flow of `unlike` modules is that of mine alone."""
    slot_names = frozenset(places)

    def compared(place: NodeSlot) -> bool:
        return _named(place) in slot_names

    copied = compared if unlike else lambda _: False
    flow = module_flow(mine if unlike else golden, mine, compared, copied)
    upstream = {
        _named(place): Upstream(
            dict.fromkeys(map(_named, sources), False),
            flow.between[place],
            keeps=place in flow.caches,
            unseen=_unseen(place, flow),
        )
        for place, sources in flow.upstream.items()
    }
    return Flow(
        upstream,
        frozenset(_named(place) for place, kind in flow.fed.items() if kind == "token ids"),
        {_named(place): gap for place, gap in flow.gaps.items()},
    )


def _unseen(place: NodeSlot, flow: ModuleFlow) -> tuple[str, ...]:
    """Inputs without a compared place, of the module whose code made the tensor."""
    gap = flow.gaps.get(place)
    if gap is None and place.slot.kind == "input":
        return ()
    unseen = flow.unseen.get(gap.module if gap is not None else place.path, ())
    return (*unseen, flow.earlier[place]) if place in flow.earlier else unseen


def _named(place: NodeSlot) -> SlotName:
    return place.path, str(place.slot)
