"""Verdicts, exit codes, --lf, -x, and what happens to a pair whose file is broken."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest

import acc_pytest.comparison.compare
import acc_pytest.gate.opening
import acc_pytest.mapping.planner
import acc_pytest.reporting.csv_report
from acc_pytest import cli, errors
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.mapping.pair import Pair
from acc_pytest.mapping.reconcile import Opened, open_pair
from acc_pytest.reporting.failure_text import LINES
from acc_pytest.reporting.row import Row
from tests.slow import slow

from .conftest import QUICKER, Run, ids, read_rows


def spoil(paths: DemoPaths, operator: str, content: bytes) -> Path:
    """Put `content` into the output of one operator at the first step."""
    (file,) = sorted(paths.mine.glob(f"*/tensors/*/1/*/{operator}/after/outtensor0.bin"))[:1]
    file.write_bytes(content)
    return file


def test_clean_dumps_pass(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean)
    assert result.ret == 0
    assert {row["verdict"] for row in read_rows()} == {"pass"}


def test_a_fault_fails_and_the_summary_names_where_it_starts(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (operator,) = faulty.faulty[:1]
    result.stdout.fnmatch_lines([f"root cause: {operator} (ElewiseOperation) step 0 layers.1: *"])


def test_x_stops_at_the_operator_where_the_error_starts(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, "-x", "-rf")
    result.assert_outcomes(failed=1, passed=len(read_rows()) - 1)
    result.stdout.fnmatch_lines([f"FAILED msit_dump::step0::layers.1::{faulty.faulty[0]} - *"])


def test_lf_runs_what_failed(acc: Run, faulty: DemoPaths) -> None:
    failed = acc(faulty).parseoutcomes()["failed"]
    again = acc(faulty, "--lf").parseoutcomes()
    assert again["failed"] == failed
    assert "passed" not in again


def test_ff_runs_what_failed_first(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty)
    assert ids(acc(faulty, "--ff", "--co", "-q"))[0].endswith(faulty.faulty[0])


def test_a_cut_file_fails_its_own_test_with_one_reason(acc: Run, copied: DemoPaths) -> None:
    file = spoil(copied, "0_GatherOperation", b"$Version=1.0\ndims=")
    result = acc(copied, "--tb=short")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines([f"{file}: *"])
    assert "Traceback" not in result.stdout.str()
    (row,) = [row for row in read_rows() if row["verdict"] == "incomparable"]
    assert row["cmp_fail_reason"].startswith(str(file))
    assert row["my_data_path"] == str(file)


def test_a_missing_file_fails_its_own_test(acc: Run, copied: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os

        def pytest_collection_finish(session):
            for item in session.items[:1]:
                os.remove(item.test.pair.mine.refs[0].path)
        """
    )
    outcomes = acc(copied, "-k", "step0").parseoutcomes()
    assert outcomes["failed"] == 1
    assert outcomes["passed"] > 10


def test_descriptions_are_skipped_and_a_run_that_compares_nothing_is_not_green(
    acc: Run, described: DemoPaths
) -> None:
    result = acc(described)
    assert set(result.parseoutcomes()) == {"skipped"}
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["nothing was compared: *"])
    assert all(row["cmp_fail_reason"] for row in read_rows())


def test_nothing_left_to_run_is_not_green(acc: Run, clean: DemoPaths) -> None:
    assert acc(clean, "-k", "no_such_operator").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_coverage_below_the_floor_fails_a_run_of_passing_tests(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, "--acc-min-coverage=1", "--acc-level=layer", "-k", "step0")
    assert result.ret == 0, "all golden nodes of a clean pair are mapped"
    result.stdout.fnmatch_lines(["coverage: golden * floor 100% reached"])


def test_coverage_below_the_floor_says_so(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import dataclasses
        import acc_pytest.session.planning as planning

        original = planning.make_plan
        planning.make_plan = lambda settings: dataclasses.replace(
            original(settings), golden_mapped=10, golden_total=50, mine_mapped=10, mine_total=40
        )
        """
    )
    result = acc(clean, "--acc-min-coverage=0.3")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["coverage: * floor 30% NOT reached: 25.0% is below it, so the run fails"])
    assert acc(clean, "--acc-min-coverage=0.3", "--co").ret == 0


def test_no_pairs_at_all_is_not_green_and_leaves_the_unmapped_nodes(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import dataclasses
        import acc_pytest.session.planning as planning
        from acc_pytest.mapping.pair import Unmapped

        original = planning.make_plan
        alone = (Unmapped("golden", 0, "root.x", "x", "Linear", "no partner", "y, but its shape differs"),)
        planning.make_plan = lambda settings: dataclasses.replace(
            original(settings), pairs=(), unmapped=alone, golden_mapped=0, mine_mapped=0
        )
        """
    )
    assert acc(clean).ret == pytest.ExitCode.NO_TESTS_COLLECTED
    (row,) = read_rows()
    assert row["verdict"] == "unmapped"
    assert row["cmp_fail_reason"] == ("unmapped golden node: no partner; nearest: y, but its shape differs")


