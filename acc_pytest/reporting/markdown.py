"""The run as a page of Markdown: what GitHub shows as the summary of a step, GitLab or a mail as a note.

Everything that comes from a dump stands in code spans, in which neither Markdown nor HTML means anything.
GitHub refuses summaries above a mebibyte, so blocks are left out from the end until the rest fits.
"""

from __future__ import annotations

import heapq
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from ..base.reason import Reason, rendered, sentence
from ..base.vocabulary import number
from ..outputs import Staged, target_of
from .row import VERDICTS, Row
from .summary import coverage_line
from .texts import printable, shell
from .view import FileView, Result, Run, View

LIMIT = 1_000_000
"""Bytes of one summary: GitHub's mebibyte, and some room."""
ROOTS = 30
"""Roots that are listed; the rows have all of them."""
WIDTH = 160
SENTENCE = 400
"""Characters of a name, and of a sentence."""
STATES = {0: "passed", 1: "FAILED", 2: "was interrupted", 5: "compared nothing"}
"""The meaning of pytest's exit codes."""


def code(text: str, width: int = WIDTH) -> str:
    """`text` as a code span that is safe in a table cell; empty for nothing.

    A backtick would end the span and a bar the cell, and how a bar is escaped differs between renderers, so
    both are replaced by characters that look like them.
    """
    span = rendered(printable(text, width)).replace("`", "'").replace("|", "¦")
    return f"`{span}`" if span.strip() else ""


def fenced(text: str) -> str:
    """Lines of text as a code block that nothing in them can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def table(head: str, rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; `head` are its names, with bars between."""
    names = rendered(head).split("|")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fit(blocks: Sequence[str], limit: int) -> str:
    """The blocks one after the other in at most `limit` bytes of UTF-8; those at the end are left out."""
    fitting: list[str] = []
    remark = rendered("_The rest is left out: the summary may not be longer._") + "\n"
    room = limit - len(remark.encode()) - 1
    for place, block in enumerate(blocks):
        room -= len(block.encode("utf-8", "backslashreplace")) + 2
        if room < 0:
            return "\n\n".join([*fitting, remark]) if place else ""
        fitting.append(block)
    return "\n\n".join(fitting) + "\n"


def blocks(run: Run, result: Result) -> Iterator[str]:
    """The summary in blocks, the most important first."""
    what = "Operator checks" if run.title == "opcheck" else "Accuracy comparison"
    state = STATES.get(result.exit_status) or Reason("ended with exit status {}", result.exit_status)
    shard = [word.partition("=")[2] for word in run.command if word.startswith("--acc-shard=")][-1:]
    is_shard = re.fullmatch(r"\d+/\d+", "".join(shard))
    yield sentence("## {} {}{}", what, state, Reason(" (shard {})", *shard) if is_shard else "")
    yield _verdict(result, result.tally.caveats.first(run.plan))
    counts = result.tally.counts
    yield table(
        "verdict|comparisons", [(verdict, str(counts[verdict])) for verdict in VERDICTS if counts[verdict]]
    )
    if run.plan is not None:
        line = rendered(coverage_line(run.plan, run.floor))
        yield sentence("{}.", line[:1].upper() + line[1:])
    if result.problems:
        yield "\n".join(f"- {code(problem, SENTENCE)}" for problem in result.problems)
    yield from _roots(result)
    if result.tally.worst:
        yield rendered("### Worst by their bounds")
        yield table("pair|operator|step|layer|why", [_worst(row) for row in result.tally.worst])
    yield sentence("Verdict hash: {}", code(result.verdict_hash))
    if run.command:
        yield sentence("Run again:\n\n{}", fenced(shell(run.command)))
    if run.plan is not None and run.plan.notes:
        yield _folded(
            "Notes of the mapping", "\n".join(f"- {code(note, SENTENCE)}" for note in run.plan.notes)
        )
    if run.environment:
        rows = [(code(name), code(value)) for name, value in run.environment.items()]
        yield _folded("Environment", table("|", rows))


def _verdict(result: Result, caveats: Sequence[str] = ()) -> str:
    """The sentence that says it all, after those that say what the run does not prove."""
    if caveats:
        return "\n\n".join((*(f"**{code(caveat, SENTENCE)}**" for caveat in caveats), _verdict(result)))
    tally, diagnosis = result.tally, result.diagnosis
    if diagnosis is not None and diagnosis.roots:
        many = len(diagnosis.roots)
        first = diagnosis.roots[0]
        causes = Reason("{} root causes", many) if many > 1 else Reason("{} root cause", many)
        return sentence(
            "**{}**, from which {} other comparisons inherit. The first: {}",
            *(causes, diagnosis.inherited, code(first.sentence, SENTENCE)),
        )
    if tally.first is not None:
        cells = code(tally.first.name), code(tally.first.sentence, SENTENCE)
        return sentence("First failing: {}: {}", *cells)
    if not tally.tried:
        return sentence("{}.", "Nothing was compared")
    if not tally.compared:
        return rendered("Nothing was compared: every comparison that was tried could not be made.")
    return sentence("{} comparisons, all within their bounds or accepted.", tally.compared)


