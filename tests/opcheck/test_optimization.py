"""Optimisations of attention switched off one at a time: which of them is to blame is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import SettingsError
from acc_pytest.opcheck.prepare import prepare
from acc_pytest.opcheck.run import OFF_VALUES, run_entry, without_optimizations
from acc_pytest.opcheck.settings import OpcheckSettings
from acc_pytest.opcheck.sources import entries_of_csv
from acc_pytest.opcheck.stand_alone import StandAlone, write_case
from acc_pytest.operators import compute, operator_of
from acc_pytest.reporting.row import Row

PARAM = {"headNum": 2, "kvHeadNum": 2, "qkScale": 0.5, "calcType": 3, "maskType": 1, "clampType": 1}
PARAM |= {"clampMin": -1.0, "clampMax": 1.0}


def attention_csv(home: Path, param: Mapping[str, Any] = PARAM) -> Path:
    """Causal packed attention of one sequence of four tokens, clamped."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 16).half() for _ in range(3))
    mask = torch.full((4, 4), -10000.0).triu(1).half()
    inputs = [q, k, v, mask, torch.tensor([4], dtype=torch.int32)]
    outputs = compute("SelfAttentionOperation", param, inputs)
    return write_case(StandAlone("SelfAttentionOperation", param, inputs, outputs, {}, "3_1"), home)


def rows_of(csv: Path, backend: Any) -> list[Row]:
    (entry,) = entries_of_csv(csv, "one")
    return run_entry(entry, OpcheckSettings((), optimization=True), backend)


def wrong_where(key: str, value: int) -> Any:
    """A device that is wrong by a quarter under a certain parameter."""

    def device(name: str, param: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        (y,) = compute(name, param, inputs)
        return (y + 0.25 if param.get(key) == value else y,)

    return device


def test_the_parameter_that_makes_the_device_right_is_the_suspect(tmp_path: Path) -> None:
    first, *copies = rows_of(attention_csv(tmp_path), wrong_where("maskType", 1))
    assert first.verdict == "fail"
    assert "with maskType=0 the device's result passes: suspect the optimisation maskType" in first.sentence
    assert "suspect the optimisation maskType" in first.reason
    assert [(row.case["optimization_closed"], row.verdict) for row in copies] == [
        ("maskType", "pass"),
        ("clampType", "fail"),
    ]
    assert [row.case["op_id"] for row in copies] == ["3_1_1", "3_1_2"]
    assert copies[0].name == "SelfAttentionOperation_3_1[maskType=0]"
    assert copies[1].sentence.startswith("with clampType=0: ")
    assert len({row.number for row in (first, *copies)}) == 3


def test_no_parameter_is_blamed_for_a_device_that_is_always_wrong(tmp_path: Path) -> None:
    first, *copies = rows_of(attention_csv(tmp_path), wrong_where("headNum", 2))
    assert {row.verdict for row in copies} == {"fail"}
    assert "fails with maskType=0, clampType=0 as well: no optimisation explains it" in first.sentence


def test_a_device_that_is_wrong_without_an_optimisation_is_red_too(tmp_path: Path) -> None:
    first, *copies = rows_of(attention_csv(tmp_path), wrong_where("clampType", 0))
    assert first.verdict == "pass"
    assert "passes as dumped, and not with clampType=0" in first.note
    assert [row.red for row in copies] == [False, True]


def test_what_the_device_cannot_compute_without_an_optimisation_is_skipped_with_the_reason(
    tmp_path: Path,
) -> None:
    def device(name: str, param: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        if not param["clampType"]:
            raise RuntimeError("error 561103")
        return compute(name, param, inputs)

    first, mask, clamp = rows_of(attention_csv(tmp_path), device)
    assert [first.verdict, mask.verdict] == ["pass", "pass"]
    assert clamp.skipped
    assert "not tried with clampType=0" in clamp.sentence
    assert "error 561103" in clamp.sentence


def test_operands_go_with_the_parameter_that_asks_for_them(tmp_path: Path) -> None:
    (entry,) = entries_of_csv(attention_csv(tmp_path), "one")
    case = prepare(entry)
    copies = {off.parameter: off.case for off in without_optimizations(case)}
    assert list(copies) == ["maskType", "clampType"]
    names = operator_of(case.name, copies["maskType"].param).inputs
    assert "mask" not in names
    assert copies["maskType"].inputs == (*case.inputs[:3], case.inputs[4])
    assert copies["clampType"].inputs == case.inputs
    assert len(copies["maskType"].declared_inputs) == 4


def test_other_operators_have_no_optimisations(tmp_path: Path) -> None:
    x = torch.ones(2)
    csv = write_case(StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}), tmp_path)
    assert [row.verdict for row in rows_of(csv, compute)] == ["pass"]


@pytest.mark.parametrize("operator", OFF_VALUES)
def test_the_table_names_parameters_that_the_operator_has(operator: str) -> None:
    defaults = operator_of(operator).defaults()
    assert {key: defaults[key] for key in OFF_VALUES[operator]} == OFF_VALUES[operator]


def test_there_is_nothing_to_run_again_without_a_device() -> None:
    with pytest.raises(SettingsError, match="needs an NPU; add -o acc_opcheck_backend"):
        OpcheckSettings.from_values({"opcheck": ("x.csv",), "opcheck_optimization": True})
