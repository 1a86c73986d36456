"""`--acc-json`: the run as one strict JSON object, whoever writes it, and docs/json.md names its fields."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import acc_pytest
from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting import json_report
from acc_pytest.reporting.json_report import FORMAT, VERSION, JsonReport
from acc_pytest.reporting.view import Run as RunOf
from tests.opcheck.made import softmax_dump
from tests.reporting.html.made import made_row, result_of

from .conftest import QUICKER, TWO_WORKERS, Run

DOCUMENT = Path(__file__).parents[2] / "docs" / "json.md"


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def read(path: str | Path) -> dict[str, Any]:
    """The object, as a strict reader has it."""
    record = json.loads(Path(path).read_text(encoding="ascii"), parse_constant=refuse)
    assert (record["format"], record["version"]) == (FORMAT, VERSION)
    return record


def kinds(record: dict[str, Any]) -> list[str]:
    return [caveat["kind"] for caveat in record["caveats"]]


WRITTEN: list[dict[str, Any]] = []


@pytest.fixture
def run(acc: Run, faulty: DemoPaths) -> dict[str, Any]:
    """One run for all."""
    if not WRITTEN:
        assert acc(faulty, "--acc-json=run.json").ret == 1
        WRITTEN.append(read("run.json"))
    return WRITTEN[0]


def test_a_root_has_its_operators_numbers_files_and_cause(run: dict[str, Any], faulty: DemoPaths) -> None:
    assert (run["verdict"], run["exit_code"], run["complete"], run["caveats"]) == ("fail", 1, True, [])
    (root,) = run["roots"]
    assert root["name"] == faulty.faulty[0]
    assert run["counts"]["inherited"] == root["inherited"] > 0
    evidence = root["evidence"]
    assert (evidence["step"], evidence["layer"]) == (0, "layers.1")
    assert evidence["mine"]["op_type"] == "ElewiseOperation"
    assert evidence["golden"]["op_type"]
    assert "models.py:" in evidence["golden"]["source"]
    for side in ("golden", "mine"):
        (file,) = evidence[side]["files"]
        assert Path(file).is_file()
    broken = [check for check in evidence["checks"] if not check["passed"]]
    assert broken
    assert all(check["excess"] > 1 and check["measured"] != check["allowed"] for check in broken)
    cause = evidence["cause"]
    assert (cause["kind"], cause["local"]) == ("root", "wrong")
    assert run["codes"][cause["text"]][0] == cause["code"]
    assert run["failures"] == []
    assert run["summary"][-1] == f"verdict hash: {run['verdict_hash']}"


def test_the_command_of_a_root_is_that_of_its_failure(
    run: dict[str, Any], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root,) = run["roots"]
    (command,) = root["commands"]
    result = pytester.runpytest_inprocess(*QUICKER, *shlex.split(command)[1:], "--acc-json=again.json")
    assert f"re-run: {command}" in result.outlines
    again = read("again.json")
    assert [entry["name"] for entry in again["roots"]] == [root["name"]]
    assert kinds(again) == ["not_run"]


@pytest.mark.slow
def test_workers_write_the_same(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, "--acc-json=run.json", subprocess=True)
    serial = read("run.json")
    acc(faulty, "--acc-json=run.json", *TWO_WORKERS, subprocess=True)
    assert read("run.json") == serial


def test_python_the_command_and_merged_rows_write_the_same(
    run: dict[str, Any], acc: Run, faulty: DemoPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    result = acc_pytest.compare(faulty.golden, faulty.mine)
    assert result.to_json("api.json") == str(Path("api.json").absolute())
    main(["compare", str(faulty.golden), str(faulty.mine), "--json", "command.json"])
    acc(faulty, "--acc-rows=rows.jsonl")
    assert main(["report", "merge", "rows.jsonl", "--json", "merged.json"]) == 1
    for name in ("api", "command", "merged"):
        other = read(f"{name}.json")
        for field in ("verdict", "exit_code", "counts", "coverage", "caveats", "verdict_hash", "summary"):
            assert other[field] == run[field], (name, field)
        (root,), (expected,) = other["roots"], run["roots"]
        (command,) = root.pop("commands")
        assert command.endswith(root["test_id"])
        assert root.items() <= expected.items()


def test_rows_judged_again_write_the_same_roots(run: dict[str, Any], acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, "--acc-rows=rows.jsonl")
    rows = ["--acc-from-rows=rows.jsonl", "--acc-json=again.json"]
    pytest.main([*QUICKER, "-p", "acc", *rows])
    (root,), (expected,) = read("again.json")["roots"], run["roots"]
    assert (root["name"], root["inherited"]) == (expected["name"], expected["inherited"])
    assert "--acc-from-rows=rows.jsonl" in root["commands"][0]


def test_what_makes_green_weaker_is_said(acc: Run, clean: DemoPaths) -> None:
    assert acc(clean, "--acc-json=whole.json").ret == 0
    assert (read("whole.json")["verdict"], read("whole.json")["caveats"]) == ("pass", [])
    Path("loose.toml").write_text("[[threshold]]\nmax_absolute_error = 5\n")
    acc(clean, "--acc-json=part.json", "-k", "RmsNorm", "--acc-config=loose.toml")
    part = read("part.json")
    assert part["verdict"] == "pass"
    assert kinds(part) == ["not_run", "rule"]
    result = acc(DemoPaths(clean.golden, clean.golden), "--acc-json=same.json")
    assert (result.ret, kinds(read("same.json"))[0]) == (0, "limit")


def test_an_incomplete_dump_is_a_failure_without_a_root(acc: Run, copied: DemoPaths) -> None:
    next(Path(copied.golden).rglob("root.lm_head/output.pth")).unlink()
    assert acc(copied, "--acc-json=run.json").ret == 1
    record = read("run.json")
    assert record["roots"] == []
    (failure,) = record["failures"]
    assert (failure["name"], failure["evidence"]["verdict"]) == ("root.lm_head", "incomplete")
    assert kinds(record) == ["limit"]


@pytest.mark.parametrize("wrong", [False, True])
def test_operators_that_fail_are_failures(pytester: pytest.Pytester, wrong: bool) -> None:
    made = softmax_dump(pytester.path, wrong=wrong)
    pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={made.csv}", "--acc-json=run.json")
    record = read("run.json")
    assert (record["title"], record["verdict"]) == ("opcheck", "fail" if wrong else "pass")
    assert (record["coverage"], record["roots"], len(record["failures"])) == (None, [], int(wrong))
    for failure in record["failures"]:
        assert failure["evidence"]["mine"]["op_type"] == "SoftmaxOperation"
        (command,) = failure["commands"]
        result = pytester.runpytest_inprocess(*QUICKER, *shlex.split(command)[1:])
        result.assert_outcomes(failed=1)


def test_tests_of_peoples_own_are_failures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_it(acc_compare):
            acc_compare(torch.ones(4), torch.tensor([1.0, 2.0, float("nan"), float("inf")]))
        """
    )
    pytester.runpytest_inprocess(*QUICKER, "--acc-json=run.json")
    (failure,) = read("run.json")["failures"]
    assert failure["test_id"].endswith("::test_it")
    assert failure["commands"] == []
    assert failure["evidence"]["mine"]["max"] == "NaN" or failure["evidence"]["counts"]["my_nan"] == 1


