"""Which pairs are looked into, and what is said where that cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.reporting.html.view import details, row_label
from acc_pytest.tensors.ref import TensorRef

from .made import made_row


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Two pairs; the files of the second are gone."""
    pairs = []
    for number, name in enumerate(("here", "gone")):
        refs = []
        for side, values in (("golden", [[1.0, 2.0]]), ("mine", [[1.0, 2.5]])):
            path = tmp_path / f"{name}_{side}.pth"
            if name == "here":
                torch.save(torch.tensor(values), path)
            refs.append(TensorRef(str(path)))
        golden, mine = (Operand(name, name, "Linear", "output", (ref,)) for ref in refs)
        pairs.append(Pair(name, 0, None, "layer", "model", 0, number, "manual", "", golden, mine))
    return Plan("g", "m", "torch", "torch", "dump", tuple(pairs), (), (), 2, 2, 2, 2)


def test_a_pair_is_opened_as_its_test_opened_it(plan: Plan) -> None:
    (found,) = details(plan, [made_row(0)])
    assert found["shape"] == [1, 2]
    assert found["worst"] == [["[0, 1]", 2.0, 2.5, 0.5]]


def test_files_that_are_gone_are_named_and_harm_no_other(plan: Plan) -> None:
    gone, here = details(plan, [made_row(1), made_row(0)])
    assert "gone_golden.pth" in gone["absent"]
    assert "worst" in here


def test_no_more_is_read_than_allowed(plan: Plan) -> None:
    found = details(plan, [made_row(0), made_row(0)], elements=3)
    assert "worst" in found[0]
    assert "2 elements" in found[1]["absent"]


def test_a_row_of_a_test_of_ones_own_says_why_there_is_nothing(plan: Plan) -> None:
    (found,) = details(plan, [replace(made_row(0), number=None)])
    assert "in no file" in found["absent"]


def test_a_row_read_back_from_a_file_says_the_same() -> None:
    (found,) = details(None, [made_row(0)])
    assert "in no file" in found["absent"]


def test_an_operator_check_has_no_golden_file() -> None:
    (found,) = details(None, [made_row(0, case={"op_id": "1"})])
    assert "computed" in found["absent"]


def test_of_replicas_the_one_that_was_judged_worst_is_shown() -> None:
    assert row_label(made_row(0, notes=("bias added", "rank 1, the worst of 2 replicas"))) == "rank 1"
    assert row_label(made_row(0, notes=("bias added",))) == ""
