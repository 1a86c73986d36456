"""The step summary: what it says, that it fits, and that no name from a dump is more than text in it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from acc_pytest.errors import AccError
from acc_pytest.judging.tolerance import CAP
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import LAST_OUTPUT, Plan
from acc_pytest.reporting.markdown import (
    LIMIT,
    MOST,
    Annotations,
    MarkdownSummary,
    annotation,
    blocks,
    code,
    fenced,
    fit,
    on_github,
    step_summary,
)
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.summary import Tally, coverage, coverage_line, shortfalls, summary_lines
from acc_pytest.reporting.texts import printable
from acc_pytest.reporting.view import Diagnosis, Result, Root, Run

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a|b|c",
    "a\\|b",
    "`` ` ``` `",
    "x` <b>y</b> `z",
    "[link](https://example.com) ![](https://example.com/x.png)",
    "https://example.com www.example.com someone@example.com",
    "*bold* __bold__ ~~gone~~ # head",
    "a\n\n# head\n- item\r\n<h1>x</h1>",
    "\x1b[31m\x00\x07\u202egnp\u2066",
    "=cmd|' /C calc'!A0",
    "&lt;script&gt; &#60;b&#62;",
    "</details></table><details open>",
    "\\",
    "`",
    "|",
    "-->]]>",
    "名" * 5000,
    "x" * 10_000,
)
ALLOWED = {
    "h2", "h3", "p", "strong", "em", "code", "pre", "table", "thead", "tbody", "tr", "th", "td", "ul", "li",
    "details", "summary",
}  # fmt: skip


class Page(HTMLParser):
    """The tags of a page, what stands in its code elements, and the widths of its tables' rows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[Any] = []
        self.codes: list[str] = []
        self.widths: list[int] = []
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.add(tag)
        self.attributes += attributes
        self._open = tag
        if tag == "tr":
            self.widths.append(0)
        elif tag in ("td", "th"):
            self.widths[-1] += 1
        elif tag == "code":
            self.codes.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "code":
            self.codes[-1] += data


