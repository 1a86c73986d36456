"""The step summary: what it says, that it fits, and that no name from a dump is more than text in it."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from acc_pytest.errors import AccError
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Plan
from acc_pytest.reporting.markdown import LIMIT, MarkdownSummary, blocks, code, fenced, fit, step_summary
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.summary import Tally
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
        "Known by: `names of tensors`",
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
