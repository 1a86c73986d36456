"""acc_unmapped: nodes that found no partner are tests that say why."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import Run, ids, read_rows

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
