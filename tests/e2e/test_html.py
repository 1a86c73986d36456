"""--acc-html: the page of a run, made through pytest."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.row import VERDICTS
from tests.opcheck.made import softmax_dump
from tests.reporting.html.made import column, read_page

from .conftest import QUICKER, Run, dump_options, read_rows

PAGE = "--acc-html=out/page.html"


def read(path: str = "out/page.html") -> tuple[dict[str, Any], dict[str, Any]]:
    return read_page(Path(path).read_text(encoding="utf-8"))


def test_the_page_has_every_row_of_the_csv(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, PAGE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["report: *out/page.html"])
    rows = read_rows()
    head, body = read()
    assert column(body, "name") == [row["my_name"] for row in rows]
    assert [VERDICTS[code] for code in body["verdicts"]] == [row["verdict"] for row in rows]
    assert list(itertools.accumulate(body["numbers"])) == [int(row["data_id"]) for row in rows]
    assert head["exit"] == 1
    assert sum(head["counts"].values()) == len(rows)
    assert head["plan"]["golden"]["root"] == str(next(faulty.golden.iterdir()))
    assert "python" in dict(head["environment"])
    assert any(line.startswith("verdict hash: ") and head["hash"] in line for line in head["lines"])


def test_the_worst_pairs_are_looked_into(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, PAGE)
    _, body = read()
    failing = [place for place, code in enumerate(body["verdicts"]) if VERDICTS[code] != "pass"]
    for place in failing[:60]:
        pictures = body["details"][str(place)]["pictures"]
        assert sum(pictures["errors"]["bins"]) > 0
        index, golden, mine, error = pictures["worst"][0]
        assert [index, golden, mine] == body["details"][str(place)]["worst"]
        assert error == pytest.approx(abs(mine - golden), rel=1e-3)


def test_files_that_are_gone_by_the_end_are_said(
    acc: Run, faulty: DemoPaths, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    copy = shutil.copytree(faulty.mine.parent, tmp_path / "copy")
    paths = DemoPaths(copy / faulty.golden.relative_to(faulty.mine.parent), copy / faulty.mine.name)
    pytester.makeconftest(
        f"""
        import shutil, pytest
        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionfinish():
            shutil.rmtree({str(paths.golden)!r})
        """
    )
    acc(paths, PAGE)
    _, body = read()
    said = [detail["pictures"]["absent"] for detail in body["details"].values() if "pictures" in detail]
    assert said
    assert all("golden" in text for text in said)


def test_the_command_of_the_page_runs_one_test_again(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, PAGE)
    head, body = read()
    place = body["verdicts"].index(VERDICTS.index("fail"))
    test_id = f"{column(body, 'home')[place]}::{column(body, 'leaf')[place]}"
    assert head["rerun"].startswith("pytest --acc-golden=")
    assert "--acc-html" not in head["rerun"]
    result = acc(faulty, test_id)
    result.assert_outcomes(failed=1)


def test_operator_checks_have_the_same_page(pytester: pytest.Pytester, tmp_path: Path) -> None:
    dump = softmax_dump(tmp_path, wrong=True)
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={dump.csv}", "--acc-csv=r.csv", PAGE)
    assert result.ret == 1
    head, body = read()
    assert (head["title"], head["plan"]) == ("opcheck", None)
    assert column(body, "type") == ["SoftmaxOperation", "LinearOperation", "TransposeOperation"]
    (failed,) = [detail for detail in body["details"].values() if "pictures" in detail]
    assert "golden was computed" in failed["pictures"]["absent"]
    assert failed["case"]["op_name"] == "SoftmaxOperation"
    assert failed["mine"]["files"][0].endswith("after/outtensor0.bin")


def test_an_ini_file_may_ask_for_the_page(pytester: pytest.Pytester, clean: DemoPaths) -> None:
    pytester.makeini("[pytest]\nacc_html = shown.html\nacc_output = out\n")
    assert pytester.runpytest_inprocess(*QUICKER, *dump_options(clean)).ret == 0
    head, body = read("shown.html")
    assert head["exit"] == 0
    assert set(body["verdicts"]) == {0}


def test_a_place_that_cannot_be_written_stops_the_run_before_its_first_test(
    acc: Run, clean: DemoPaths
) -> None:
    Path("file").write_text("")
    result = acc(clean, "--acc-html=file/page.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*ERROR: --acc-html */file/page.html: cannot be written: Not a directory"])
    result.assert_outcomes()


def test_nothing_is_written_where_tests_are_only_listed(acc: Run, clean: DemoPaths) -> None:
    acc(clean, PAGE, "--co", "-q")
    assert not Path("out/page.html").exists()


def test_own_tests_may_have_a_page(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_own="""
        import torch
        def test_it(acc_compare):
            acc_compare(torch.ones(4), torch.ones(4) * 2)
        """
    )
    result = pytester.runpytest_inprocess(*QUICKER, PAGE)
    result.assert_outcomes(failed=1)
    head, body = read()
    assert head["title"] == "comparison"
    assert head["verdict"]["text"].startswith("Fails at test_own.py::test_it: 1e5 times")
    assert "in no file" in body["details"]["0"]["pictures"]["absent"]
