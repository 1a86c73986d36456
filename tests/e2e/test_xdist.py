"""-n: the same verdicts and report as without, the plan sent to workers (test_baseline.py: any --dist)."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.rows_file import read_rows as read_stored

from .conftest import TWO_WORKERS, Run, read_rows


def report(path: str = "out/acc.csv") -> list[list[str]]:
    """The report's lines in an order that does not depend on who finished first."""
    with open(path, newline="", encoding="utf-8") as file:
        return sorted(csv.reader(file))


def test_two_workers_give_the_verdicts_and_the_report_of_one_process(
    acc: Run, faulty: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import os
        from pathlib import Path
        import acc_pytest.session.planning as planning

        original = planning.make_plan

        def noted(settings):
            Path(f"planned.{os.environ.get('PYTEST_XDIST_WORKER', 'controller')}").touch()
            return original(settings)

        planning.make_plan = noted
        """
    )
    alone = acc(faulty)
    expected = report()
    both = acc(faulty, *TWO_WORKERS, "--junitxml=j.xml", "-rf", subprocess=True)
    assert both.parseoutcomes() == {**alone.parseoutcomes(), **both.parseoutcomes()}
    assert alone.ret == both.ret == pytest.ExitCode.TESTS_FAILED
    assert report() == expected
    assert [path.name for path in pytester.path.glob("planned.*")] == ["planned.controller"]
    # The verdict sentence survives the trip, although xdist makes plain text of failures.
    both.stdout.fnmatch_lines([f"FAILED msit_dump::step0::layers.1::{faulty.faulty[0]} - *"])
    assert 'name="threshold.relative_euclidean_distance"' in Path("j.xml").read_text()


def test_a_worker_that_dies_leaves_a_row_for_the_pair_it_was_at(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import os

        def pytest_runtest_call(item):
            if item.name == "GatherOperation_0_0":
                os._exit(1)
        """
    )
    chosen = ("msit_dump::step0", "-k", "GatherOperation_0_0 or RmsNorm")
    acc(clean, "-n1", *chosen, subprocess=True)
    rows = [row for row in read_rows() if row["verdict"] != "unmapped"]
    assert {row["token_id"] for row in rows} == {"0"}
    assert len({row["test_id"] for row in rows}) == len(rows) > 2
    (row,) = [row for row in rows if row["verdict"] == "incomparable"]
    assert row["my_name"] == "GatherOperation_0_0"
    assert row["cmp_fail_reason"].startswith("not compared: ")
    assert "crashed" in row["cmp_fail_reason"]


@pytest.mark.parametrize("restarts", [0, 9])
def test_a_worker_that_dies_after_its_comparison_makes_the_run_incomplete(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester, restarts: int
) -> None:
    """Its row is there and passes; without another worker the tests after it have no row at all."""
    pytester.makeconftest(
        """
        import os

        def pytest_runtest_teardown(item):
            if item.name == "GatherOperation_0_0":
                os._exit(1)
        """
    )
    words = ("-n1", f"--max-worker-restart={restarts}", "msit_dump::step0", "-k", "Gather or RmsNorm")
    result = acc(clean, *words, "--acc-rows=out/r.jsonl", subprocess=True)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    compared = [row for row in read_rows() if row["verdict"] != "unmapped"]
    assert {row["verdict"] for row in compared} == {"pass"}
    result.stdout.fnmatch_lines([f"verdicts: {len(compared)} pass*; the run is incomplete"])
    (line,) = (line for line in result.outlines if line.startswith("incomplete: "))
    counts = re.fullmatch(
        r"incomplete: (\d+) of (\d+) tests did not come to their end, the first (\S+)", line
    )
    assert counts is not None
    assert counts[3] == "msit_dump::step0::model::GatherOperation_0_0"
    assert (counts[1] == "1") is bool(restarts)
    assert len(compared) == int(counts[2]) - int(counts[1]) + 1
    assert not read_stored("out/r.jsonl").complete


def test_workers_that_die_before_they_know_their_tests_leave_no_whole_file(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    """Else an empty shard would make those beside it green."""
    pytester.makeconftest(
        """
        import os

        def pytest_collection_modifyitems(config):
            if hasattr(config, "workerinput"):
                os._exit(1)
        """
    )
    words = ("-n1", "--max-worker-restart=0", "--acc-shard=1/2", "--acc-rows=out/r.jsonl")
    result = acc(clean, *words, subprocess=True)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["verdicts: none; the run is incomplete", "incomplete: no worker collected the tests"]
    )
    assert not read_stored("out/r.jsonl").complete