# Paths that are no dumps: one clear error, exit code 4, no report.


@pytest.mark.parametrize("side", ["golden", "mine"])
@pytest.mark.parametrize("what", ["missing", "empty", "text"])
def test_a_path_that_is_no_dump(pytester: pytest.Pytester, clean: DemoPaths, side: str, what: str) -> None:
    wrong = pytester.path / "wrong"
    if what == "empty":
        wrong.mkdir()
    elif what == "text":
        wrong.write_text("not a tensor")
    paths = {"golden": clean.golden, "mine": clean.mine, side: wrong}
    result = pytester.runpytest_inprocess(*QUICKER, *(f"--acc-{name}={path}" for name, path in paths.items()))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert len(errors) == 1
    assert str(wrong) in errors[0]
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert not list(pytester.path.glob("*.csv"))


def test_a_topology_that_is_cut(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    import shutil

    root = pytester.path / "copy"
    shutil.copytree(clean.golden.parent, root)
    (tree,) = root.glob("golden/**/model_tree.json")
    tree.write_text(tree.read_text()[:100])
    result = acc(DemoPaths(root / "golden", root / "mine"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {tree}: *"])
    assert not Path("out").exists()


def test_a_kernel_that_there_is_not_is_one_error_ahead_of_the_first_test(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACC_KERNEL", "fast")
    result = acc(clean, "-q")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ACC_KERNEL=fast: it must be one of auto, native, python"])


# Mistakes of our own on strange input: one sentence each, never pytest's internal error.


def _fails(*_: object, **__: object) -> NoReturn:
    raise IndexError("no such thing")


@pytest.fixture
def broken_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acc_pytest.mapping.planner, "_mapped", _fails)
    monkeypatch.setattr(errors, "_with_traceback", False)


@pytest.mark.usefixtures("broken_plan")
@pytest.mark.parametrize("debug", [False, True])
def test_a_plan_that_fails_is_one_line_that_names_both_dumps(acc: Run, clean: DemoPaths, debug: bool) -> None:
    result = acc(clean, *(["--acc-debug"] if debug else []))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert "IndexError: no such thing" in line
    for path in (clean.golden, clean.mine):
        assert str(path) in line
    assert ("Traceback" in result.stderr.str()) is debug


@pytest.mark.usefixtures("broken_plan")
@pytest.mark.parametrize("debug", [False, True])
def test_a_command_that_fails_is_one_line(
    clean: DemoPaths, capsys: pytest.CaptureFixture[str], debug: bool
) -> None:
    words = ["map", "-gp", str(clean.golden), "-mp", str(clean.mine), *(["--acc-debug"] if debug else [])]
    assert cli.main(words) == 4
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("acc: error: planning ")
    assert ("Traceback" in said) is debug


def test_a_pair_that_fails_is_one_red_test_among_others(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Pair] = []

    def open_broken(pair: Pair) -> Opened:
        seen.append(pair)
        return _fails() if len(seen) == 3 else open_pair(pair)

    monkeypatch.setattr(acc_pytest.comparison.compare, "open_pair", open_broken)
    result = acc(clean)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1, passed=len(seen) - 1)
    result.stdout.fnmatch_lines(["*comparing golden and mine: IndexError: no such thing (pass --acc-debug *"])


def test_a_report_that_fails_is_left_out_and_said_once(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(self: object, row: Row) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(acc_pytest.reporting.csv_report.CsvReport, "add", add)
    result = acc(clean, "--acc-rows=rows.jsonl")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes().keys() == {"passed"}
    (line,) = [line for line in result.outlines if "No space left" in line]
    assert line.startswith("a report could not be written: ")
    assert "acc.csv" in line
    assert any(line.startswith("report: ") and "rows.jsonl" in line for line in result.outlines)


def test_gates_that_fail_end_the_run_before_its_first_test(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acc_pytest.gate.opening, "_baseline", _fails)
    result = acc(clean)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line.startswith("ERROR: opening baseline and known")]


# acc_unmapped: nodes that found no partner are tests that say why.


ROOT = "msit_dump::step0::unmapped::golden.root"
"""The model of golden, whose only output `partly` has no partner in mine."""


def unmapped() -> list[dict[str, str]]:
    return [row for row in read_rows() if row["verdict"] == "unmapped"]


def test_unmapped_nodes_are_skipped_tests_with_the_reason_of_their_rows(acc: Run, partly: DemoPaths) -> None:
    result = acc(partly, "-rs", "--junitxml=j.xml")
    rows = unmapped()
    assert rows
    assert result.parseoutcomes()["skipped"] == len(rows)
    cases = {
        f"{case.get('classname')}.{case.get('name')}": case
        for case in ElementTree.parse("j.xml").getroot().iter("testcase")
    }
    for row in rows:
        skip = cases[row["test_id"].replace("::", ".")].find("skipped")
        assert skip is not None
        assert skip.get("message") == row["cmp_fail_reason"]
    assert Counter(row["test_id"] for row in read_rows()).most_common(1)[0][1] == 1


def test_they_can_be_selected_and_come_after_the_pairs_of_their_step(acc: Run, partly: DemoPaths) -> None:
    everything = ids(acc(partly, "--co", "-q"))
    alone = ids(acc(partly, "--co", "-q", "-m", "acc_unmapped"))
    assert alone == [one for one in everything if "::unmapped::" in one] == everything[-len(alone) :]
    assert ROOT in alone
    assert ids(acc(partly, "--co", "-q", "-m", "acc_unmapped(side='golden')")) == [ROOT]
    assert ids(acc(partly, "--co", "-q", "-k", "golden.root")) == [ROOT]
    assert ids(acc(partly, "--co", "-q", ROOT)) == [ROOT]
    assert ids(acc(partly, "--co", "-q", "msit_dump::step0::unmapped")) == alone
    assert not set(alone) & set(ids(acc(partly, "--co", "-q", "-m", "not acc_unmapped")))


def test_they_fail_where_all_must_be_mapped(acc: Run, partly: DemoPaths) -> None:
    everything = read_after(acc, partly)
    result = acc(partly, "-oacc_unmapped=fail", "-m", "acc_unmapped", "--acc-min-coverage=0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes()["failed"] == len(everything)
    assert unmapped() == everything
    result.stdout.fnmatch_lines(["unmapped golden node: no tensor of the other side *", "map it with *"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_node_that_was_not_asked_for_does_not_fail_but_keeps_its_row(acc: Run, partly: DemoPaths) -> None:
    everything = read_after(acc, partly)
    result = acc(partly, "-oacc_unmapped=fail", ROOT)
    assert result.parseoutcomes() == {"failed": 1}
    assert sorted(row["test_id"] for row in unmapped()) == sorted(row["test_id"] for row in everything)
    result.stdout.fnmatch_lines(["first failing: root (*"])
    assert acc(partly, "-oacc_unmapped=fail", "-k", "RmsNorm and layers").ret == pytest.ExitCode.OK
    assert len(unmapped()) == len(everything)


def test_ignored_they_are_rows_only(acc: Run, partly: DemoPaths) -> None:
    everything = read_after(acc, partly)
    result = acc(partly, "-oacc_unmapped=ignore")
    assert "skipped" not in result.parseoutcomes()
    assert [{**row, "test_id": ""} for row in everything] == unmapped()


def test_only_unmapped_nodes_are_no_success(acc: Run, partly: DemoPaths) -> None:
    """A run that compares nothing is not green, also where its tests are all skips."""
    assert acc(partly, "-m", "acc_unmapped").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert acc(partly, "-k", "golden.root or RmsNorm and layers").ret == pytest.ExitCode.OK


def test_the_floor_of_coverage_holds_with_them(acc: Run, partly: DemoPaths) -> None:
    for outcome in ("skip", "ignore"):
        words = (f"-oacc_unmapped={outcome}", "-k", "RmsNorm and layers")
        assert acc(partly, *words).ret == pytest.ExitCode.OK
        below = acc(partly, *words, "--acc-min-coverage=1")
        assert below.ret == pytest.ExitCode.TESTS_FAILED
        below.stdout.fnmatch_lines(["coverage: *NOT reached*"])


def test_a_misspelt_outcome_is_a_usage_error(acc: Run, partly: DemoPaths) -> None:
    result = acc(partly, "-oacc_unmapped=skipp")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def read_after(acc: Run, paths: DemoPaths) -> list[dict[str, str]]:
    """The rows of unmapped nodes of a usual run."""
    acc(paths, "-m", "acc_unmapped")
    return unmapped()


DEFAULT = "-overbosity_assertions=0"


@pytest.mark.parametrize(
    ("words", "least", "most"),
    [
        ((DEFAULT,), 5, LINES),
        (("-v", "-overbosity_assertions=auto", "--tb=short"), 5, LINES),
        slow(("-v", "-overbosity_assertions=auto"), LINES + 1, 80),
        slow((DEFAULT, "--tb=long"), LINES + 1, 80),
        ((DEFAULT, "--tb=line"), 1, 1),
    ],
)
def test_a_failure_is_twelve_lines_and_tb_is_obeyed(
    acc: Run,
    faulty: DemoPaths,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    least: int,
    most: int,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = acc(faulty, "-x", *words).outlines
    begin = next(number for number, line in enumerate(lines) if " FAILURES " in line)
    end = next(number for number, line in enumerate(lines) if " acc-pytest " in line)
    failure = [line for line in lines[begin + 1 : end] if not line.startswith("_____")]
    assert least <= len(failure) <= most, failure


def test_no_failure_is_shown_with_tb_no(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, "-x", "--tb=no").stdout.no_fnmatch_line("*FAILURES*")
