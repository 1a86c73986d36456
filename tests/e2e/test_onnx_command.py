"""`acc onnx`: reports and dumps to ONNX files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from acc_pytest import cli

onnx = pytest.importorskip("onnx", reason="the judge of these tests is the package onnx")

Capture = pytest.CaptureFixture[str]


def report(path: Path, name: str = "Norm_0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {"opName": name, "opType": "Norm", "inTensors": ["a"], "outTensors": ["b"], "param": {"k": 0}}
        )
    )
    return path


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two processes with reports of the same names, and JSON that is no report."""
    root = tmp_path / "msit_dump_20260102_030405"
    for pid in ("7", "8"):
        report(root / "layer" / pid / "Norm_0.json")
        report(root / "model" / pid / "Norm_0.json")
    parameters = root / "tensors" / "0_7" / "0" / "0_Norm" / "op_param.json"
    parameters.parent.mkdir(parents=True)
    parameters.write_text("{}")
    return root


def written(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.onnx"))


ALL = ["layer/7/Norm_0.onnx", "layer/8/Norm_0.onnx", "model/7/Norm_0.onnx", "model/8/Norm_0.onnx"]


def test_one_report_beside_itself_and_elsewhere(tmp_path: Path, capsys: Capture) -> None:
    path = report(tmp_path / "Norm_0.json")
    assert cli.main(["onnx", str(path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'Norm_0.onnx'}: 1 nodes, shapes of 0 of 2 tensors\n"
    assert cli.main(["onnx", str(path), "-o", str(tmp_path / "x.onnx")]) == 0
    (tmp_path / "there").mkdir()
    assert cli.main(["onnx", str(path), "-o", str(tmp_path / "there")]) == 0
    assert written(tmp_path) == ["Norm_0.onnx", "there/Norm_0.onnx", "x.onnx"]


def test_all_reports_of_a_dump_and_nothing_else(dump: Path, capsys: Capture) -> None:
    assert cli.main(["onnx", str(dump)]) == 0
    assert written(dump) == ALL
    assert len(capsys.readouterr().out.splitlines()) == 4
    for path in dump.rglob("*.onnx"):
        onnx.checker.check_model(str(path), full_check=True)


@pytest.mark.parametrize("place", ["layer", "layer/7"])
def test_a_place_inside_a_dump(dump: Path, place: str) -> None:
    assert cli.main(["onnx", str(dump / place)]) == 0
    assert set(written(dump)) == {path for path in ALL if path.startswith(place)}


def test_an_output_directory_gets_the_places_of_the_dump(dump: Path, tmp_path: Path) -> None:
    assert cli.main(["onnx", str(dump), "-o", str(tmp_path / "out")]) == 0
    assert written(tmp_path / "out") == ALL
    assert written(dump) == []


def test_two_reports_for_one_file_are_refused(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    paths = [str(dump / "layer" / pid / "Norm_0.json") for pid in ("7", "8")]
    assert cli.main(["onnx", *paths, "-o", str(tmp_path / "out")]) == 4
    assert "give the reports one by one" in capsys.readouterr().err
    assert cli.main(["onnx", paths[0], paths[0]]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_level_and_csv(tmp_path: Path, capsys: Capture) -> None:
    path = report(tmp_path / "Norm_0.json")
    table = tmp_path / "operation_tensors_0.csv"
    columns = (
        "CaseNum|CaseName|OpName|OpParam|InNum|InDType|InFormat|InShape|OutNum|OutDType|OutFormat|OutShape"
    )
    table.write_text(f"{columns}\n1|Norm_01|Norm_0|{{}}|1|bf16|nd|7,32|1|float|nd|7,32\n")
    assert cli.main(["onnx", str(path), "--level", "0", "--csv", str(table)]) == 0
    assert "1 nodes, shapes of 2 of 2 tensors" in capsys.readouterr().out
    assert cli.main(["onnx", str(path), "--level", "-2"]) == 4
    assert "got -2" in capsys.readouterr().err
    assert cli.main(["onnx", str(path), "--csv", "nowhere.csv"]) == 4
    assert "nowhere.csv: cannot be opened" in capsys.readouterr().err


def test_a_broken_report_costs_its_own_file_only(dump: Path, capsys: Capture) -> None:
    (dump / "layer" / "7" / "Norm_0.json").write_text('{"opName": ')
    assert cli.main(["onnx", str(dump)]) == 4
    said = capsys.readouterr()
    assert written(dump) == [path for path in ALL if path != "layer/7/Norm_0.onnx"]
    (line,) = said.err.splitlines()
    assert line.startswith("acc: error: ")
    assert "layer/7/Norm_0.json" in line


def test_paths_that_are_nothing(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["onnx", str(tmp_path / "gone")]) == 4
    assert "gone: no such file or directory" in capsys.readouterr().err
    assert cli.main(["onnx", str(tmp_path)]) == 4
    assert "holds no topology of an ATB dump" in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("")
    assert cli.main(["onnx", str(tmp_path / "a.csv")]) == 4
    assert "a.csv: is not a topology" in capsys.readouterr().err


PROBE = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "probe"


@pytest.mark.skipif(not PROBE.is_dir(), reason="conformance data (../shared/conformance) is not here")
def test_a_real_dump_of_the_newest_era(tmp_path: Path, capsys: Capture) -> None:
    (reports,) = PROBE.glob("D_e4/atb/atb_dump_data/info")
    shutil.copytree(reports, tmp_path / "atb_dump_data" / "info")
    assert cli.main(["onnx", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(written(tmp_path)) == 14
