"""Choices of modules of torch: whole numbers that a module hands out or is handed (a router's experts), and
the tensors of floats that they may have been chosen from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from ..dumps.base import Dump, StepLabel
from ..dumps.modules import ModuleDump
from .choices import chosen
from .pair import Pair, Plan
from .steps import common_steps
from .steps_by_token import StepPair
from .views import Whole

MOST = 64
"""Tensors that one choice may have been made from; the nearest of more."""
_Module = tuple[StepLabel, Union[int, None], str]
"""An execution of a module of mine: step, rank and path."""
_KINDS = {"int": ("int", "uint"), "float": ("float", "bfloat")}


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of one step that hold whole numbers, or floats, in both dumps."""

    integers: frozenset[tuple[str, str]]
    floats: frozenset[tuple[str, str]]


def with_module_choices(plan: Plan, golden: Dump, mine: Dump) -> Plan:
    """The plan of two torch dumps whose pairs of whole numbers know what they may have been chosen from.

    That is what their module hands out beside them, and what they are computed from. Whether they are the
    largest of any of these is asked where the pair is compared.
    """
    if not (isinstance(golden, ModuleDump) and isinstance(mine, ModuleDump)):
        return plan
    steps = {met.label: _places(golden, mine, met) for met in common_steps(golden, mine)}
    numbers = [
        number for number, pair in enumerate(plan.pairs) if _is_choice(pair) and _kind(pair, steps) == "int"
    ]
    if not numbers:
        return plan
    handed_out = _handed_out(plan.pairs)
    pairs = list(plan.pairs)
    for number in numbers:
        pair = pairs[number]
        near = handed_out[_module(pair)] if _is_output(pair) else ()
        values = list(_values(plan.pairs, near, steps))
        # A module that hands out nothing but whole numbers counts, or converts.
        if values or not near:
            values += _values(plan.pairs, plan.parents[number], steps)
        if values:
            ends = [(value.golden.refs[0], value.mine.refs[0]) for value in dict.fromkeys(values[:MOST])]
            pairs[number] = chosen(pair, *zip(*ends))
    return replace(plan, pairs=tuple(pairs))


def _handed_out(pairs: Sequence[Pair]) -> Mapping[_Module, Sequence[int]]:
    """The numbers of the pairs that are outputs, by the execution of a module that handed them out."""
    outputs: dict[_Module, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        if _is_output(pair):
            outputs[_module(pair)].append(number)
    return outputs


def _module(pair: Pair) -> _Module:
    return pair.step, pair.rank, pair.mine.node


def _is_output(pair: Pair) -> bool:
    return pair.mine.slot.startswith("output")


def _is_choice(pair: Pair) -> bool:
    """Whether a pair of integers may be choices, and nothing else says from what."""
    sides = (pair.golden, pair.mine)
    return not pair.fed and all(side.view == Whole() and not side.chosen_from for side in sides)


def _values(pairs: Sequence[Pair], numbers: Sequence[int], steps: dict[StepLabel, _Places]) -> Iterator[Pair]:
    """The pairs of floats among these, each of one whole tensor on either side."""
    for number in numbers:
        pair = pairs[number]
        uncut = len(pair.golden.refs) == len(pair.mine.refs) == 1 and pair.mine.view == Whole()
        if uncut and _kind(pair, steps) == "float":
            yield pair


def _kind(pair: Pair, steps: dict[StepLabel, _Places]) -> str:
    places = steps.get(pair.step)
    place = pair.mine.node, pair.mine.slot
    if places is None:
        return ""
    return "int" if place in places.integers else "float" if place in places.floats else ""


def _places(golden: ModuleDump, mine: ModuleDump, met: StepPair) -> _Places:
    sides = golden.calls(met.golden).dtypes, mine.calls(met.mine).dtypes
    by_kind = {
        kind: [
            {(place.path, str(place.slot)) for place, dtype in side.items() if dtype.startswith(starts)}
            for side in sides
        ]
        for kind, starts in _KINDS.items()
    }
    return _Places(*(frozenset(first & second) for first, second in by_kind.values()))