def rendered(text: str) -> Page:
    markdown_it = pytest.importorskip("markdown_it")
    return Page(markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def row(number: int, name: str = "Linear", verdict: str = "fail") -> Row:
    check = Check("relative_euclidean_distance", 2.0 + number, 1.0, False, "", verdict == "pass")
    side = RowSide(name=name, op_type=name, node=name)
    return Row(
        f"d::{name}", verdict, f"{name} is wrong", number, step=name, layer=name, mine=side, checks=(check,)
    )


def root(number: int, name: str = "Linear") -> Root:
    return Root(number, name, f"d::{name}", row(number, name), 7, 3.5, 0.63, name, f"{name}: it starts here")


def result(rows: list[Row], status: int = 1, **more: Any) -> Result:
    tally = Tally()
    for one in rows:
        tally.add(one)
    return Result(status, tally, None, "0123456789abcdef", **more)


def plan(*notes: str) -> Plan:
    return Plan("g", "m", "torch", "atb", "d", (), (), notes, 10, 9, 10, 5)


def page(run: Run, outcome: Result) -> str:
    return fit(list(blocks(run, outcome)), LIMIT)


def test_it_says_what_starts_where_and_what_follows() -> None:
    rows = [row(3), *(row(n, verdict="inherited") for n in range(4, 11)), row(0, verdict="pass")]
    run = Run(
        plan=plan("ranks: 2"), command=("pytest", "--acc-golden=a b"), floor=0.5, environment={"torch": "2"}
    )
    text = page(run, result(rows, diagnosis=Diagnosis((root(3),), 7, "names of tensors")))
    assert text.startswith("## Accuracy comparison FAILED\n\n**1 root cause**, from which 7 other")
    for said in (
        "| fail | 1 |",
        "| inherited | 7 |",
        "| pass | 1 |",
        "Coverage: golden 9 of 10 nodes (90%), mine 5 of 10 (50%); floor 50% reached.",
        "| `Linear` | `Linear` | `Linear` | `Linear` | 7 | 3.5 x | 63% | `Linear: it starts here` |",
        "Causes were followed along `names of tensors`.",
        "Verdict hash: `0123456789abcdef`",
        "pytest '--acc-golden=a b'",
        "- `ranks: 2`",
        "| `torch` | `2` |",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("status", "said"),
    [(0, "passed"), (1, "FAILED"), (2, "was interrupted"), (5, "compared nothing"), (3, "exit status 3")],
)
def test_the_headline_is_the_exit_status(status: int, said: str) -> None:
    assert said in page(Run(), result([], status)).splitlines()[0]


def test_a_share_of_a_run_is_called_one() -> None:
    run = Run(command=("pytest", "--acc-shard=2/3"))
    assert page(run, result([], 0)).startswith("## Accuracy comparison passed (shard 2/3)\n")
    assert "(shard" not in page(Run(command=("pytest", "--acc-shard=<b>")), result([], 0)).splitlines()[0]


def test_a_green_run_is_short_and_has_its_hash() -> None:
    text = page(Run(), result([row(0, verdict="pass")], 0))
    assert "1 comparisons, all within their bounds or accepted." in text
    assert "Verdict hash: `0123456789abcdef`" in text
    assert "###" not in text


def test_operator_checks_have_a_summary_of_their_own() -> None:
    text = page(Run("opcheck"), result([row(0)]))
    assert text.startswith("## Operator checks FAILED")
    assert "First failing: `Linear`: `Linear is wrong`" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_wherever_it_stands(name: str) -> None:
    outcome = result(
        [row(3, name), row(4, name, "inherited")],
        diagnosis=Diagnosis((root(3, name),), 1, name),
        problems=(name,),
        lines=(name,),
    )
    run = Run(plan=plan(name), command=("pytest", name), environment={name: name})
    text = page(run, outcome)
    shown = rendered(text)
    assert shown.tags <= ALLOWED
    assert shown.attributes == []
    assert set(shown.widths) <= {2, 5, 9}
    assert printable(name, 160).replace("`", "'").replace("|", "¦").strip() in [
        one.strip() for one in shown.codes
    ]
    assert len(text.encode()) < LIMIT


@settings(max_examples=60, deadline=None)
@given(strategies.text(min_size=1, max_size=30))
def test_any_text_in_a_span_is_shown_as_that_text(text: str) -> None:
    span = code(text)
    if not span:
        assert not printable(text, 160).strip()
        return
    shown = rendered(f"| a |\n| --- |\n| {span} |\n")
    assert shown.widths == [1, 1]
    assert [one.strip() for one in shown.codes] == [span[1:-1].strip()]


@given(strategies.text("`~\n a", max_size=40))
def test_a_fence_is_longer_than_any_run_of_backticks_in_it(text: str) -> None:
    shown = rendered(fenced(printable(text, 100)))
    assert [one.strip() for one in shown.codes] == [printable(text, 100).strip()]


def huge() -> Iterator[str]:
    yield "## head"
    for number in range(10_000):
        yield f"{number} " + "名" * 100


def test_what_does_not_fit_is_left_out_from_the_end() -> None:
    text = fit(list(huge()), LIMIT)
    assert LIMIT - 1000 < len(text.encode()) <= LIMIT
    assert text.startswith("## head\n\n0 名")
    assert text.endswith("_The rest is left out: the summary may not be longer._\n")


def test_a_file_that_is_full_gets_nothing() -> None:
    assert fit(["## head"], 10) == ""
    assert fit(["## head"], -5) == ""


def test_thousands_of_roots_with_long_names_stay_below_the_limit() -> None:
    roots = tuple(root(n, "名" * 10_000) for n in range(3000))
    text = page(Run(), result([row(n, "名" * 10_000) for n in range(30)], diagnosis=Diagnosis(roots, 0, "")))
    assert len(text.encode()) < LIMIT
    assert "2970 more roots" in text


def test_a_summary_of_ones_own_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "below" / "s.md"
    for _ in range(2):
        view = MarkdownSummary(str(file))
        view.begin(Run())
        view.finish(result([row(0)]))
        view.land()
    assert file.read_text(encoding="utf-8").count("## Accuracy") == 1
    assert view.files == [str(file)]


def test_github_s_file_is_appended_to_and_stays_below_the_mebibyte(tmp_path: Path) -> None:
    file = tmp_path / "step"
    file.write_text("earlier\n")
    for _ in range(3):
        view = MarkdownSummary(str(file), append=True)
        view.begin(Run())
        view.finish(result([row(0)]))
        view.land()
    text = file.read_text(encoding="utf-8")
    assert text.startswith("earlier\n")
    assert text.count("## Accuracy") == 3
    file.write_text("x" * (LIMIT - 100))
    view.finish(result([row(0)]))
    view.land()
    assert file.stat().st_size <= LIMIT
    assert view.files == []


def test_a_summary_that_cannot_be_written_is_said_before_the_first_test(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AccError, match=r"--acc-summary .*file/s\.md: cannot be written"):
        MarkdownSummary(str(tmp_path / "file" / "s.md")).begin(Run())


def test_github_s_file_counts_on_github_only() -> None:
    assert step_summary({"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "/f"}) == "/f"
    assert step_summary({"GITHUB_STEP_SUMMARY": "/f"}) == ""
    assert step_summary({"GITHUB_ACTIONS": "true"}) == ""


# `::error` lines: few, one a root, and nothing in a name can become a command of its own.


COMMAND = re.compile(r"::error title=((?:[^:,\r\n%]|%[0-9A-F]{2})*)::((?:[^\r\n%]|%[0-9A-F]{2})*)")
"""What GitHub's runner takes for one command: no raw end of line, no raw separator in the title."""


def annotated_row(number: int | None, verdict: str = "fail", name: str = "Linear", **more: Any) -> Row:
    values: dict[str, Any] = {"sentence": f"{name} is wrong", "mine": RowSide(name=name), **more}
    return Row(f"d::{number}", verdict, number=number, **values)


def annotated_root(number: int) -> Root:
    one = annotated_row(number, name=f"root{number}")
    return Root(number, one.name, one.test_id, one, 3, None, None, "dataflow", f"{one.name} starts it")


def printed(view: Annotations, capsys: pytest.CaptureFixture[str], **more: Any) -> list[str]:
    view.finish(Result(1, Tally(), None, "", **more))
    capsys.readouterr()
    view.close()
    return capsys.readouterr().out.splitlines()


@given(strategies.text(), strategies.text())
def test_any_two_texts_are_one_command(title: str, message: str) -> None:
    assert COMMAND.fullmatch(annotation(title, message))


def test_the_escapes_are_those_of_github() -> None:
    """By GitHub's table: `%` everywhere, `:` and `,` in properties; ends of lines do not get that far."""
    assert annotation("100%, a:b", "100%, a:b") == "::error title=100%25%2C a%3Ab::100%25, a:b"


def test_only_github_is_github() -> None:
    assert on_github({"GITHUB_ACTIONS": "true"})
    assert not on_github({"GITHUB_ACTIONS": "false"})
    assert not on_github({"CI": "true"})


def test_roots_are_shown_in_order_and_never_more_than_ten(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    for number in range(50):
        view.add(annotated_row(number))
    roots = tuple(annotated_root(number) for number in range(0, 40, 2))
    lines = printed(view, capsys, diagnosis=Diagnosis(roots, 30, ""))
    assert len(lines) == MOST
    assert lines[0] == "::error title=root cause%3A root0::root0 starts it [d::0]"
    assert [int(line.partition("root cause%3A root")[2].partition("::")[0]) for line in lines] == list(
        range(0, 20, 2)
    )


def test_after_the_roots_comes_what_could_not_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    for number in (9, 4, 7):
        view.add(annotated_row(number, "incomparable" if number != 4 else "fail", f"n{number}"))
    view.add(annotated_row(1, "incomparable", skipped=True))
    view.add(annotated_row(2, "pass"))
    lines = printed(
        view, capsys, diagnosis=Diagnosis((annotated_root(4),), 0, ""), problems=("below the floor",)
    )
    assert lines == [
        "::error title=root cause%3A root4::root4 starts it [d::4]",
        "::error title=n7 could not be compared::n7 is wrong [d::7]",
        "::error title=n9 could not be compared::n9 is wrong [d::9]",
        "::error title=accuracy run::below the floor",
    ]


def test_without_causes_the_first_failing_rows_stand_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    for number in reversed(range(1000)):
        view.add(annotated_row(number, name=f"n{number}"))
    view.add(annotated_row(None, name="own"))
    lines = printed(view, capsys)
    assert [line.partition("title=")[2].partition(" ")[0] for line in lines] == [f"n{n}" for n in range(10)]


def test_a_green_run_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    view.add(annotated_row(0, "pass"))
    assert printed(view, capsys) == []


def test_an_interrupted_run_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    view = Annotations()
    view.add(annotated_row(0))
    view.close()
    assert capsys.readouterr().out == ""


# The tally does not depend on the order of arrival; the summary is short and says what matters.


def tallied_row(number: int | None, verdict: str = "pass", times: float = 0.5) -> Row:
    check = Check("m", times, 1.0, False, "", times <= 1)
    side = RowSide(name=f"ElewiseOperation_{number}_1", op_type="ElewiseOperation")
    return Row(
        f"id{number}", verdict, f"m is {times}", number, step=2, layer="layers.3", mine=side, checks=(check,)
    )


def small_plan(golden: tuple[int, int], mine: tuple[int, int]) -> Plan:
    return Plan("g", "m", "torch", "atb", "d", (), (), (), golden[1], golden[0], mine[1], mine[0])


@pytest.mark.parametrize("seed", range(5))
def test_the_first_failing_pair_is_that_of_execution_order(seed: int) -> None:
    rows = [tallied_row(n, "fail" if n >= 7 else "pass", times=2 + n % 3) for n in range(20)]
    random.Random(seed).shuffle(rows)
    tally = Tally()
    for one in rows:
        tally.add(one)
    assert tally.first is not None
    assert tally.first.number == 7
    assert [one.number for one in tally.worst] == [8, 11, 14, 17, 7][:5] or tally.worst[0].excess == 4
    assert [one.excess for one in tally.worst] == [4, 4, 4, 4, 3]
    assert tally.compared == tally.tried == 20


def test_rows_of_own_tests_come_after_pairs() -> None:
    tally = Tally()
    tally.add(tallied_row(None, "fail", 9.0))
    tally.add(tallied_row(3, "fail", 2.0))
    assert tally.first is not None
    assert tally.first.number == 3
    assert tally.worst[0].number is None


def test_skipped_pairs_are_counted_but_neither_first_nor_worst() -> None:
    tally = Tally()
    tally.add(Row("id", "incomparable", "descriptions only", 0, skipped=True))
    assert tally.first is None
    assert tally.worst == ()
    assert (tally.tried, tally.compared) == (1, 0)


def test_the_summary_names_step_layer_operator_and_file() -> None:
    tally = Tally()
    for one in (tallied_row(0), tallied_row(1, "fail", 3.0), Row("", "unmapped", "alone", 9)):
        tally.add(one)
    lines = summary_lines(tally, small_plan((9, 10), (5, 10)), 0.5)
    assert lines[0] == "verdicts: 1 pass, 1 fail, 1 unmapped"
    assert lines[1] == "coverage: golden 9 of 10 nodes (90%), mine 5 of 10 (50%); floor 50% reached"
    assert lines[2] == "first failing: ElewiseOperation_1_1 step 2 layers.3: m 3, allowed 1 (3 times)"


def test_that_golden_s_model_cannot_be_made_is_said_once() -> None:
    tally = Tally()
    context = {"replay_outcome": "right", "replay_lacking": "transformers 9 have no model Foo"}
    for number in range(2):
        tally.add(replace(tallied_row(number), context=context))
    (line,) = (one for one in summary_lines(tally, None, 0.5) if one.startswith("replay: "))
    assert line == (
        "replay: 2 of 2 tensors of operators were computed again; only linear layers were, because "
        "golden's model cannot be made: transformers 9 have no model Foo"
    )


def test_the_summary_has_at_most_twenty_lines_of_bounded_length() -> None:
    tally = Tally()
    for number in range(3000):
        bad = Row("i" * 500, "fail", "s" * 500, number)
        tally.add(bad)
    tally.add(Row("i", "incomparable", "", 1))
    lines = summary_lines(tally, small_plan((1, 10), (1, 10)), 0.5)
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 160


def test_a_run_without_dumps_has_no_coverage() -> None:
    tally = Tally()
    tally.add(tallied_row(None))
    assert summary_lines(tally, None, 0.0) == ["verdicts: 1 pass"]


def test_coverage_is_that_of_the_better_side() -> None:
    assert coverage(small_plan((9, 10), (1, 10))) == 0.9
    assert coverage(small_plan((0, 0), (0, 0))) == 0.0
    said = coverage_line(small_plan((1, 10), (2, 10)), 0.25)
    assert said.endswith("floor 25% NOT reached: 20.0% is below it, so the run fails")


def test_rows_are_counted_and_the_tests_they_are_of_where_these_are_fewer() -> None:
    tally = Tally()
    for verdict in ("pass", "fail", "fail"):
        tally.add(Row("opcheck::step0::Norm_1", verdict, "s"))
    tally.add(Row("opcheck::step0::Norm_2", "pass", "s"))
    line = summary_lines(tally, None, 0.0)[0]
    assert line == "verdicts: 2 pass, 2 fail (one for each tensor); 1 of 2 tests fail"


# What a run does not prove is said first: partial, the same twice, empty, zero, not finite.


SIDE = RowSide(name="op", min=-1.0, max=1.0)
ROW = Row("id", "pass", "s", 0, step=0, level="op", golden=SIDE, mine=SIDE, counts={"elements": 6})
ZERO = RowSide(min=0.0, max=0.0)


def doubtful_plan(mapped: int = 10, mine: str = "m", kind: str = "torch") -> Plan:
    return Plan("g", mine, kind, "torch", "d", (), (), (), 10, mapped, 10, 10)


def tallied(*rows: Row) -> Tally:
    tally = Tally()
    for row in random.Random(3).sample(rows, len(rows)):
        tally.add(row)
    return tally


def said(made: Plan | None, *rows: Row) -> list[str]:
    return tallied(*rows).caveats.first(made)


def test_a_whole_comparison_of_numbers_has_no_caveat() -> None:
    assert said(doubtful_plan(9), ROW) == []
    assert summary_lines(tallied(ROW), doubtful_plan(9), 0.5)[0] == "verdicts: 1 pass"


def test_partial_and_the_same_directory_are_said_first() -> None:
    line = summary_lines(tallied(ROW), doubtful_plan(4, mine="g"), 0.5)[0]
    assert line == "partial: 40 % of golden's tensors were compared; golden and mine are the same directory"
    assert said(doubtful_plan(kind="manual", mine="g"), ROW) == []


def test_empty_results_and_zeros_are_counted_and_what_the_run_was_fed_is_not() -> None:
    empty, zero = replace(ROW, counts={"elements": 0}), replace(ROW, golden=ZERO, mine=ZERO)
    fed = [replace(row, fed="mask") for row in (empty, zero)]
    assert said(None, ROW, empty, zero, zero, *fed) == [
        "1 of 4 results are empty",
        "2 of 4 results are nothing but zeros",
    ]
    assert said(None, replace(zero, mine=SIDE)) == []


@pytest.mark.parametrize(
    ("counts", "level", "fed", "finite"),
    [
        ({"golden_nan": 1}, "op", "", False),
        ({"golden_nan": 1}, "op", "weight", False),
        ({"golden_nan": 1}, "op", "mask", True),
        ({"golden_nan": 1}, "op", "cache", True),
        ({"golden_inf": 1}, "op", "", True),
        ({"golden_inf": 6}, "op", "", False),
        ({"golden_inf": 1}, "layer", "", False),
        ({"golden_inf": 1, "golden_nan": 0}, "module", "buffer", True),
        ({"my_nan": 1}, "layer", "", True),
    ],
)
def test_a_golden_that_is_not_finite_fails_the_run(
    counts: dict[str, int], level: str, fed: str, finite: bool
) -> None:
    rows = [
        replace(ROW, number=n, golden=replace(SIDE, name=f"op{n}"), level=level, fed=fed) for n in range(9)
    ]
    bad = [replace(row, counts={"elements": 6, **counts}) for row in rows[4:]]
    found = shortfalls(tallied(*rows[:4], *bad), None, 0.5)
    sentence = "golden is not finite from op4 (step 0) on, so the run fails; dump one without NaN and Inf"
    assert found == ([] if finite else [sentence])
    assert said(None, *bad) == found


def test_a_module_may_be_handed_a_mask_with_infinite_places() -> None:
    row = replace(ROW, level="layer", counts={"elements": 6, "golden_inf": 3})
    handed = replace(row, golden=replace(SIDE, slot="input[1]"))
    assert said(None, handed) == []
    assert said(None, replace(row, golden=replace(SIDE, slot="output[0]"))) != []


def test_what_is_absent_is_said_where_its_test_has_failed() -> None:
    absent = Row("id", "incomplete", "incomplete mine: x", 3, strict=True)
    end = replace(absent, sentence=f"incomplete golden: {LAST_OUTPUT}: x")
    assert said(None, absent, absent, end) == [
        LAST_OUTPUT,
        "incomplete: a dump lacks what it states",
    ]
    assert said(None, replace(absent, strict=False), replace(end, strict=False)) == []


def test_pairs_at_the_cap_are_counted() -> None:
    check = Check("relative_euclidean_distance", 0.2, CAP, False, f"default: T = 1, capped at {CAP:g}", True)
    capped = replace(ROW, checks=(check, check))
    lines = [summary_lines(tallied(ROW, *[capped] * number), None, 0.5)[1:] for number in range(3)]
    assert lines == [
        [],
        ["1 pair was held against the cap of 0.25"],
        ["2 pairs were held against the cap of 0.25"],
    ]
