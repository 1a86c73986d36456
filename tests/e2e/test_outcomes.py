"""Verdicts, exit codes, --lf, -x, and what happens to a pair whose file is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import Run, ids, read_rows


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
