"""Drawn cases are computed by our operators and agree with formulations that share no line with them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from acc_pytest.errors import AccError, MissingPackage, OperatorError, SettingsError
from acc_pytest.lab import strategies
from acc_pytest.lab.strategies.device import DrawnCase
from acc_pytest.lab.strategies.fuzz import Counterexample, fuzz, save
from acc_pytest.opcheck.run import run_entry
from acc_pytest.operators import compute, known, operator_of
from acc_pytest.reference.sources import entries_of_csv
from tests.each_case import check_each
from tests.slow import slow

from .oracles import disagreements, expected, with_oracle

few = settings(
    max_examples=int(os.environ.get("ACC_TEST_EXAMPLES", "6")),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def agrees_with_the_oracle(operator: str) -> None:
    @few
    @given(strategies.cases(operator))
    def agrees(case: DrawnCase) -> None:
        assert disagreements(case, compute(case.operator, case.param, case.inputs)) == []

    agrees()


def test_every_drawn_case_agrees_with_the_oracle() -> None:
    check_each(((name, name) for name in strategies.covered()), agrees_with_the_oracle)


def is_caught_and_named(operator: str) -> None:
    @settings(few, max_examples=(few.max_examples + 1) // 2)
    @given(strategies.cases(operator), st.data())
    def caught(case: DrawnCase, data: st.DataObject) -> None:
        outputs = [output.clone() for output in compute(case.operator, case.param, case.inputs)]
        number = data.draw(st.integers(0, len(outputs) - 1))
        spoiled = outputs[number]
        assume(spoiled.numel() and bool(torch.isfinite(spoiled).all()))
        place = data.draw(st.tuples(*(st.integers(0, n - 1) for n in spoiled.shape)))
        if spoiled.is_floating_point():
            spoiled[place] += max(float(spoiled.abs().max()), 2.0**-5) / 32
        else:
            # int8 that is quantised may be one step off
            spoiled[place] += 3 if int(spoiled[place]) < 100 else -3
        wrong = disagreements(case, outputs)
        assert len(wrong) == 1
        assert wrong[0].startswith(f"output {number}: element {list(place)} is ")

    caught()


def test_a_changed_element_of_any_output_is_caught_and_named() -> None:
    """Changed by 1/32 of the output's largest: 2^-5, where bfloat16 rounds by 2^-9 and sums lose less."""
    check_each(((name, name) for name in strategies.covered()), is_caught_and_named)


ROUNDED_BETWEEN = {
    "GmmDeqSwigluQuantGmmDeqOperation",
    "MlaPreprocessOperation",
    "MmDeqSwigluQuantMmDeqOperation",
}
"""Several steps, between which the oracle rounds as the kernel does."""


def is_near_without_rounding(operator: str) -> None:
    @settings(few, max_examples=(few.max_examples + 1) // 2)
    @given(strategies.cases(operator))
    def near(case: DrawnCase) -> None:
        exact = compute(case.operator, case.param, case.inputs, accumulate=torch.float64, round_outputs=False)
        for mine, wanted in zip(exact, expected(case)):
            if wanted.error is None:
                assert torch.equal(mine.to(wanted.dtype), wanted.value)
            elif wanted.dtype.is_floating_point:
                limit = wanted.error + 2.0**-40 * (1 + wanted.value.abs())
                assert bool(((mine.double() - wanted.value).abs() <= limit).all())

    near()


def test_the_float64_computation_is_within_the_error_of_float32_alone() -> None:
    """Without any rounding the computation is nearer to the oracle than what is allowed for float32."""
    names = sorted(set(strategies.covered()) - ROUNDED_BETWEEN)
    check_each(((name, name) for name in names), is_near_without_rounding)


def test_every_operator_has_a_strategy_or_a_reason() -> None:
    assert set(strategies.covered()) | set(strategies.WITHOUT_STRATEGY) == set(known())
    assert not set(strategies.covered()) & set(strategies.WITHOUT_STRATEGY)
    assert set(with_oracle()) == set(strategies.covered())


def are_what_the_schema_allows(operator: str) -> None:
    @settings(few, max_examples=3)
    @given(strategies.params(operator))
    def allowed(param: dict[str, object]) -> None:
        complete = operator_of(operator, param).defaults()
        assert set(param) <= set(complete)

    allowed()


def test_drawn_parameters_are_what_the_schema_allows() -> None:
    check_each(((name, name) for name in known()), are_what_the_schema_allows)


def test_an_operator_without_strategy_is_refused_with_its_reason() -> None:
    with pytest.raises(OperatorError, match=r"AllReduceOperation: no strategy; it computes between ranks"):
        strategies.cases("AllReduceOperation")
    with pytest.raises(OperatorError, match="did you mean LinearOperation"):
        strategies.cases("LinearOperatoin")


def test_without_hypothesis_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingPackage, match="pip install hypothesis") as raised:
        strategies.cases("LinearOperation")
    assert isinstance(raised.value, AccError)


def test_an_oracle_says_wrong_shapes_dtypes_and_numbers_of_outputs() -> None:
    case = DrawnCase("TransposeOperation", {"perm": [1, 0]}, (torch.ones(2, 3),))
    assert disagreements(case, []) == ["0 outputs, not 1"]
    assert disagreements(case, [torch.ones(2, 3)]) == ["output 0: shape [2, 3] is not [3, 2]"]
    short = torch.ones(3, 2, dtype=torch.float16)
    assert disagreements(case, [short]) == ["output 0: dtype torch.float16 is not torch.float32"]


