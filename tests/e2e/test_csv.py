"""--acc-output and --acc-csv: the report file, complete and in the old tool's columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import QUICKER, Run, dump_options, read_rows

OLD = [
    "token_id",
    "data_id",
    "golden_data_path",
    "golden_op_type",
    "golden_dtype",
    "golden_shape",
    "golden_max_value",
    "golden_min_value",
    "golden_mean_value",
    "my_data_path",
    "my_op_type",
    "my_dtype",
    "my_shape",
    "my_max_value",
    "my_min_value",
    "my_mean_value",
    "cosine_similarity",
    "max_relative_error",
    "mean_relative_error",
    "max_absolute_error",
    "mean_absolute_error",
    "kl_divergence",
    "relative_euclidean_distance",
    "cmp_fail_reason",
]
"""compare.md 9.2: the 24 main columns in order."""


def test_the_old_columns_come_first_and_in_order(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, "-k", "layers.1")
    columns = list(read_rows()[0])
    assert columns[:24] == OLD
    assert {"verdict", "layer", "policy", "my_name", "worst_index", "thresholds", "test_id"} <= set(
        columns[24:]
    )


def test_a_row_holds_what_the_old_tool_said(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty)
    row = next(row for row in read_rows() if row["my_name"] == faulty.faulty[0])
    assert row["verdict"] == "fail"
    assert row["golden_dtype"] == "torch.float32"
    assert row["my_dtype"] == "torch.float16"
    assert re.fullmatch(r"\[\d+(, \d+)*\]", row["my_shape"])
    assert Path(row["my_data_path"]).is_absolute()
    assert Path(row["my_data_path"]).is_file()
    assert float(row["golden_max_value"]) >= float(row["golden_mean_value"]) >= float(row["golden_min_value"])
    assert float(row["relative_euclidean_distance"]) > 0
    assert row["cmp_fail_reason"]
    assert row["token_id"] == "0"


def test_the_report_is_complete(acc: Run, partly: DemoPaths) -> None:
    outcomes = acc(partly).parseoutcomes()
    rows = read_rows()
    verdicts = [row["verdict"] for row in rows]
    assert verdicts.count("fail") == outcomes["failed"]
    assert verdicts.count("pass") == outcomes["passed"]
    assert verdicts.count("unmapped") > 0
    numbers = sorted(int(row["data_id"]) for row in rows)
    assert numbers == list(range(len(rows)))


def test_unmapped_nodes_are_written_before_the_first_test(acc: Run, partly: DemoPaths) -> None:
    acc(partly)
    verdicts = [row["verdict"] == "unmapped" for row in read_rows()]
    assert any(verdicts)
    assert verdicts == sorted(verdicts, reverse=True)


def test_the_default_name_has_a_utc_timestamp_and_nothing_is_overwritten(
    pytester: pytest.Pytester, clean: DemoPaths
) -> None:
    pytester.makeini("[pytest]")
    for _ in range(2):
        pytester.runpytest_inprocess(*QUICKER, *dump_options(clean), "--acc-output=new/dir", "-k", "RmsNorm")
    names = sorted(path.name for path in Path("new/dir").iterdir())
    assert len(names) == 2
    assert all(re.fullmatch(r"ait_cmp_report_\d{14}(_\d)?\.csv", name) for name in names)


def test_the_summary_says_where_the_report_is(acc: Run, clean: DemoPaths) -> None:
    acc(clean, "-k", "RmsNorm").stdout.fnmatch_lines(["report: out/acc.csv"])


def test_collect_only_writes_no_report(acc: Run, clean: DemoPaths) -> None:
    acc(clean, "--co")
    assert not Path("out").exists()


def test_a_place_that_cannot_be_written_is_one_error(acc: Run, clean: DemoPaths) -> None:
    Path("out").write_text("a file where the directory should be")
    result = acc(clean)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --acc-csv */out/acc.csv: cannot be written: Not a directory"])


def test_ctrl_c_keeps_the_rows_that_were_written(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        ran = []

        def pytest_runtest_teardown(item):
            ran.append(item)
            if len(ran) == 5:
                raise KeyboardInterrupt
        """
    )
    result = acc(clean, subprocess=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert sum(row["verdict"] == "pass" for row in read_rows()) == 5
    result.stdout.fnmatch_lines(["verdicts: 5 pass; the run is incomplete"])


def test_a_pair_whose_setup_fails_has_a_row_too(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import pytest

        def pytest_runtest_setup(item):
            if item.name.startswith("RmsNorm"):
                pytest.fail("no room on the device", pytrace=False)
        """
    )
    acc(clean, "-k", "step0 and RmsNorm")
    found = [row["cmp_fail_reason"] for row in read_rows() if row["verdict"] == "incomparable"]
    assert found
    assert set(found) == {"not compared: no room on the device"}


def test_pandas_reads_numbers_as_numbers_and_missing_ones_as_missing(acc: Run, partly: DemoPaths) -> None:
    pandas = pytest.importorskip("pandas")
    acc(partly, "-k", "RmsNorm")
    frame = pandas.read_csv("out/acc.csv")
    compared, unmapped = frame[frame.verdict == "pass"], frame[frame.verdict == "unmapped"]
    assert len(compared)
    assert (compared.cosine_similarity > 0.999).all()
    assert (compared.max_absolute_error >= 0).all()
    assert len(unmapped)
    assert unmapped.cosine_similarity.isna().all()
