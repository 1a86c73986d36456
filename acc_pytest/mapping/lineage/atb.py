"""Operators of an ATB tree as `nearest` wants them, from the tensor names of its topology."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence

from ...base.reason import Reason
from ...dumps.atb import COMMUNICATION
from ...topology.tree import Node, Tree
from ..roles.atb_graph import Dataflow, Value, trace
from ..tables import Tables
from .parents import Flow, FlowOperator, SlotName, nearest

IN_STEP = frozenset({"rope", "cache"})
"""Kinds of operators whose output `i` is made of input `i` and of those after the outputs' own inputs."""


KEEPING = frozenset({"attention", "cache"})
"""Kinds that read or write keys and values of earlier steps."""


def atb_flow(tree: Tree, places: Iterable[SlotName], tables: Tables) -> Flow:
    """Follow the tensor names of `tree`. The result omits places whose node names no tensor."""
    flow = trace(tree)
    kinds = {leaf: tables.kind_of(leaf.op_type, leaf.param) for leaf in flow.leaves}
    compared = set(places)
    places_of: dict[Hashable, list[tuple[int, SlotName]]] = {}
    token_places: set[SlotName] = set()
    for node, value, place in _outputs(flow, compared):
        places_of.setdefault(value, []).append((node.order, place))
        if value.producer is not None and kinds[value.producer] == "embedding":
            token_places.add(place)
    for ordered in places_of.values():
        ordered.sort()
    embeddings = {leaf.path for leaf in flow.leaves if kinds[leaf] == "embedding"}
    arriving = {
        (leaf.path, number): place
        for leaf in flow.leaves
        for number in range(len(flow.inputs[leaf]))
        if (place := (leaf.path, f"input[{number}]")) in compared
    }
    token_places |= {place for (path, _), place in arriving.items() if path in embeddings}
    operations = [*_unwritten(flow), *(_operation(leaf, kinds[leaf], flow) for leaf in flow.leaves)]
    upstream = nearest(operations, places_of, arriving)
    return Flow(upstream, frozenset(token_places))


def _outputs(flow: Dataflow, compared: Container[SlotName]) -> Iterator[tuple[Node, Value, SlotName]]:
    """The values that nodes show, at the places that are `compared`."""
    for node, values in flow.outputs.items():
        for index, value in enumerate(values):
            place = (node.path, f"output[{index}]")
            if place in compared:
                yield node, value, place


def _unwritten(flow: Dataflow) -> Iterator[FlowOperator]:
    """Values that no operator wrote: weights, tables, caches, ids. Each is named as unseen where it is
    read."""
    inputs = {
        value: (leaf, number)
        for leaf in flow.leaves
        for number, value in enumerate(flow.inputs[leaf])
        if value.producer is None
    }
    for value, (leaf, number) in inputs.items():
        name = Reason("input[{}] of {} ({})", number, leaf.name, value.name)
        yield FlowOperator(name, -1, (), (value,), lambda _: (), silent=True, unseen=name)


def _operation(leaf: Node, kind: str, flow: Dataflow) -> FlowOperator:
    reads, writes = flow.inputs[leaf], flow.outputs[leaf]
    stored: Sequence[Value] = writes
    needs: Callable[[int], Iterable[int]] = _all(len(reads))
    if kind == "cache" and not writes:
        # It writes caches that are inputs of the model, and their later readers read the new rows.
        stored = [value for value in reads if value.producer is None]
    elif kind in IN_STEP and len(reads) > len(writes) > 1:
        needs = _index_and_shared(len(reads), len(writes))
    return FlowOperator(
        leaf.path,
        leaf.order,
        reads,
        stored,
        needs,
        crosses=bool(COMMUNICATION.search(leaf.op_type)),
        keeps=kind in KEEPING,
    )


def _all(count: int) -> Callable[[int], Iterable[int]]:
    return lambda _: range(count)


def _index_and_shared(count: int, outputs: int) -> Callable[[int], Iterable[int]]:
    return lambda index: (index, *range(outputs, count))