def test_an_oracle_catches_a_nan() -> None:
    case = DrawnCase("SoftmaxOperation", {"axes": [0]}, (torch.ones(2),))
    assert disagreements(case, [torch.tensor([torch.nan, 0.5])]) == ["output 0: isnan at different places"]


def test_a_case_prints_small_tensors_and_the_shape_of_large_ones() -> None:
    case = DrawnCase("WhereOperation", {}, (torch.ones(2), None, torch.ones(40, dtype=torch.float16)))
    assert repr(case) == ("DrawnCase('WhereOperation', {}, (float32[2] [1.0, 1.0], None, float16[40]))")


# `strategies.check`: outputs of a drawn case against the reference computation, by a standard of opcheck.


TRANSPOSE = DrawnCase("TransposeOperation", {"perm": [1, 0]}, (torch.ones(2, 3),))


@pytest.mark.parametrize("operator", ["LinearOperation", "KvCacheOperation", "TopkToppSamplingOperation"])
def test_what_our_operator_computes_passes(operator: str) -> None:
    @settings(max_examples=5, deadline=None, database=None, derandomize=True)
    @given(strategies.cases(operator))
    def passes(case: DrawnCase) -> None:
        assert strategies.check(case, compute(case.operator, case.param, case.inputs)) == []

    passes()


def test_the_number_the_shape_the_dtype_and_the_values_of_outputs_are_checked() -> None:
    right = torch.ones(3, 2)
    assert strategies.check(TRANSPOSE, []) == ["0 outputs, not 1"]
    for wrong in (torch.ones(2, 3), right.half(), right * 2, right * torch.nan):
        (sentence,) = strategies.check(TRANSPOSE, [wrong])
        assert sentence.startswith("output[0]: ")


def test_another_standard_judges_when_it_is_named() -> None:
    case = DrawnCase("SoftmaxOperation", {"axes": [0]}, (torch.ones(2, dtype=torch.float16),))
    nearly = torch.tensor([0.5, 0.5015], dtype=torch.float16)
    assert strategies.check(case, [nearly], "msit")[0].startswith("output[0]: rel_precision_rate")
    assert strategies.check(case, [nearly]) == []
    with pytest.raises(SettingsError, match="no such standard"):
        strategies.check(case, [nearly], "strict")


# Fuzzing finds a spoiled operator, makes the case small, and saves one that our own opcheck calls wrong.


def right(case: DrawnCase) -> Sequence[torch.Tensor]:
    return compute(case.operator, case.param, case.inputs)


def spoiled(case: DrawnCase) -> Sequence[torch.Tensor]:
    """A device whose last output column is lost when there are more than two rows."""
    (y,) = right(case)
    if y.shape[-2] > 2:
        y[..., -1] = 1000
    return (y,)


def test_nothing_is_found_in_an_operator_that_is_right() -> None:
    assert fuzz("TransposeOperation", 30, right, disagreements) is None


def test_the_case_that_is_found_is_small() -> None:
    example = fuzz("MatmulOperation", 200, spoiled, disagreements)
    assert example is not None
    assert example.case.operator == "MatmulOperation"
    assert example.drawn <= 200
    (y,) = right(example.case)
    assert tuple(y.shape) == (3, 1)
    assert " is 1000, not " in example.reasons[0]


def test_an_exception_of_the_backend_is_a_disagreement() -> None:
    def broken(case: DrawnCase) -> Sequence[torch.Tensor]:
        raise RuntimeError("no stream")

    example = fuzz("RepeatOperation", 5, broken, disagreements)
    assert example is not None
    assert example.reasons == ("RuntimeError: no stream",)
    assert example.outputs is None


@pytest.mark.parametrize(
    "operator", ["MatmulOperation", slow("KvCacheOperation"), slow("ReshapeAndCacheOperation")]
)
def test_a_saved_case_for_which_nothing_was_computed_holds_the_reference(
    operator: str, tmp_path: Path
) -> None:
    """So it passes: outputs, and what is written in place."""

    def broken(case: DrawnCase) -> Sequence[torch.Tensor]:
        raise RuntimeError("no stream")

    example = fuzz(operator, 1, broken, disagreements)
    assert example is not None
    csv = save(example, tmp_path)
    assert csv == tmp_path / operator / "operation_tensors_0.csv"
    (entry,) = entries_of_csv(csv, "saved")
    rows = run_entry(entry)
    assert [row.verdict for row in rows] == ["pass"] * len(right(example.case))


def test_a_saved_case_holds_what_was_computed_and_fails(tmp_path: Path) -> None:
    example = fuzz("MatmulOperation", 100, spoiled, disagreements)
    assert example is not None
    (entry,) = entries_of_csv(save(example, tmp_path), "saved")
    (row,) = run_entry(entry)
    assert row.verdict == "fail"
    assert row.golden.shape == "[3, 1]"


def test_a_second_case_of_one_operator_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    case = DrawnCase("TransposeOperation", {"perm": [0]}, (torch.ones(2),))
    names = [save(Counterexample(case, (), 1), tmp_path).parent.name for _ in range(3)]
    assert names == ["TransposeOperation", "TransposeOperation_2", "TransposeOperation_3"]
