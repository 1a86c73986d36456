"""Any number in the parameters or among the inputs of a dumped operator: an answer or one sentence, at once.

Every parameter of every operator, and every tensor of whole numbers, gets values that ask for more than a
machine has. What is made and done is held against the tensors of the operation (`room.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from acc_pytest.errors import OperatorError
from acc_pytest.lab.strategies import WITHOUT_STRATEGY, cases, covered
from acc_pytest.lab.strategies.device import DrawnCase
from acc_pytest.operators import compute, compute_collective, known, operator_of
from acc_pytest.operators.registry import Key, Schema
from tests.bounded import bounded
from tests.each_case import check_each

NUMBERS = (2**63 - 1, 2**31, 100_000, -1, 10**400, 1e308, math.inf, math.nan, True, "7", None)
IN_TENSORS = (2**31 - 1, 100_000, -1)
SEEDS = 2

Inputs = Sequence["torch.Tensor | None"]


def drawn(name: str) -> list[DrawnCase]:
    """Some valid cases, the same in every run."""
    found: list[DrawnCase] = []

    @seed(7)
    @settings(
        max_examples=SEEDS,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(name))
    def take(case: DrawnCase) -> None:
        found.append(case)

    take()
    return found


def with_one(schema: Schema, param: Mapping[str, Any], value: object) -> Iterator[Mapping[str, Any]]:
    """The parameters with one of them, or one entry of a list, replaced."""
    for name, key in schema.items():
        if not isinstance(key, Key):
            for inner in with_one(key, param.get(name) or {}, value):
                yield {**param, name: inner}
        elif key.kind in ("ints", "floats"):
            entries = list(param.get(name) or [0])
            yield {**param, name: [value, *entries[1:]]}
            yield {**param, name: [value] * len(entries)}
        elif key.kind != "str":
            yield {**param, name: value}


def with_number(inputs: Inputs) -> Iterator[Inputs]:
    """The inputs with one whole number, or all of one tensor, replaced."""
    for place, tensor in enumerate(inputs):
        if tensor is None or not tensor.numel() or tensor.dtype not in (torch.int32, torch.int64):
            continue
        for value in IN_TENSORS:
            one = tensor.clone()
            one.view(-1)[0] = value
            for other in (one, torch.full_like(tensor, value)):
                yield [*inputs[:place], other, *inputs[place + 1 :]]


def check(name: str, param: Mapping[str, Any], inputs: Inputs, written: int) -> None:
    try:
        compute(name, param, inputs, dump_elements=written)
    except OperatorError as error:
        assert "alloc" not in str(error), f"{param}: {error}"  # noqa: PT017 - both ways out are right


def asks_for_no_more_than_the_tensors_explain(name: str) -> None:
    with bounded():
        for case in drawn(name):
            outputs = compute(name, case.param, case.inputs)
            written = sum(one.numel() for one in outputs)
            again = compute(name, case.param, case.inputs, dump_elements=written)
            assert [one.shape for one in again] == [one.shape for one in outputs]
            schema = operator_of(name, case.param).schema
            for value in NUMBERS:
                for param in with_one(schema, case.param, value):
                    check(name, param, case.inputs, written)
            for inputs in with_number(case.inputs):
                check(name, case.param, inputs, written)


def test_no_number_asks_for_more_than_the_tensors_explain() -> None:
    check_each(((name, name) for name in covered()), asks_for_no_more_than_the_tensors_explain)


@pytest.mark.parametrize("name", sorted(set(known()) & set(WITHOUT_STRATEGY)))
def test_nor_between_ranks(name: str) -> None:
    schema = operator_of(name).schema
    count = len(operator_of(name).inputs)
    inputs = [[torch.ones(4, 4), *[torch.ones(2, dtype=torch.int64)] * (count - 1)] for _ in range(2)]
    with bounded():
        for value in NUMBERS:
            for param in with_one(schema, {}, value):
                try:
                    compute_collective(name, param, inputs, dump_elements=32)
                except OperatorError as error:
                    assert "alloc" not in str(error), f"{param}: {error}"  # noqa: PT017
