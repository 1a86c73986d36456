"""A mode that is one module has all that modes have: ids, selection, shards, workers, reports."""

from __future__ import annotations

import pytest

import acc_pytest.running.opening

from .conftest import QUICKER, read_rows

COUNTING = """
from dataclasses import dataclass
from typing import ClassVar

import acc_pytest.running.opening
from acc_pytest import options
from acc_pytest.errors import DumpError
from acc_pytest.running.mode import GeneratedTest, Mode
from acc_pytest.reporting.row import Row
from acc_pytest.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class CountingTest(GeneratedTest):
    headline: ClassVar[str] = "counting"

    def rows(self, item):
        if self.number == 3:
            raise DumpError("three is lost")
        return [Row(item.nodeid, "pass", "counted", number=self.number)]

    def lost_row(self, reason):
        return Row(self.node_id, "fail", f"not counted: {reason}", number=self.number)


@dataclass(eq=False)
class CountingMode(Mode):
    doing: ClassVar[str] = "counting"
    root: ClassVar[str] = "count"
    tests = property(lambda self: tuple(CountingTest(self, ("count", "to", str(n)), n) for n in range(4)))

    @classmethod
    def opened(cls, given):
        return cls(Settings.from_values(options.of(given)), given)

    def header(self):
        return ["acc counting"]


acc_pytest.running.opening.MODES = (CountingMode,)
"""
REPORT = ("--acc-output=out", "--acc-csv=acc.csv")


@pytest.fixture
def counting(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setattr(acc_pytest.running.opening, "MODES", acc_pytest.running.opening.MODES)
    pytester.makeini("[pytest]")
    pytester.makepyfile(counting=COUNTING)
    pytester.makeconftest("import counting")
    return pytester


def verdicts() -> dict[str, str]:
    return {row["test_id"]: row["verdict"] for row in read_rows()}


def test_every_test_has_its_id_and_its_row(counting: pytest.Pytester) -> None:
    result = counting.runpytest_inprocess(*QUICKER, *REPORT)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "acc counting",
            "three is lost",
            "re-run: pytest --acc-output=out count::to::3",
            "first failing: count::to::3: not counted: three is lost",
            "FAILED count::to::3*",
        ]
    )
    assert verdicts() == {f"count::to::{n}": "fail" if n == 3 else "pass" for n in range(4)}


def test_an_id_on_the_command_line_selects(counting: pytest.Pytester) -> None:
    counting.runpytest_inprocess(*QUICKER, *REPORT, "count::to::1").assert_outcomes(passed=1)
    wrong = counting.runpytest_inprocess(*QUICKER, *REPORT, "count::to::9")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["*no generated test matches 'count::to::9'; nearest: count::to::*"])


def test_shards_share_it_out(counting: pytest.Pytester) -> None:
    found: list[str] = []
    for shard in ("1/2", "2/2"):
        result = counting.runpytest_inprocess(*QUICKER, *REPORT, f"--acc-shard={shard}")
        result.stdout.fnmatch_lines([f"acc shard: {shard[0]} of 2, 2 of 4 generated tests"])
        found += verdicts()
    assert sorted(found) == [f"count::to::{n}" for n in range(4)]


@pytest.mark.usefixtures("python_with_torch")
def test_workers_run_it(counting: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = counting.runpytest_subprocess(*QUICKER, *REPORT, "-n", "1")
    result.assert_outcomes(passed=3, failed=1)
    assert verdicts() == {f"count::to::{n}": "fail" if n == 3 else "pass" for n in range(4)}