def _roots(result: Result) -> Iterator[str]:
    diagnosis = result.diagnosis
    if diagnosis is None or not diagnosis.roots:
        return
    order = "what the run was fed, then operators" if diagnosis.roots[0].fed else "in execution order"
    yield sentence("### Root causes, {}", order)
    rows = [
        (
            code(root.fed or root.name),
            code(_operator(root.row)),
            code(", ".join(dict.fromkeys(str(row.step) for row in (root.row, *root.also)))),
            code(root.row.layer),
            str(root.inherited),
            "" if root.amplification is None else f"{number(root.amplification)} x",
            "" if root.share is None else f"{root.share:.0%}",
            code(root.sentence, SENTENCE),
            code(root.test_id),
        )
        for root in diagnosis.roots[:ROOTS]
    ]
    yield table("root|operator|steps|layer|inherit|amplified|of the final error|what|test", rows)
    if len(diagnosis.roots) > ROOTS:
        yield sentence("{} more roots are in the report's rows.", len(diagnosis.roots) - ROOTS)
    if diagnosis.basis:
        yield sentence("Causes were followed along {}.", code(diagnosis.basis, SENTENCE))


def _worst(row: Row) -> tuple[str, ...]:
    return (
        code(row.name),
        code(_operator(row)),
        code(str(row.step)),
        code(row.layer),
        code(row.sentence, SENTENCE),
    )


def _operator(row: Row) -> str:
    return row.mine.op_type or row.golden.op_type


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{rendered(title)}</summary>\n\n{body}\n\n</details>"


def step_summary(environment: Mapping[str, str]) -> str:
    """The file that GitHub shows beside this step, empty anywhere else."""

    return environment.get("GITHUB_STEP_SUMMARY", "") if on_github(environment) else ""


class MarkdownSummary(FileView[Staged]):
    """The view. `append`: the file belongs to others too, as GitHub's does to all commands of a step."""

    def __init__(self, path: str, *, append: bool = False) -> None:
        super().__init__(path)
        self._append = append
        self._run = Run()

    @property
    def files(self) -> list[str]:
        """The file, but for GitHub's, whose name tells people nothing."""
        return [] if self._append else super().files

    def begin(self, run: Run) -> None:
        """Check the place. Raises `SettingsError` where it cannot be written: before the first test."""
        self._run = run
        flag = "GITHUB_STEP_SUMMARY" if self._append else "--acc-summary"
        target = target_of(self._path, flag, replaces=not self._append)
        self._file = Staged(target, append=self._append)

    def finish(self, result: Result) -> None:
        """Make the page, or as much as there is room for; GitHub's file gets none of a run without us."""
        if self._file is None or (self._append and self._run.plan is None and not result.tally.tried):
            return
        size = os.path.getsize(self._path) if self._append and os.path.exists(self._path) else 0
        text = fit(list(blocks(self._run, result)), LIMIT - size)
        self._file.write(text.encode("utf-8", "backslashreplace"))


# Annotations of GitHub Actions: one `::error` line for each root cause, which GitHub shows beside the run.
#
# GitHub keeps ten errors of a step, so there are never more: the roots in execution order, then what could
# not be compared. Only on GitHub (`GITHUB_ACTIONS=true`), for anywhere else such lines are noise. The escapes
# are those of GitHub's workflow commands.


MOST = 10
"""Errors of one step that GitHub shows."""
TITLE = 120
MESSAGE = 1000
"""Characters: a message is read in a box beside a commit."""
TITLES = {
    "fail": "fails",
    "incomparable": "could not be compared",
    "unmapped": "is unmapped",
    "incomplete": "is not there",
}
_ORDER = tuple(TITLES)


def on_github(environment: Mapping[str, str]) -> bool:
    """Whether this process is a step of GitHub Actions."""
    return environment.get("GITHUB_ACTIONS") == "true"


def annotation(title: str, message: str) -> str:
    """One `::error` command; both texts may be anything."""
    title = _data(printable(title, TITLE)).replace(":", "%3A").replace(",", "%2C")
    return f"::error title={title}::{_data(printable(message, MESSAGE))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


class Annotations(View):
    """The view: keeps the first failing rows, and prints the lines when everything else is printed."""

    def __init__(self) -> None:
        self._first: list[tuple[tuple[int, int, str], Row]] = []
        self._lines: list[str] = []

    def add(self, row: Row) -> None:
        """Keep a failing row while it is among the first."""
        if not row.red:
            return
        place = row.number if row.number is not None else sys.maxsize
        rank = _ORDER.index(row.verdict) if row.verdict in _ORDER else 0
        self._first.append(((rank, place, row.test_id), row))
        if len(self._first) > 2 * MOST:
            self._first = self._smallest()

    def _smallest(self) -> list[tuple[tuple[int, int, str], Row]]:
        return heapq.nsmallest(MOST, self._first, key=lambda entry: entry[0])

    def finish(self, result: Result) -> None:
        """Choose what is shown: by cause where causes are known."""
        self._lines = list(self._chosen(result))[:MOST]

    def _chosen(self, result: Result) -> Iterator[str]:
        has_roots = result.diagnosis is not None and bool(result.diagnosis.roots)
        for root in result.diagnosis.roots if result.diagnosis is not None else ():
            text = sentence("{} [{}]", root.sentence, root.test_id)
            yield annotation(sentence("root cause: {}", root.fed or root.name), text)
        for _, row in self._smallest():
            if not (has_roots and row.verdict in ("fail", "inherited")):
                where = f" [{row.test_id}]" if row.test_id else ""
                title = sentence("{} {}", printable(row.name, TITLE - 30), TITLES.get(row.verdict, "fails"))
                yield annotation(title, sentence("{}{}", row.sentence, where))
        for problem in result.problems:
            yield annotation(rendered("accuracy run"), rendered(problem))

    def close(self) -> None:
        """Print the lines: a runner reads them wherever they stand at the beginning of a line."""
        for line in self._lines:
            # Names are Unicode, a log need not be.
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self._lines = []
