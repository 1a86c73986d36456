"""Fuzzing finds a spoiled operator, makes the case small, and saves one that our own opcheck calls wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from acc_pytest.lab.strategies.device import DrawnCase
from acc_pytest.lab.strategies.fuzz import Counterexample, fuzz, save
from acc_pytest.opcheck.run import run_entry
from acc_pytest.opcheck.sources import entries_of_csv
from acc_pytest.operators import compute

from .oracles import disagreements


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


@pytest.mark.parametrize("operator", ["MatmulOperation", "KvCacheOperation", "ReshapeAndCacheOperation"])
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