def test_nothing_compared_is_a_verdict(pytester: pytest.Pytester) -> None:
    for side in ("golden", "mine"):
        torch.save({"x": torch.ones(2 + (side == "mine"))}, f"{side}.pt")
    words = ("--acc-golden=golden.pt", "--acc-mine=mine.pt", "--acc-json=run.json")
    result = pytester.runpytest_inprocess(*QUICKER, *words)
    record = read("run.json")
    assert record["exit_code"] == int(result.ret)
    assert record["verdict"] in ("fail", "nothing")
    assert record["counts"]["pass"] == 0


def test_values_that_json_lacks_are_texts(tmp_path: Path) -> None:
    metrics = {"cosine_similarity": float("nan"), "max_absolute_error": float("inf")}
    row = made_row(1, share=float("inf"), metrics=metrics, custom={"own": "NaN"})
    report = JsonReport(str(tmp_path / "run.json"))
    report.begin(RunOf())
    report.add(row)
    report.finish(result_of([row]))
    report.land()
    (failure,) = read(tmp_path / "run.json")["failures"]
    evidence = failure["evidence"]
    assert evidence["metrics"] == {"cosine_similarity": "NaN", "max_absolute_error": "Infinity"}
    assert evidence["custom"] == {"own": "'NaN"}
    assert evidence["checks"][0]["measured"] == "Infinity"


def test_of_very_many_failures_the_first_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_report, "MOST", 5)
    rows = [made_row(number, share=2) for number in range(40)]
    report = JsonReport(str(tmp_path / "run.json"))
    report.begin(RunOf())
    for row in reversed(rows):
        report.add(row)
    report.finish(result_of(rows))
    report.land()
    record = read(tmp_path / "run.json")
    assert [failure["evidence"]["number"] for failure in record["failures"]] == [0, 1, 2, 3, 4]
    assert record["failures_left_out"] == 35


def test_a_place_that_cannot_be_written_is_a_usage_error(acc: Run, clean: DemoPaths) -> None:
    Path("file").write_text("")
    result = acc(clean, "--acc-json=file/run.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--acc-json */file/run.json: cannot be written: *"])


def test_the_document_names_every_field_and_kind(run: dict[str, Any]) -> None:
    named = set(re.findall(r"`(\w+)`", DOCUMENT.read_text(encoding="utf-8")))
    (root,) = run["roots"]
    evidence = root["evidence"]
    records = [
        run,
        root,
        evidence,
        evidence["mine"],
        evidence["cause"],
        evidence["worst"],
        *evidence["checks"],
    ]
    records += [run["coverage"], run["coverage"]["mine"], run["counts"], run["tests"]]
    assert {name for record in records for name in record} - named == set()
    source = Path(json_report.__file__).read_text(encoding="utf-8")
    source += Path(json_report.__file__).with_name("summary.py").read_text(encoding="utf-8")
    assert set(re.findall(r'yield \(?\s*"(\w+)",', source)) - named == set()
