"""Cells, file names, and rows that are on disk at once."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.outputs import Growing
from acc_pytest.reporting.csv_report import OLD_COLUMNS, OUR_COLUMNS, CsvReport, new_report, plain_text, text
from acc_pytest.reporting.row import Row, RowSide, WorstElement
from acc_pytest.reporting.view import Run

DANGEROUS = "=+-@"


def written(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def begun(begin_file: Callable[[], Growing], custom: Sequence[str] = ()) -> CsvReport:
    report = CsvReport(begin_file, custom)
    report.begin(Run())
    return report


@pytest.mark.parametrize("start", DANGEROUS)
def test_text_that_a_spreadsheet_would_run_is_made_text(start: str) -> None:
    assert text(start + "cmd|' /C calc'!A0") == "'" + start + "cmd|' /C calc'!A0"


@pytest.mark.parametrize("start", ["\0", "\t", "\r", "\n", "\x1b"])
def test_what_cannot_be_seen_is_seen_in_a_cell(start: str) -> None:
    assert text(start + "=1+1") == start.encode("unicode_escape").decode() + "=1+1"


@given(st.text(st.characters(exclude_categories=())))
def test_no_text_cell_starts_a_formula_and_each_is_read_back(value: str) -> None:
    cell = text(value)
    assert cell[:1] not in set(DANGEROUS)
    assert plain_text(cell) == value
    cell.encode()
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\r\n").writerow(["x", cell])
    ((_, read),) = csv.reader(io.StringIO(buffer.getvalue(), newline=""))
    assert read == cell


def test_numbers_stay_numbers_and_missing_is_empty(tmp_path: Path) -> None:
    report = begun(lambda: new_report(tmp_path, "r.csv"), ["snr"])
    row = Row(
        "id",
        "fail",
        "",
        step="warmup",
        metrics={"mean_error": -0.25, "cosine_similarity": 1e-7, "kl_divergence": None},
        counts={"elements": 2**60},
        custom={"snr": float("nan")},
        golden=RowSide(min=-1.5, node="-x"),
        worst=WorstElement("[0]", -3, -0.5),
        reasons=("one", "two"),
    )
    report.add(row)
    report.land()
    (cells,) = written(*report.files)
    assert cells["token_id"] == "warmup"
    assert cells["mean_error"] == "-0.25"
    assert cells["cosine_similarity"] == "1e-07"
    assert cells["kl_divergence"] == ""
    assert cells["max_absolute_error"] == ""
    assert cells["elements"] == str(2**60)
    assert cells["snr"] == "nan"
    assert cells["golden_min_value"] == "-1.5"
    assert cells["golden_node"] == "'-x"
    assert cells["worst_golden_value"] == "-3"
    assert cells["cmp_fail_reason"] == "one; two"


def test_every_column_finds_its_value_in_an_empty_row(tmp_path: Path) -> None:
    report = begun(lambda: new_report(tmp_path, "r.csv"))
    report.add(Row("", "pass", ""))
    report.land()
    (cells,) = written(*report.files)
    assert list(cells) == [*OLD_COLUMNS, *OUR_COLUMNS]
    assert {name for name, value in cells.items() if value} == {"verdict"}


def test_a_row_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    report = begun(lambda: new_report(tmp_path, "r.csv"))
    for count in range(1, 4):
        report.add(Row(f"id{count}", "pass", ""))
        assert len(written(f"{tmp_path}/r.csv.partial")) == count
    assert report.files == []


def test_the_default_name_is_utc_and_never_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "gmtime", lambda: (2026, 11, 21, 3, 4, 5, 5, 325, 0))
    files = [new_report(tmp_path / "made", "") for _ in range(3)]
    names = [Path(file.path).name for file in files]
    assert names == [
        "ait_cmp_report_20261121030405.csv",
        "ait_cmp_report_20261121030405_1.csv",
        "ait_cmp_report_20261121030405_2.csv",
    ]


def test_a_named_report_is_replaced_and_may_lie_elsewhere(tmp_path: Path) -> None:
    named = tmp_path / "x" / "r.csv"
    named.parent.mkdir()
    named.write_text("old")
    report = begun(lambda: new_report(tmp_path / "unused", str(named)))
    report.add(Row("id", "pass", ""))
    assert named.read_text() == "old"
    report.land()
    assert not (tmp_path / "unused").exists()
    assert named.read_text().startswith("token_id,")
