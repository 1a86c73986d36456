"""The file: nothing in it is loaded, run or shown that we did not write; it stays small."""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import acc_pytest
from acc_pytest.base import reason as reason_module
from acc_pytest.base.reason import Reason
from acc_pytest.base.reason import chinese as catalogue
from acc_pytest.errors import AccError
from acc_pytest.options import of_one_test
from acc_pytest.reporting.html import page as module
from acc_pytest.reporting.html import view
from acc_pytest.reporting.html.page import ROOTS, SCRIPTS, page
from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.row import VERDICTS, Row
from acc_pytest.reporting.rows_json import row_from_json, row_to_json
from acc_pytest.reporting.view import Diagnosis, Root, Run
from tests.each_case import check_each

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
    head, _ = read_page(written(tmp_path, [made_row(0)], Run(command=words, rerun=of_one_test(words))))
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


# The page without its script: verdict, counts and roots are plain HTML, whatever names there are.


def seen(text: str) -> str:
    """What a browser without JavaScript shows: the text of the body, entities resolved."""
    body = text.partition("<body>")[2]
    body = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", body))


def root_of(row: Row) -> Root:
    assert row.number is not None
    return Root(row.number, row.name, row.test_id, row, 1, 1.8, 0.5, "dataflow", "", again="again at step 1")


def test_verdict_counts_and_roots_are_there_without_javascript(tmp_path: Path) -> None:
    row = made_row(2, share=40, layer=1)
    rows = [made_row(0), row, inherited(made_row(4, share=9), row)]
    run = Run(rerun=("pytest", "--acc-golden=g", "--acc-mine=m"))
    text = seen(written(tmp_path, rows, run, diagnosis=Diagnosis((root_of(row),), 1, "")))
    for said in (
        "Breaks at RopeOperation, layers.1, prefill: 40 times its bound",
        "1  fail", "1  inherited", "RopeOperation_1_2", "again at step 1", "50% of the final error",
        "relative_euclidean_distance 0.16, allowed <= 0.004",
        "golden: model.layers.1.part2 output /g/x.pth", "mine: 1_RopeOperation_1_2 output[0] /m/y.bin",
        "pytest --acc-golden=g --acc-mine=m dump::step0::layers.1::RopeOperation_1_2",
    ):  # fmt: skip
        assert said in text


def test_the_worst_stand_there_where_no_root_is_known(tmp_path: Path) -> None:
    text = seen(written(tmp_path, [made_row(3, share=7)]))
    assert "Worst by their bounds" in text
    assert "SelfAttentionOperation_0_3" in text


def test_more_roots_than_there_is_room_for_are_counted(tmp_path: Path) -> None:
    rows = [made_row(n, share=7) for n in range(ROOTS + 3)]
    text = seen(written(tmp_path, rows, diagnosis=Diagnosis(tuple(map(root_of, rows)), 0, "")))
    assert "3 more roots are in the rows." in text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_there_too(tmp_path: Path, name: str) -> None:
    row = made_row(0, share=7, sentence=name, test_id=f"x::{name}")
    text = written(tmp_path, [row], diagnosis=Diagnosis((root_of(row),), 0, ""), problems=(name,))
    markup = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    tags = set(re.findall(r"<(/?\w+)", markup))
    plain = re.sub(r"<(script|style).*?</\1>", "", written(tmp_path, [made_row(0, share=7)]), flags=re.DOTALL)
    assert tags - {"pre", "/pre"} <= set(re.findall(r"<(/?\w+)", plain)) | {"ul", "/ul"}


# Colours: text can be read in both themes (WCAG 2.2, 1.4.3: at least 4.5 to 1; 3 to 1 for marks).


STYLE = (ASSETS / "style.css").read_text(encoding="utf-8")
COLOURS = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", STYLE))
TEXT = ("ink", "muted", "accent", "pass", "fail", "inherited", "known", "incomparable", "good")


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, as WCAG defines it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str, theme: int) -> float:
    dark, light = sorted(luminance(COLOURS[name].split(", ")[theme]) for name in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("ground", ["paper", "raised"])
def test_text_can_be_read(name: str, ground: str, theme: int) -> None:
    assert contrast(name, ground, theme) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["allowed", "unmapped"])
