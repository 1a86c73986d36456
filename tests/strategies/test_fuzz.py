"""Fuzzing finds a spoiled operator, makes the case small, and saves one that our own opcheck calls wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from acc_pytest.opcheck.run import run_entry
from acc_pytest.opcheck.source_csv import entries_of_csv
from acc_pytest.operators import compute
from acc_pytest.strategies.drawn import DrawnCase
from acc_pytest.strategies.fuzz import Found, fuzz, on_cpu, save
from acc_pytest.strategies.oracles import expected


def spoiled(case: DrawnCase) -> Sequence[torch.Tensor]:
    """A device whose last output column is lost when there are more than two rows."""
    (y,) = compute(case.operator, case.param, case.inputs)
    if y.shape[-2] > 2:
        y[..., -1] = 1000
    return (y,)


def test_nothing_is_found_in_an_operator_that_is_right() -> None:
    assert fuzz("TransposeOperation", 30, on_cpu) is None


def test_the_case_that_is_found_is_small() -> None:
    found = fuzz("MatmulOperation", 200, spoiled)
    assert found is not None
    assert found.case.operator == "MatmulOperation"
    assert found.drawn <= 200
    (y,) = compute(found.case.operator, found.case.param, found.case.inputs)
    assert tuple(y.shape) == (3, 1)
    assert " is 1000, not " in found.wrong[0]


def test_an_exception_of_the_backend_is_what_was_found() -> None:
    def broken(case: DrawnCase) -> Sequence[torch.Tensor]:
        raise RuntimeError("no stream")

    found = fuzz("RepeatOperation", 5, broken)
    assert found is not None
    assert found.wrong == ("RuntimeError: no stream",)


@pytest.mark.parametrize("operator", ["MatmulOperation", "KvCacheOperation", "ReshapeAndCacheOperation"])
def test_a_saved_case_holds_the_inputs_and_what_the_oracle_says(operator: str, tmp_path: Path) -> None:
    """So our operator, which is right, passes on it: outputs, and what is written in place."""
    drawn = fuzz(operator, 1, lambda case: ())
    assert drawn is not None
    csv = save(drawn, tmp_path)
    assert csv == tmp_path / operator / "operation_tensors_0.csv"
    (entry,) = entries_of_csv(csv, "saved")
    rows = run_entry(entry)
    assert [row.verdict for row in rows] == ["pass"] * len(expected(drawn.case))


def test_a_saved_case_fails_where_the_operator_is_not_what_the_oracle_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fuzz("MatmulOperation", 100, spoiled)
    assert found is not None
    (entry,) = entries_of_csv(save(found, tmp_path), "saved")
    case = DrawnCase("MatmulOperation", found.case.param, found.case.inputs)
    monkeypatch.setattr("acc_pytest.opcheck.golden.compute", lambda *_, **__: spoiled(case))
    (row,) = run_entry(entry)
    assert row.verdict == "fail"
    assert row.golden.shape == "[3, 1]"


def test_a_second_case_of_one_operator_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    case = DrawnCase("TransposeOperation", {"perm": [0]}, (torch.ones(2),))
    places = [save(Found(case, (), 1), tmp_path).parent.name for _ in range(3)]
    assert places == ["TransposeOperation", "TransposeOperation_2", "TransposeOperation_3"]
