"""The graph of the model for a page: which rows are of one operator, and from which rows each was computed.

The edges are those of the plan, which a rows file keeps as well, so that a merged page has the graph too.
They stay within a step and are kept as distances to the row above, which repeat from layer to layer.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..row import ALONE, VERDICTS, Row
from ..texts import printable
from .data import differences

if TYPE_CHECKING:
    from ...mapping.pair import Plan
    from .data import Packed

_OF_OPERATORS = ("weight", "buffer")
"""Kinds of feed that belong to the operator that reads them; every other is a node of its own."""
_MOST_ABOVE = 8
"""Rows above a row that are kept where those between them are not in the page."""
_LAYER = re.compile(r"\.\d+$", re.ASCII)
_ALONE = frozenset(map(VERDICTS.index, ALONE))
_BY_ITSELF = frozenset(map(VERDICTS.index, ("fail", "incomparable", *ALONE)))
"""Verdicts of a module's result that say more than those of the operator inside that wrote it."""

_Where = tuple[str, str, str, str, str]
"""The node of mine, or the golden node if that is no path; layer; graph; the kind of run input."""


class _Parents:
    """For each of so many places of a page the places that it was computed from, as flat columns."""

    def __init__(self, places: int) -> None:
        self._flat = array("i")
        self._first, self._last = array("i", bytes(4 * places)), array("i", bytes(4 * places))

    def set(self, place: int, parents: Sequence[int]) -> None:
        """Set the places that `place` was computed from."""
        self._first[place] = len(self._flat)
        self._flat.extend(parents)
        self._last[place] = len(self._flat)

    def __bool__(self) -> bool:
        return bool(self._flat)

    def __iter__(self) -> Iterator[Sequence[int]]:
        return (self._flat[first:last] for first, last in zip(self._first, self._last))


