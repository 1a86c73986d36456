"""From what each operator reads and writes to the nearest tensors above that are compared.

A tensor that is compared is called a place here: a slot of a node of mine. Operators are walked once in
execution order, so that no chain of operators that nothing is compared of is too long.
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
    """One operator: where it is in execution order, and the values it reads and writes.

    `needs(i)` are the places in `reads` that output `i` is computed from. `crosses` says that it computes
    from the tensors of all ranks, `keeps` that it reads or writes what a step leaves for the next, `silent`
    that it is never named as being between two places. `unseen` says in words what it hands on that nothing
    computes, where that is not compared.
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
class Above:
    """What is nearest above something: places, and whether a sum over ranks lies in between.

    `between` are the operators on the way that are not compared, the nearest first. `keeps`
    says that one of them, or the operator itself, reads or writes what a step leaves for the next. `unseen`
    are the words for what is read there and not compared.
    """

    places: Mapping[SlotName, bool] = field(default_factory=dict)
    between: tuple[str, ...] = ()
    keeps: bool = False
    unseen: tuple[str, ...] = ()


NOTHING = Above()


def nearest(
    operations: Iterable[FlowOperator],
    shown: Mapping[Hashable, Sequence[tuple[int, SlotName]]],
    arriving: Mapping[tuple[str, int], SlotName],
) -> dict[SlotName, Above]:
    """What is nearest above every place.

    `operations` come in execution order. `shown` says at which places a value is compared, each with the
    order of its node, ascending: the operator that wrote it first, then the nodes around it. `arriving`
    are places that are inputs of an operator, by its path and the number of the input.
    """
    above_place: dict[SlotName, Above] = {}
    written: dict[Hashable, Above] = {}
    for operation in operations:
        read = [
            _arrived(operation, number, value, shown, arriving, written, above_place)
            for number, value in enumerate(operation.reads)
        ]
        for index, value in enumerate(operation.writes):
            above = _joined([read[number] for number in operation.needs(index)], operation)
            places = shown.get(value, ())
            own = () if operation.silent else (operation.path,)
            unseen = (operation.unseen,) if operation.unseen else above.unseen
            written[value] = Above(above.places, (*own, *above.between)[:MOST_BETWEEN], above.keeps, unseen)
            before = above
            for _, place in places:
                above_place[place] = before
                before = Above({place: False})
    return above_place


def _arrived(
    operation: FlowOperator,
    number: int,
    value: Hashable,
    shown: Mapping[Hashable, Sequence[tuple[int, SlotName]]],
    arriving: Mapping[tuple[str, int], SlotName],
    written: Mapping[Hashable, Above],
    above_place: dict[SlotName, Above],
) -> Above:
    """What an operator's input is nearest to: itself where it is compared, else what shows its value."""
    before = [place for order, place in shown.get(value, ()) if order < operation.order]
    above = Above({before[-1]: False}) if before else written.get(value, NOTHING)
    place = arriving.get((operation.path, number))
    if place is None:
        return above
    above_place[place] = above
    return Above({place: False})


def _joined(several: Sequence[Above], operation: FlowOperator) -> Above:
    places: dict[SlotName, bool] = {}
    between: dict[str, None] = {}
    unseen: dict[str, None] = {}
    for above in several:
        for place, crossed in above.places.items():
            places[place] = places.get(place, False) or crossed or operation.crosses
        between.update(dict.fromkeys(above.between))
        unseen.update(dict.fromkeys(above.unseen))
    keeps = operation.keeps or any(above.keeps for above in several)
    return Above(places, tuple(between)[:MOST_BETWEEN], keeps, tuple(unseen)[:MOST_BETWEEN])