def test_marks_can_be_seen(name: str, theme: int) -> None:
    assert contrast(name, "paper", theme) >= 3


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("heat-0", "muted"),
        ("heat-1", "ink"),
        ("heat-2", "ink"),
        ("heat-3", "ink"),
        *((f"heat-{step}", "on-heat") for step in (4, 5, 6)),
    ],
)
def test_numbers_in_the_heat_map_can_be_read(cell: str, text: str, theme: int) -> None:
    assert contrast(cell, text, theme) >= 4.5


def test_every_colour_that_is_used_is_defined() -> None:
    assert set(re.findall(r"var\(--([\w-]+)\)", STYLE)) - COLOURS.keys() <= {
        "mono",
        "columns",
        "edge",
        "tint",
    }


# The words of the page: one table, both languages, nothing missing and nothing left over.


TABLE = (ASSETS / "script" / "strings.js").read_text(encoding="utf-8")
ENTRY = re.compile(r'^  (\w+): \[\s*"((?:[^"\\]|\\.)*)",\s*"((?:[^"\\]|\\.)*)",?\s*\],$', re.MULTILINE)
STRINGS = {key: (english, chinese) for key, english, chinese in ENTRY.findall(TABLE)}


def test_every_entry_of_the_table_has_both_languages() -> None:
    assert len(STRINGS) == len(re.findall(r"^  \w+: \[", TABLE, re.MULTILINE))
    assert all(english and chinese for english, chinese in STRINGS.values())


def test_both_languages_are_filled_in_with_the_same_values() -> None:
    for key, (english, chinese) in STRINGS.items():
        assert set(re.findall(r"\{\d\}", english)) == set(re.findall(r"\{\d\}", chinese)), key


def test_every_word_that_is_said_is_in_the_table() -> None:
    markup = (ASSETS / "page.html").read_text(encoding="utf-8")
    said = set(re.findall(r'say\("(\w+)"', SCRIPT)) | set(re.findall(r'data-say="(\w+)"', markup))
    assert said <= STRINGS.keys()
    assert set(VERDICTS) <= STRINGS.keys()


def test_no_word_is_left_over() -> None:
    code = SCRIPT.replace(TABLE, "") + (ASSETS / "page.html").read_text(encoding="utf-8")
    named = set(re.findall(r'["\'](\w+)["\']', code))
    built = {f"left_{name}" for name in named} | {f"theme_{name}" for name in named}
    assert STRINGS.keys() - named - built - {"comparison", "opcheck", *VERDICTS} == set()


# Sentences that Python writes and a Chinese page says in Chinese: each has its phrase.


PACKAGE = Path(acc_pytest.__file__).parent
PATTERNS = [
    re.compile(".+?".join(map(re.escape, re.split(r"\{[^{}]*\}", code))))
    for code in catalogue()
    if re.search("[a-z]{2,}", re.sub(r"\{[^{}]*\}", "", code))
]
SOURCES = (
    "reporting/summary.py",
    "diagnosis/inheritance.py",
    "judging/verdict.py",
    "judging/derive.py",
    "judging/statistics.py",
    "judging/standards/three_way.py",
    "diagnosis/summary.py",
    "reporting/failure_text.py",
)


def variants(node: ast.expr) -> list[str]:
    """What an expression says, with X for what is filled in; both ways of a choice between two texts."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else ["X"]
    if (
        isinstance(node, ast.IfExp)
        and isinstance(node.body, ast.Constant)
        and isinstance(node.orelse, ast.Constant)
    ):
        return [str(node.body.value), str(node.orelse.value)]
    if isinstance(node, ast.FormattedValue):
        inner = variants(node.value)
        return inner if isinstance(node.value, ast.IfExp) else ["X"]
    if isinstance(node, ast.JoinedStr):
        return ["".join(parts) for parts in itertools.product(*map(variants, node.values))]
    return ["X"]


def sentences(module: str) -> Iterator[str]:
    """All texts of a module that are sentences or ends of such, without docstrings."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    within = {id(part) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for part in ast.walk(one)}
    within -= {id(one) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr)}
    within |= {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.JoinedStr, ast.Constant)) and id(node) not in within:
            yield from variants(node)


@pytest.mark.parametrize("module", SOURCES)
def test_every_sentence_of_a_verdict_and_of_a_cause_has_its_phrase(module: str) -> None:
    """What fails here is to be said in acc_pytest/base/zh.json."""
    wanted = [
        text
        for text in sentences(module)
        if len(re.findall(r"[a-z]{2,}", text)) > 1 and " " in text and text[0] not in " ,;:*"
    ]
    assert len(wanted) > 2
    assert {text for text in wanted if not any(one.fullmatch(text) for one in PATTERNS)} == set()