class ModelGraph:
    """The operators of a run so far, row by row in the order in which they arrive."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._codes: dict[_Where, int] = {}
        self._where = array("i")

    def add(self, row: Row) -> None:
        """Take one row in."""
        node = row.mine.node or row.golden.node
        where = (node, "" if "/" in node else row.golden.node, row.layer, row.graph, row.fed)
        self._where.append(self._codes.setdefault(where, len(self._codes)))

    def packed(self, page: Packed, width: int) -> dict[str, Any] | None:
        """The graph for the page's script, beside the rows of `page`; `None` where no row is above another.

        `operators` has the operator of each row (-1 for what found no partner), `counts` how many rows each
        was computed from (negative where only the order of execution says so), `back` how far above they
        stand. `paths` are module paths of operators outside of repeated layers, `fed` the places of what the
        run was given. Texts are cut to `width`.
        """
        verdicts: list[int] = page.body["verdicts"]
        pairs = len(self._plan.pairs)
        numbers = [
            number if verdict not in _ALONE and number < pairs else -1
            for number, verdict in zip(accumulate(page.body["numbers"]), verdicts)
        ]
        parents = self._parents(numbers)
        if not parents:
            return None
        where = [self._where[index] for index in page.order]
        operators, of_codes = self._operators(where, verdicts, parents)
        return {
            "basis": printable(self._plan.lineage, 2 * width),
            "operators": differences(operators),
            **_edges(operators, parents, [number in self._plan.by_order for number in numbers]),
            "paths": self._paths(of_codes, width),
            "fed": self._feeds(where),
        }

    def _parents(self, numbers: Sequence[int]) -> _Parents:
        """For each place those that it was computed from in its step: the nearest that are in the page."""
        steps = [pair.step for pair in self._plan.pairs]
        place_of_number = array("i", [-1]) * len(steps)
        for place, number in enumerate(numbers):
            if number >= 0:
                place_of_number[number] = place
        carried: dict[int, tuple[int, ...]] = {}
        ancestors = _Parents(len(numbers))
        for number, parents in enumerate(self._plan.parents):
            if not parents:
                continue
            near: list[int] = []
            for parent in parents:
                if parent >= number or steps[parent] != steps[number]:
                    continue
                if place_of_number[parent] >= 0:
                    near.append(place_of_number[parent])
                else:
                    near += carried.get(parent, ())
            if not near:
                continue
            once = tuple(near) if len(near) == 1 else tuple(dict.fromkeys(near))
            if place_of_number[number] >= 0:
                ancestors.set(place_of_number[number], once)
            else:
                carried[number] = once[:_MOST_ABOVE]
        return ancestors

    def _operators(
        self, where: Sequence[int], verdicts: Sequence[int], ancestors: _Parents
    ) -> tuple[array[int], list[int]]:
        """The operator of each place, numbered as they come, and that of each of `_codes`; -1 for none.

        What a module returns, and an operator inside it wrote, is of that operator.
        """
        places = list(self._codes)
        # Equal values by one number, in the order in which they come first.
        values = map(_operator_of, places)
        numbers: dict[object, int] = {}
        groups = [numbers.setdefault(value, len(numbers)) for value in values]
        numbered = [-1] * (max(groups, default=-1) + 1)
        writer = [(-1, False)] * len(places)  # the last code above each code, and whether it wrote its tensor
        operators = array("q")
        count = 0
        for code, verdict, parents in zip(where, verdicts, ancestors):
            if len(parents) == 1 and verdict not in _BY_ITSELF:
                parent = parents[0]
                if writer[code][0] != where[parent]:
                    writer[code] = where[parent], _wrote(places[where[parent]], places[code])
                if writer[code][1]:
                    operators.append(operators[parent])
                    continue
            if verdict not in _ALONE and numbered[groups[code]] < 0:
                numbered[groups[code]] = count
                count += 1
            operators.append(-1 if verdict in _ALONE else numbered[groups[code]])
        return operators, [numbered[operator] for operator in groups]

    def _paths(self, operators: Sequence[int], width: int) -> dict[str, Any]:
        """The module path of each operator, parts joined by dots; empty inside a repeated layer."""
        paths: dict[int, str] = {}
        for operator, (node, _, layer, graph, _) in zip(operators, self._codes):
            if operator >= 0 and paths.get(operator) != "":
                paths[operator] = "" if _repeated(layer) else _path(node, graph)
        codes: dict[str, int] = {}
        column = [codes.setdefault(paths[operator], len(codes)) for operator in range(len(paths))]
        return {"texts": [printable(text, width) for text in codes], "codes": differences(column)}

    def _feeds(self, where: Sequence[int]) -> Mapping[str, array[int]]:
        """The places of what the run was given, by kind."""
        kinds = {code: where[-1] for where, code in self._codes.items() if where[-1]}
        by_kind: dict[str, list[int]] = {}
        for place, code in enumerate(where if kinds else ()):
            if code in kinds:
                by_kind.setdefault(kinds[code], []).append(place)
        return {kind: differences(places) for kind, places in by_kind.items()}


def _edges(operators: Sequence[int], ancestors: _Parents, guessed: Sequence[bool]) -> dict[str, array[int]]:
    """The number of rows of other operators that each row was computed from, and how far above they stand."""
    counts, back = array("i"), array("i")
    for place, (operator, parents) in enumerate(zip(operators, ancestors)):
        count = 0
        for parent in parents:
            if operators[parent] != operator:
                back.append(place - parent)
                count += 1
        counts.append(-count if guessed[place] else count)
    return {"counts": counts, "back": back}


def _wrote(inner: _Where, outer: _Where) -> bool:
    """Whether the first is an operator inside the module that the second is; neither is a given input."""
    name, node = inner[0], outer[0]
    return name.startswith(node) and name[len(node) :][:1] in ("/", ".") and not (inner[-1] or outer[-1])


def _operator_of(where: _Where) -> object:
    """The key of an operator: equal for its rows at every step and rank.

    ATB counts the executions of layers on, so that the first number of a path differs between steps, and a
    layer is called otherwise in the prefill. Outside of layers only golden tells operators of a type apart.
    """
    node, golden, layer, graph, feed_kind = where
    named = _without_number(node)
    if feed_kind and feed_kind not in _OF_OPERATORS:
        return feed_kind, graph, layer, named
    if named is node:
        return graph, node
    in_layer = named.partition("/")[2] if _repeated(layer) else ""
    return graph, layer, in_layer or named, golden


@functools.cache
def _repeated(layer: str) -> bool:
    """Whether a layer is one of several: `layers.3`."""
    return _LAYER.search(layer) is not None


def _without_number(node: str) -> str:
    """`2_Prefill_layer/1_Norm` as `Prefill_layer/1_Norm`; what begins with no number as it is."""
    if not "0" <= node[:1] <= "9":
        return node
    number, _, rest = node.partition("_")
    return rest if rest and number.isascii() and number.isdecimal() else node


def _path(node: str, graph: str) -> str:
    """The modules around an operator and its own name; a compiled graph has none."""
    if "/" in node or _without_number(node) is not node:
        return ".".join(map(_without_number, node.split("/")))
    return "" if graph else node
