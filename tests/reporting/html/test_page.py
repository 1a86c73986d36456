"""The file: nothing in it is loaded, run or shown that we did not write; it stays small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from acc_pytest.errors import AccError
from acc_pytest.reporting.html import page as module
from acc_pytest.reporting.html import view
from acc_pytest.reporting.html.page import SCRIPTS, page
from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.row import VERDICTS, Row
from acc_pytest.reporting.view import Diagnosis, Root, Run

from .made import HOSTILE, inherited, made_row, many_rows, read_page, result_of

ASSETS = Path(module.__file__).parent
SCRIPT = "\n".join((ASSETS / "script" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)


def written(tmp_path: Path, rows: list[Row], run: Run = Run(), **result: object) -> str:  # noqa: B008
    report = HtmlReport(str(tmp_path / "report.html"))
    report.begin(run)
    for row in rows:
        report.add(row)
    report.finish(result_of(rows, **result))
    report.land()
    (file,) = report.files
    return Path(file).read_text(encoding="utf-8")


def test_every_script_is_part_of_the_page() -> None:
    assert sorted(SCRIPTS) == sorted(path.stem for path in (ASSETS / "script").iterdir())


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    text = written(tmp_path, [made_row(0)])
    markup = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(src|href)\s*=\s*[\"'](?!#)", markup)
    assert not re.search(r"url\(|@import", text)
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_policy_allows_our_script_and_style_and_no_connection(tmp_path: Path) -> None:
    text = written(tmp_path, [made_row(0)])
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy.startswith("default-src 'none';")
    for content in (script, style):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "word",
    ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "DOMParser"],
)
def test_the_script_never_parses_markup_or_code(word: str) -> None:
    assert word not in SCRIPT


@pytest.mark.parametrize("name", HOSTILE)
def test_text_of_a_run_ends_no_element(tmp_path: Path, name: str) -> None:
    row = made_row(0, sentence=name, test_id=name, share=2)
    plain = written(tmp_path, [made_row(0, share=2)])
    text = written(tmp_path, [row], lines=(name,), problems=(name,))
    for tag in ("<script", "</script", "<!--", "<img"):
        assert text.count(tag) == plain.count(tag)
    head, _ = read_page(text)
    assert len(head["problems"][0]) <= 400


def test_the_title_is_escaped() -> None:
    text = page("</title><script>", {}, {}).decode()
    assert "&lt;/title&gt;&lt;script&gt;" in text


def test_marks_of_the_template_in_a_name_are_text() -> None:
    head, _ = read_page(page("t", {"name": "{{script}}{{body}}"}, {}).decode())
    assert head == {"name": "{{script}}{{body}}"}


def test_a_small_page_holds_readable_data_and_a_large_one_packed() -> None:
    body = {"numbers": list(range(50_000))}
    small, large = page("t", {}, {"numbers": [1]}).decode(), page("t", {}, body).decode()
    assert 'data-encoding="json"' in small
    assert 'data-encoding="gzip"' in large
    assert read_page(large)[1] == body


def test_numbers_that_json_has_not_are_words(tmp_path: Path) -> None:
    nan, infinite = float("nan"), float("inf")
    row = made_row(0, metrics={"a": nan, "b": -infinite}, counts={"c": 2**63}, share=infinite)
    _, body = read_page(written(tmp_path, [row]))
    detail = body["details"]["0"]
    assert detail["metrics"] == {"a": "NaN", "b": "-Infinity"}
    assert detail["counts"] == {"c": str(2**63)}
    assert detail["checks"][0]["excess"] == "Infinity"


def test_roots_say_where_their_rows_are(tmp_path: Path) -> None:
    root = made_row(3, share=5)
    rows = [made_row(0), root, inherited(made_row(4, share=9), root), made_row(5)]
    found = Root(3, root.name, root.test_id, root, 1, 1.8, 0.5, "dataflow", "")
    head, _ = read_page(
        written(tmp_path, rows, diagnosis=Diagnosis((found,), 1, "tensor names", ("a note",)))
    )
    (shown,) = head["diagnosis"]["roots"]
    assert (shown["places"], shown["inherited"], shown["amplification"], shown["share"]) == ([1], 1, 1.8, 0.5)
    assert shown["excess"] == pytest.approx(5)
    assert head["verdict"]["lead"] == "1 of 4 comparisons fails on its own; 1 more inherits from what fails."


def test_a_root_of_what_the_run_was_fed_is_no_operator(tmp_path: Path) -> None:
    row = replace(made_row(3, share=5), fed="token ids")
    found = Root(3, "input_ids", row.test_id, row, 1, None, None, "dataflow", "", fed="token ids differ")
    head, _ = read_page(written(tmp_path, [row], diagnosis=Diagnosis((found,), 1, "")))
    (shown,) = head["diagnosis"]["roots"]
    assert (shown["name"], shown["type"], shown["sentence"], shown["cause"]) == (
        "token ids input_ids", "", "token ids differ", "",
    )  # fmt: skip


def test_without_analysis_there_is_none(tmp_path: Path) -> None:
    assert read_page(written(tmp_path, [made_row(0)]))[0]["diagnosis"] is None


def test_a_command_for_one_test_does_not_replace_the_report(tmp_path: Path) -> None:
    words = ("pytest", "--acc-golden=a b", "--acc-html=r.html", "--acc-csv=x.csv")
    head, _ = read_page(written(tmp_path, [made_row(0)], Run(command=words)))
    assert head["command"] == "pytest '--acc-golden=a b' --acc-html=r.html --acc-csv=x.csv"
    assert head["rerun"] == "pytest '--acc-golden=a b'"


def test_skipped_rows_and_inherited_ones_are_not_counted_as_failing_on_their_own(tmp_path: Path) -> None:
    root = made_row(0, share=5)
    skipped = made_row(1, verdict="incomparable", skipped=True)
    strict = inherited(made_row(2, share=9, strict=True), root)
    lead = read_page(written(tmp_path, [root, skipped, strict]))[0]["verdict"]["lead"]
    assert lead == "1 of 3 comparisons fails on its own; 1 more inherits from what fails."


@pytest.mark.parametrize("place", [".", "file/report.html"], ids=["directory", "below a file"])
def test_a_place_that_cannot_be_written_ends_the_run_at_its_beginning(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AccError, match="--acc-html"):
        HtmlReport(str(tmp_path / place)).begin(Run())


def test_a_run_that_is_interrupted_leaves_no_half_page(tmp_path: Path) -> None:
    report = HtmlReport(str(tmp_path / "new" / "report.html"))
    report.begin(Run())
    report.add(made_row(0))
    report.close()
    assert report.files == []
    assert list(tmp_path.iterdir()) == []


def test_where_everything_does_not_fit_something_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = list(many_rows(3000))
    whole = len(written(tmp_path, rows))
    monkeypatch.setattr(view, "LIMIT", whole - 50_000)
    text = written(tmp_path, rows)
    assert len(text) <= whole - 50_000
    _, body = read_page(text)
    assert body["left_out"]["details"] == 3000 - len(body["details"])
    assert body["left_out"]["details"] > 2000
    assert body["left_out"]["metrics"] == 7


def test_twenty_thousand_rows_stay_below_one_megabyte(large: Path) -> None:
    text = large.read_text(encoding="utf-8")
    assert len(text.encode()) < 1_000_000
    _, body = read_page(text)
    assert body["length"] == 20_000
    assert body["left_out"]["rows"] == 0
    assert body["left_out"]["metrics"] == 0
    failing = [place for place, verdict in enumerate(body["verdicts"]) if VERDICTS[verdict] == "fail"]
    assert len(failing) == 400
    assert sum(str(place) in body["details"] for place in failing) >= 100


def test_json_is_ascii_without_markup() -> None:
    text = page("t", {"name": "\u2028<&>\u202e"}, {}).decode()
    found = re.search(r'id="head-data">(.*?)</script>', text)
    assert found is not None
    assert found[1] == r'{"name":"\u2028\u003c\u0026\u003e\u202e"}'
    assert json.loads(found[1]) == {"name": "\u2028<&>\u202e"}
