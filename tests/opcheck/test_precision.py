"""`acc_precision_mode`: float tensors are read as one type, whole numbers as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acc_pytest.opcheck.case import in_precision
from acc_pytest.opcheck.golden import Golden
from acc_pytest.opcheck.prepare import prepare
from acc_pytest.opcheck.run import run_entry
from acc_pytest.opcheck.settings import OpcheckSettings
from acc_pytest.opcheck.sources import entries_of_csv
from acc_pytest.opcheck.stand_alone import StandAlone, write_case

X = torch.linspace(-3, 3, 12).reshape(3, 4).bfloat16()
PLACES = torch.tensor([2, 0], dtype=torch.int64)


def softmax(tmp_path: Path, y: torch.Tensor) -> Path:
    return write_case(StandAlone("SoftmaxOperation", {"axes": [1]}, [X], [y], {}), tmp_path)


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16)])
def test_inputs_and_outputs_are_read_as_the_type(tmp_path: Path, mode: str, dtype: torch.dtype) -> None:
    (entry,) = entries_of_csv(softmax(tmp_path, X.float().softmax(1).bfloat16()), "one")
    golden = Golden(replace(prepare(entry), precision=mode))
    assert golden.results[0].dtype == dtype
    (expected,) = golden.expected()
    assert expected.mine is not None
    assert expected.mine.dtype == dtype
    assert torch.equal(golden.results[0], X.to(dtype).float().softmax(1).to(dtype))


def test_whole_numbers_and_double_stay_what_they_are(tmp_path: Path) -> None:
    wide = torch.ones(3, dtype=torch.float64)
    inputs: Sequence[torch.Tensor] = [X, PLACES, wide]
    csv = write_case(StandAlone("GatherOperation", {"axis": 0}, inputs, [X[PLACES]], {}), tmp_path)
    (entry,) = entries_of_csv(csv, "one")
    case = in_precision(replace(prepare(entry), precision="fp32"))
    opened = [ref.open() for ref in case.inputs if ref is not None]
    assert [one.dtype for one in opened] == [torch.float32, torch.int64, torch.float64]
    headers = [ref.header() for ref in case.inputs if ref is not None]
    assert [header.dtype.name for header in headers] == ["float32", "int64", "float64"]


def test_a_result_of_float32_precision_is_asked_for_in_float32_alone(tmp_path: Path) -> None:
    """bfloat16 rounds by 2^-9: within the bounds of bfloat16, and far outside those of float32."""
    (entry,) = entries_of_csv(softmax(tmp_path, X.float().softmax(1).bfloat16()), "one")
    assert [row.verdict for row in run_entry(entry)] == ["pass"]
    (row,) = run_entry(entry, OpcheckSettings((), precision="fp32"))
    assert row.verdict == "fail"
    assert row.golden.dtype == "torch.float32"
