"""Cases that stand alone: what is exported is the case again, wherever the directory is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import DumpError
from acc_pytest.opcheck.case import Case
from acc_pytest.opcheck.prepare import prepare
from acc_pytest.opcheck.run import run_entry
from acc_pytest.opcheck.sources import entries_of_csv, entries_of_directory
from acc_pytest.opcheck.stand_alone import StandAlone, export_case, write_case
from acc_pytest.operators import compute

ROOT = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "opcheck"


def written(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    x = torch.arange(6.0).reshape(2, 3)
    case = StandAlone("TransposeOperation", {"perm": [1, 0]}, [x], [x.T], {}, ids="3_1_0")
    return write_case(case, tmp_path / "one"), x


def test_a_written_case_is_a_row_and_a_directory(tmp_path: Path) -> None:
    csv, x = written(tmp_path)
    header, row = (line.split("|") for line in csv.read_text().splitlines())
    cells = dict(zip(header, row))
    assert len(header) == 21
    assert cells["OpName"] == "TransposeOperation_3_1_0"
    assert json.loads(cells["OpParam"]) == {"perm": [1, 0]}
    assert (cells["InDType"], cells["InShape"], cells["OutShape"]) == ("float", "2,3", "3,2")
    assert cells["InTensorFile"] == "3_1_0_TransposeOperation/before/intensor0.bin"
    assert cells["OutTensorFile"] == "3_1_0_TransposeOperation/after/outtensor0.bin"
    assert cells["ExpectedError"] == "NO_ERROR"
    (entry,) = entries_of_csv(csv, "one")
    case = prepare(entry)
    assert case.ids == "3_1_0"
    assert case.inputs[0] is not None
    assert torch.equal(case.inputs[0].open(), x)


def test_it_is_found_after_it_was_moved_and_from_its_directory(tmp_path: Path) -> None:
    csv, _ = written(tmp_path)
    moved = tmp_path / "elsewhere" / "deep"
    shutil.move(csv.parent, moved)
    (entry,) = entries_of_csv(moved / csv.name, "moved")
    assert [row.verdict for row in run_entry(entry)] == ["pass"]
    (entry,) = entries_of_directory(moved)
    assert [row.verdict for row in run_entry(entry)] == ["pass"]


def test_further_cases_are_further_rows(tmp_path: Path) -> None:
    x = torch.ones(2)
    for ids in ("0", "1"):
        csv = write_case(StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}, ids), tmp_path)
    entries = list(entries_of_csv(csv, "both"))
    assert [entry.ids for entry in entries] == ["0", "1"]
    with pytest.raises(DumpError, match="1_RepeatOperation: exists already; export into another directory"):
        write_case(StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}, "1"), tmp_path)


def test_an_optional_input_that_is_not_given_is_empty(tmp_path: Path) -> None:
    query, cos = torch.ones(1, 4, dtype=torch.float16), torch.ones(1, 4)
    inputs = [query, query, cos, cos, None]
    outputs = compute("RopeOperation", {"rotaryCoeff": 2}, inputs)
    csv = write_case(StandAlone("RopeOperation", {"rotaryCoeff": 2}, inputs, outputs, {}), tmp_path)
    (entry,) = entries_of_csv(csv, "rope")
    assert [row.verdict for row in run_entry(entry)] == ["pass", "pass"]


def test_an_operator_between_ranks_does_not_stand_alone(tmp_path: Path) -> None:
    case = Case("AllReduceOperation", "AllReduceOperation_1", "1", {}, (), ())
    with pytest.raises(DumpError, match="AllReduceOperation_1: computes between ranks"):
        export_case(case, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not ROOT.is_dir(), reason="needs ../shared/conformance/opcheck")
def test_exported_cases_of_the_corpus_have_the_same_verdicts(tmp_path: Path) -> None:
    """Every ninth case: what was exported is judged as the dump was, outputs and notes alike."""
    csv = ROOT / "ait_dump" / "operation_io_tensors" / "4242" / "operation_tensors_0.csv"
    exported = 0
    for entry in list(entries_of_csv(csv, "corpus"))[::9]:
        try:
            case = prepare(entry)
            home = tmp_path / str(entry.number)
            (again,) = entries_of_csv(export_case(case, home), "again")
        except DumpError as error:
            assert "computes between ranks" in str(error)  # noqa: PT017
            continue
        before, after = run_entry(entry), run_entry(again)
        assert [(row.verdict, row.sentence) for row in after] == [
            (row.verdict, row.sentence) for row in before
        ]
        exported += all(row.verdict == "pass" for row in after)
    assert exported > 20


@pytest.mark.parametrize("ids", ["../../evil", "/tmp/evil", "..", "0/x", "a|b\nc", "\x00"])
def test_a_name_from_a_dump_leads_nowhere_else(tmp_path: Path, ids: str) -> None:
    """Ids are what an operation CSV has behind the class name: anything."""
    x = torch.ones(2)
    home = tmp_path / "deep" / "home"
    case = StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}, ids)
    csv = write_case(case, home)
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["home"]
    assert len(list(home.iterdir())) == 2
    (entry,) = entries_of_csv(csv, "one")
    assert [row.verdict for row in run_entry(entry)] == ["pass"]
