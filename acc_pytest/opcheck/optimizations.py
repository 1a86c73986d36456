"""Optimisations of fused operators switched off one at a time (`-opt` of the old tool).

An attention operator that a device computes wrongly, and rightly once one of these parameters is switched
off, goes wrong in that optimisation. The changed case is another computation with an answer of its own, so
device and reference both compute it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from ..operators import operator_of
from ..operators.param import read
from ..tensors.ref import TensorRef
from .case import Case, Declared

OFF_VALUES: Mapping[str, Mapping[str, int | bool]] = {
    "SelfAttentionOperation": {
        "maskType": 0,
        "batchRunStatusEnable": False,
        "isTriuMask": 0,
        "kernelType": 0,
        "clampType": 0,
    },
    "PagedAttentionOperation": {
        "maskType": 0,
        "batchRunStatusEnable": False,
        "quantType": 0,
        "hasQuantOffset": False,
        "compressType": 0,
        "calcType": 0,
    },
}
"""The operators that have such parameters (the old tool's table), and the value that switches each off."""


@dataclass(frozen=True, slots=True)
class OptimizationOff:
    """`case` with one parameter switched off, and without the operands that this takes away.

    `change` is what was done to the parameter: `maskType=0`.
    """

    parameter: str
    change: str
    case: Case


def without_optimizations(case: Case) -> Iterator[OptimizationOff]:
    """`case` once for each of its optimisations that is in use; none for operators that have none.

    Their ids end with `_1`, `_2`, ... as the old tool's did. Raises `OperatorError` for wrong parameters.
    """
    table = OFF_VALUES.get(case.name, {})
    operator = operator_of(case.name, case.param)
    complete = read(case.name, operator.schema, case.param)
    in_use = [(key, value) for key, value in table.items() if complete[key] != value]
    for number, (key, value) in enumerate(in_use, start=1):
        changed = _with(case, key, value)
        yield OptimizationOff(key, f"{key}={int(value)}", replace(changed, ids=f"{case.ids}_{number}"))


def _with(case: Case, key: str, value: int | bool) -> Case:
    """The case with another parameter, its operands found again by their names."""
    before = [name.rstrip("?") for name in operator_of(case.name, case.param).inputs]
    param = {**case.param, key: value}
    after = [name.rstrip("?") for name in operator_of(case.name, param).inputs]
    refs: Mapping[str, TensorRef | None] = dict(zip(before, case.inputs))
    declared: Mapping[str, Declared] = dict(zip(before, case.declared_inputs))
    return replace(
        case,
        param=param,
        inputs=tuple(refs.get(name) for name in after),
        declared_inputs=tuple(declared[name] for name in takewhile(declared.__contains__, after)),
        written=(),
    )
