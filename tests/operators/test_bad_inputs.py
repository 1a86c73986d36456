"""Whatever is given: an operator computes or says in one `OperatorError` what does not fit."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import AccError, OperatorError
from acc_pytest.operators import compute, known, operator_of
from tests.each_case import check_each

from . import corpus

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.int64)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    values = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5
    return values.to(draw(st.sampled_from(DTYPES)))


def attempt(name: str, param: dict[str, object], inputs: list[torch.Tensor | None]) -> None:
    try:
        outputs = compute(name, param, inputs)
    except AccError as error:
        assert str(error).startswith(f"{name}: ")  # noqa: PT017 - both ways out are right
    else:
        assert all(isinstance(output, torch.Tensor) for output in outputs)


def random_tensors(name: str) -> None:
    count = len(operator_of(name).inputs)

    @settings(max_examples=8, deadline=None)
    @given(st.lists(tensors() | st.none(), min_size=count, max_size=count))
    def ends_well(inputs: list[torch.Tensor | None]) -> None:
        attempt(name, {}, inputs)

    ends_well()


def test_random_tensors_and_default_parameters() -> None:
    check_each(((name, name) for name in known()), random_tensors)


@pytest.mark.filterwarnings("error")
def test_a_warning_of_torch_is_not_the_users_nor_an_error_of_python() -> None:
    """`.T` of a vector, and a parameter that takes away an input that the operator looks for."""
    one, none = torch.ones(1, 1, 1).half(), torch.ones(0, 1, 1).half()
    counts, sums = torch.tensor([[1], [0]]), torch.ones(1)
    compute("RingMLAOperation", {"headNum": 1}, [one, one, none, none, none, None, counts, one, sums])
    cache = {"kvCacheCfg": 1, "compressType": 1}
    tensors = [torch.ones(2, 2, 1), torch.ones(5, 4, 2, 1)]
    inputs = [*tensors, *(torch.ones(count).int() for count in (2, 3, 1))]
    with pytest.raises(OperatorError, match=r"the inputs do not fit each other or the parameters .*seqLen"):
        compute("ReshapeAndCacheWithStrideOperation", cache, inputs)


def test_complex_numbers_are_not_taken_for_their_real_parts() -> None:
    with pytest.raises(OperatorError, match=r"computes with real numbers, but was given torch.complex64"):
        compute("SoftmaxOperation", {"axes": [0]}, [torch.ones(2) * 1j])


CASES: dict[tuple[str, str], corpus.Case] = {}
if corpus.ROOT.is_dir():
    for case in corpus.cases(corpus.ROOT):
        CASES.setdefault((case.operator, json.dumps(case.record["param_suite"], sort_keys=True)), case)


def one_wrong_tensor(case: corpus.Case) -> None:
    directory = case.directories()[0]
    right, param = case.inputs(directory), case.param(directory)

    @settings(max_examples=2, deadline=None)
    @given(st.data())
    def ends_well(data: st.DataObject) -> None:
        inputs: list[torch.Tensor | None] = [*right]
        if inputs:
            inputs[data.draw(st.integers(0, len(inputs) - 1))] = data.draw(tensors() | st.none())
        attempt(case.operator, param, inputs)

    ends_well()


@pytest.mark.skipif(not CASES, reason="conformance data (../shared/conformance) is not here")
def test_real_parameters_and_one_wrong_tensor() -> None:
    check_each(((case.name, case) for case in CASES.values()), one_wrong_tensor)
