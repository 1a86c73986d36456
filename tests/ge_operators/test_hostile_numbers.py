"""Any number in the attributes or inputs of an operator of GE: an answer or one sentence, at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from acc_pytest.errors import OperatorError
from acc_pytest.ge_operators import compute, known
from acc_pytest.ge_operators.registry import _OPERATORS
from tests.bounded import bounded
from tests.each_case import check_each

from .test_references import CASES, Tensors

NUMBERS: tuple[Any, ...] = (
    2**63 - 1,
    2**31,
    100_000,
    -1,
    10**400,
    1e308,
    math.inf,
    math.nan,
    True,
    "7",
    None,
    {},
)
LISTS = tuple([value] * length for value in (2**63 - 1, 2**31, 100_000, -1) for length in (1, 2, 3))
IN_TENSORS = (2**63 - 1, 2**31, 100_000, -1)
X = torch.arange(12, dtype=torch.float64).reshape(3, 4)


def seeds(op_type: str) -> list[tuple[Mapping[str, object], Tensors]]:
    """Attributes and inputs that the operator takes; of one without a case those of its kin, or a guess."""
    body = _OPERATORS[op_type].body
    found = [(attrs, inputs) for name, attrs, inputs, _ in CASES if _OPERATORS[name].body is body]
    return found or [({}, [X] * len(_OPERATORS[op_type].inputs))]


def with_number(inputs: Tensors) -> Iterator[Tensors]:
    """The inputs with one number, or all of one tensor, replaced."""
    for place, tensor in enumerate(inputs):
        if tensor is None or not tensor.numel() or tensor.dtype is torch.bool:
            continue
        wide = tensor.double() if tensor.is_floating_point() else tensor.long()
        for value in (math.inf, math.nan, 1e308) if tensor.is_floating_point() else IN_TENSORS:
            one = wide.contiguous().clone()
            one.view(-1)[0] = value
            for other in (one, torch.full_like(wide, value)):
                yield [*inputs[:place], other, *inputs[place + 1 :]]


def asks_for_no_more_than_was_dumped(op_type: str) -> None:
    with bounded():
        for attrs, inputs in seeds(op_type):
            names = {*_OPERATORS[op_type].defaults, *attrs}
            given = [({**attrs, name: value}, inputs) for name in names for value in (*NUMBERS, *LISTS)]
            for attributes, tensors in (*given, *((attrs, one) for one in with_number(inputs))):
                try:
                    made = compute(op_type, attributes, tensors, max_elements=64)
                except OperatorError as error:
                    assert "alloc" not in str(error), f"{attributes}: {error}"  # noqa: PT017
                else:
                    assert all(one.value.numel() <= 4096 for one in made)


def test_no_number_asks_for_more_than_was_dumped() -> None:
    check_each(((name, name) for name in known()), asks_for_no_more_than_was_dumped)
