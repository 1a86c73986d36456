"""The dataflow of each step of mine, from its topology or its graph text; equal steps are read once."""

from __future__ import annotations

from collections.abc import Callable

from ...dumps.base import Dump, Step, StepLabel
from ...dumps.fx import FxDump
from ...dumps.ge import GeDump
from ...dumps.torch import TorchDump
from ...errors import AccError
from ..steps import common_steps
from ..tables import Tables
from .nearest import Place
from .steps import Flow

FlowOf = Callable[[StepLabel, str, int | None, frozenset[Place]], Flow | None]
"""Step, graph, rank, and the places that are compared there; `None` where nothing is known."""


def atb_flows(golden: Dump, mine: Dump, tables: Tables) -> FlowOf:
    """The flows of an ATB dump. A pair's step has golden's label."""
    from .atb import atb_flow

    steps: dict[StepLabel, Step] = {one.label: other for one, other in common_steps(golden, mine)}
    known: dict[tuple[int, frozenset[Place]], Flow] = {}

    def flow(step: StepLabel, graph: str, rank: int | None, places: frozenset[Place]) -> Flow | None:
        if step not in steps:
            return None
        tree = steps[step].tree
        key = id(tree), places
        if key not in known:
            known[key] = atb_flow(tree, places, tables)
        return known[key]

    return flow


def torch_flows(golden: TorchDump, mine: TorchDump) -> FlowOf:
    """The flows of two torch dumps, as their first ranks tell. A pair's step has golden's label."""
    from .modules import modules_flow

    steps = {one.label: (one, other) for one, other in common_steps(golden, mine)}

    def flow(step: StepLabel, graph: str, rank: int | None, places: frozenset[Place]) -> Flow | None:
        if step not in steps:
            return None
        one, other = steps[step]
        return modules_flow(golden.calls(one), mine.calls(other), places)

    return flow


def fx_flows(mine: FxDump) -> FlowOf:
    """The flows of an FX dump, rank by rank."""
    from .fx import fx_flow

    steps = {(one.graph, one.label): one for one in mine.steps}
    ranks = {one.index: one for one in mine.ranks}

    def flow(step: StepLabel, graph: str, rank: int | None, places: frozenset[Place]) -> Flow | None:
        there, who = steps.get((graph, step)), mine.ranks[0] if rank is None else ranks.get(rank)
        if there is None or who is None or not mine.has(there, who):
            return None
        return fx_flow(mine, there, who, places)

    return flow


def ge_flows(mine: GeDump) -> FlowOf:
    """The flows of a GE dump, rank by rank."""
    from ..torchair.graph import GraphIndex
    from ..torchair.operators import operators
    from .ge import ge_flow

    steps = {(one.graph, one.label): one for one in mine.steps}
    ranks = {one.index: one for one in mine.ranks}
    indexes: dict[int, GraphIndex] = {}

    def flow(step: StepLabel, graph: str, rank: int | None, places: frozenset[Place]) -> Flow | None:
        there, who = steps.get((graph, step)), mine.ranks[0] if rank is None else ranks.get(rank)
        if there is None or who is None or not mine.has(there, who):
            return None
        try:
            text = mine.graph(there, who)
        except AccError:
            return None
        if text is None:
            return None
        index = indexes.get(id(text))
        if index is None:
            index = indexes[id(text)] = GraphIndex(text)
        return ge_flow(index, operators(mine, there, who, index), places)

    return flow