FIELDS = re.compile(r"\{[^{}]*\}")
CODED = ("Reason", "sentence")


def package() -> dict[Path, ast.Module]:
    """All modules of the package, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}


def codes() -> Iterator[str]:
    """The templates of all reasons that the package makes."""
    trees = [tree for path, tree in package().items() if path != Path(reason_module.__file__)]
    constants: dict[str, list[str]] = {}
    for tree in trees:
        for name, value in _constants(tree):
            constants.setdefault(name, []).append(value)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CODED:
                code = node.args[0]
                branches = (code.body, code.orelse) if isinstance(code, ast.IfExp) else (code,)
                for branch in branches:
                    known = constants.get(ast.unparse(branch), [])
                    assert isinstance(branch, ast.Constant) or known, ast.unparse(code)
                    yield from [str(branch.value)] if isinstance(branch, ast.Constant) else known


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The texts that a module gives names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            names, values = (getattr(part, "elts", [part]) for part in (node.targets[0], node.value))
            for name, value in zip(names, values):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield ast.unparse(name), value.value


OF_TEXT = r"\.(sentence|reason|note|excuse|text)"
ASKED = re.compile(
    OF_TEXT
    + r"\.(startswith|endswith|partition|rpartition|split|find|index|removeprefix|removesuffix|replace)\("
    r"|[\"'] (not )?in \w+(\.\w+)*" + OF_TEXT + r"\b"
)


def test_nothing_asks_for_the_words_of_a_sentence() -> None:
    """What fails here is to ask for the template of a reason: `arguments`, `contains`, `clauses`."""
    rooms = ("reporting", "judging", "gate", "running", "comparison", "diagnosis", "opcheck", "noise")
    lines = [
        (path.name, line.strip())
        for room in rooms
        for path in (PACKAGE / room).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if ASKED.search(line)
    ]
    assert [line for line in lines if line[0] != "failure_text.py" or "self.text" not in line[1]] == []


def test_every_code_has_a_chinese_sentence() -> None:
    """What fails here is to be said in acc_pytest/base/zh.json."""
    wanted = {code for code in codes() if re.search("[A-Za-z]", FIELDS.sub("", code))}
    assert len(wanted) > 100
    assert wanted - set(catalogue()) == set()


def test_every_chinese_sentence_is_of_a_text_of_the_package() -> None:
    """What fails here is to be left out of acc_pytest/base/zh.json."""
    texts = {
        node.value for tree in package().values() for node in ast.walk(tree) if isinstance(node, ast.Constant)
    }
    assert set(catalogue()) - texts == set()


def is_rendered_in_both_languages(code: str) -> None:
    fields = FIELDS.findall(code)
    reason = Reason(code, *(1.5 if field != "{}" else f"name{place}" for place, field in enumerate(fields)))
    sentence = catalogue()[code]
    assert sentence.format(*reason.pieces)
    assert set(FIELDS.findall(sentence)) <= {f"{{{place}}}" for place in range(len(fields))}
    assert all(piece in str(reason) for piece in reason.pieces)


def test_a_sentence_is_rendered_in_both_languages() -> None:
    check_each(((code, code) for code in catalogue()), is_rendered_in_both_languages)


def test_a_reason_stays_one_in_a_row_of_a_file() -> None:
    inner = Reason("{} of {} choices differ", 3, 8)
    row = replace(made_row(0), sentence=Reason("{}; {}", inner, "a name"), notes=(inner,))
    again, _ = row_from_json(json.loads(json.dumps(row_to_json(row))))
    assert again == row
    assert isinstance(again.sentence, Reason)
    assert (again.sentence.code, again.sentence.args) == ("{}; {}", (inner, "a name"))
    assert again.sentence.args[0].args == (3, 8)  # type: ignore[union-attr]


def test_the_page_has_the_code_of_a_reason(tmp_path: Path) -> None:
    row = replace(made_row(0), sentence=Reason("{} of {} choices differ", 3, 8))
    head, _ = read_page(written(tmp_path, [row]))
    assert head["reasons"]["3 of 8 choices differ"] == ["{} of {} choices differ", "3", "8"]
