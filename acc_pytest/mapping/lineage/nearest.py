"""The nearest compared tensors above each tensor, by the reads and writes of operators.

A tensor that is compared is called a place here: a slot of a node of mine. Operators are walked once in
execution order, so that no chain of operators without a place is too long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SlotName = tuple[str, str]
"""Path of a node of mine, and the slot in words (`output[0]`)."""

MOST_BETWEEN = 128
"""Operators between a place and those above it that are named; the nearest of more. A mixture of experts has
about eight for each of its experts, and golden often has no tensor of them."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowOperator:
    """An operator: its place in execution order, and the values it reads and writes.

    `needs(i)` are the indices in `reads` that output `i` is computed from. `crosses` says that it computes
    from the tensors of all ranks, `keeps` that it reads or writes a state of the next step, `silent` that it
    is never named between two places. `unseen` names the input of the run that it hands on, where that is not
    compared.
    """

    path: str
    order: int
    reads: Sequence[Hashable]
    writes: Sequence[Hashable]
    needs: Callable[[int], Iterable[int]]
    crosses: bool = False
    keeps: bool = False
    silent: bool = False
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The nearest places above a tensor, and whether a sum over ranks lies in between.

    `between` are the operators on the way that are not compared, the nearest first. `keeps` says that one of
    them, or the operator itself, reads or writes a state of the next step. `unseen` are the names of inputs
    that are read there and not compared.
    """

    places: Mapping[SlotName, bool] = field(default_factory=dict)
    between: tuple[str, ...] = ()
    keeps: bool = False
    unseen: tuple[str, ...] = ()


NOTHING = Upstream()


def nearest(
    operations: Iterable[FlowOperator],
    places_of: Mapping[Hashable, Sequence[tuple[int, SlotName]]],
    arriving: Mapping[tuple[str, int], SlotName],
) -> dict[SlotName, Upstream]:
    """The nearest places above every place.

    `operations` come in execution order. `places_of` says at which places a value is compared, each with the
    order of its node, ascending: the operator that wrote it first, then the nodes around it. `arriving`
    are places that are inputs of an operator, by its path and the number of the input.
    """
    by_place: dict[SlotName, Upstream] = {}
    by_value: dict[Hashable, Upstream] = {}
    for operation in operations:
        read = [
            _upstream_of_input(operation, number, value, places_of, arriving, by_value, by_place)
            for number, value in enumerate(operation.reads)
        ]
        for index, value in enumerate(operation.writes):
            upstream = _joined([read[number] for number in operation.needs(index)], operation)
            places = places_of.get(value, ())
            names = () if operation.silent else (operation.path,)
            unseen = (operation.unseen,) if operation.unseen else upstream.unseen
            by_value[value] = Upstream(
                upstream.places, (*names, *upstream.between)[:MOST_BETWEEN], upstream.keeps, unseen
            )
            ancestry = upstream
            for _, place in places:
                by_place[place] = ancestry
                ancestry = Upstream({place: False})
    return by_place


def _upstream_of_input(
    operation: FlowOperator,
    number: int,
    value: Hashable,
    places_of: Mapping[Hashable, Sequence[tuple[int, SlotName]]],
    arriving: Mapping[tuple[str, int], SlotName],
    by_value: Mapping[Hashable, Upstream],
    by_place: dict[SlotName, Upstream],
) -> Upstream:
    """The nearest places to an operator's input: itself where it is compared, else the places of its
    value."""
    earlier = [place for order, place in places_of.get(value, ()) if order < operation.order]
    upstream = Upstream({earlier[-1]: False}) if earlier else by_value.get(value, NOTHING)
    place = arriving.get((operation.path, number))
    if place is None:
        return upstream
    by_place[place] = upstream
    return Upstream({place: False})


def _joined(upstreams: Sequence[Upstream], operation: FlowOperator) -> Upstream:
    places: dict[SlotName, bool] = {}
    between: dict[str, None] = {}
    unseen: dict[str, None] = {}
    for upstream in upstreams:
        for place, crossed in upstream.places.items():
            places[place] = places.get(place, False) or crossed or operation.crosses
        between.update(dict.fromkeys(upstream.between))
        unseen.update(dict.fromkeys(upstream.unseen))
    keeps = operation.keeps or any(upstream.keeps for upstream in upstreams)
    return Upstream(places, tuple(between)[:MOST_BETWEEN], keeps, tuple(unseen)[:MOST_BETWEEN])
