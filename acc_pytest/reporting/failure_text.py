"""The text of a failed comparison: numbers, cause and files; behind a blank line every bound and its reason.

The text has one line for each thing it says; they are wrapped when they are shown, to whatever shows them. A
terminal shows what stands before the blank line, with `-v` all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..base.forms import Scalar
from ..base.reason import Argument, Reason, arguments, clauses, code_of, joined, rendered, sentence
from ..base.vocabulary import number
from ..judging.threshold import by_rule
from ..judging.verdict import FURTHER, Check
from .row import INHERITED, Row, RowSide
from .texts import NAME, REASON, UNKNOWN, columns, near, printable, wrapped, wrapped_command

WIDTH = 4000
"""Characters of a line: names come from files, and paths may be long."""
FILE = " " * 8
"""The beginning of the line of a further file; its path is not cut, so that it can be copied."""
LINES = 12
"""Lines of a failure on a terminal."""
OTHERS = 10
"""Comparisons of a failing test that have a line each, beside the worst."""
FILES = 2
"""Files of one side that are all named: shards of many ranks would fill the screen."""
_DETAILS = "\n\n"
_COPIED = ("golden  ", "mine    ")
_CODE = "code    "
"""Beginnings of lines that stay whole, so that they can be copied; `rerun` is a further one."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Stands where pytest looks for the place of a crash; only `message` means something here."""

    message: str
    path: str = ""
    lineno: int = 0

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class FailureText:
    """A failure representation that is text and nothing else.

    pytest shows `reprcrash.message` in its short summary and as the JUnit message (`brief`, or the first line
    of the text), and asks `toterminal` for the rest: at most `limit` lines, or all of the text.
    """

    text: str
    brief: str = ""
    limit: int | None = None

    @property
    def reprcrash(self) -> Crash:
        return Crash(self.brief or self.text.partition("\n")[0])

    def toterminal(self, writer: Any) -> None:
        """Write the text to pytest's terminal writer, wrapped to its width, the first line in red."""
        first, *rest = self._shown(getattr(writer, "fullwidth", UNKNOWN))
        for line in first:
            writer.line(line, red=True, bold=True)
        for line in (line for lines in rest for line in lines):
            writer.line(line)

    def _shown(self, width: int) -> list[list[str]]:
        """The lines of the terminal for each line of the text. Beyond the limit the code goes, which all of
        the text has, and then the end of the longest sentence."""
        if self.limit == 0:
            return [[]]
        lines = (self.text if self.limit is None else self.text.partition(_DETAILS)[0]).split("\n")
        shown = [terminal_lines(line, width) for line in lines]
        excess = 0 if self.limit is None else sum(map(len, shown)) - self.limit
        if excess > 0:
            shown = [[] if line.startswith(_CODE) else pieces for line, pieces in zip(lines, shown)]
            excess = sum(map(len, shown)) - (self.limit or 0)
        longest = max(
            (pieces for line, pieces in zip(lines, shown) if not line.startswith((*_COPIED, rerun()))),
            key=len,
        )
        if excess > 0 and len(longest) > 1:
            longest[max(1, len(longest) - excess) :] = []
            longest[-1] = f"{longest[-1][: width - 4]} ..."
        return shown

    def __str__(self) -> str:
        return self.text


def terminal_lines(line: str, width: int) -> list[str]:
    """A line of a failure text as lines of a screen."""
    command = line.removeprefix(rerun())
    if command == line or len(line) <= width:
        return wrapped(line, width)
    return [rerun().rstrip(), *wrapped_command(command, width)]


def rerun() -> str:
    """The beginning of the line with the command that repeats a test."""
    return rendered("re-run: ")


def failure_text(row: Row) -> str:
    """The failure in words. First line: the numbers."""
    reasons = list(further_reasons(row))
    lines = [in_numbers(row)]
    if row.cause is not None and row.cause.text:
        lines += [Reason("cause: {}", row.cause.text)] if row.cause.text != lines[0] else []
    elif reasons:
        lines.append(reasons.pop(0))
    if row.worst.index:
        values = repr(row.worst.golden), repr(row.worst.mine)
        lines.append(Reason("worst element {}: golden {}, mine {}", row.worst.index, *values))
    sides = (("golden", row.golden), ("mine", row.mine))
    files = [f"{label:6}  {near(side.path.partition(';')[0])}" for label, side in sides if side.path]
    code = ", ".join(f"{label} {side.code}" for label, side in sides if side.code)
    lines += [f"{_CODE}{code}"] if code else []
    details = [*reasons, *(line for label, side in sides for line in _side(label, side))]
    if row.checks:
        # metric | measured | allowed, broken bounds first, and of these the one of the headline.
        cells = [("", *rendered("metric|measured|allowed").split("|"))]
        main = main_check(row)
        for check in sorted(row.checks, key=lambda check: (check.passed, check is not main)):
            mark = "ok" if check.passed else "FAIL"
            cells.append((mark, check.metric, _number(check.measured), check.bound))
        details += [*_aligned(cells), *_unbounded(row), *_why(row.checks)]
    if row.policy:
        details.append(Reason("matched by {}: {}", row.policy, row.mapping_reason))
    details += [Reason("note: {}", note) for note in row.notes]
    brief = [*(printable(line, WIDTH) for line in lines), *(printable(line, WIDTH, WIDTH) for line in files)]
    details = [printable(line, WIDTH, WIDTH if line.startswith(FILE) else NAME) for line in details]
    brief, details = [*map(rendered, brief)], [*map(rendered, details)]
    return "\n".join([*brief, "", *details] if details else brief)


def with_rerun(text: str, command: str) -> str:
    """A failure text with the command that repeats its test."""
    brief, details, rest = text.partition(_DETAILS)
    return f"{brief}\n{rerun()}{command}{details}{rest}"


def failure_text_of_all(rows: Sequence[Row]) -> str:
    """The failure of a test of several comparisons: the worst whole, the others in a line each."""
    worst = max(rows, key=lambda row: row.excess)
    lesser = [row for row in rows if row is not worst]
    text = failure_text(worst)
    lines = [text, ""] if lesser and _DETAILS not in text else [text]
    failures = [Reason("also fails: {}: {}", _of(row), in_numbers(row)) for row in lesser[:OTHERS]]
    lines += [rendered(printable(line, WIDTH)) for line in failures]
    if len(lesser) > OTHERS:
        lines.append(sentence("also fail: {} more, which the reports have", len(lesser) - OTHERS))
    return "\n".join(lines)


def _of(row: Row) -> str:
    side = row.mine if row.mine.slot or row.mine.node else row.golden
    return f"{row.name} {side.slot}".strip()


def _unbounded(row: Row) -> list[str]:
    """The metrics without a bound, in one line."""
    bounded = {check.metric for check in row.checks}
    metrics = [
        f"{name} {_number(value)}"
        for name, value in (*row.metrics.items(), *row.custom.items())
        if name not in bounded and value is not None
    ]
    return [Reason("      also  {}", ", ".join(metrics))] if metrics else []


def _why(checks: Sequence[Check]) -> list[str]:
    """Why the broken bounds, and those that a rule set, are what they are.

    Reasons that end in that of another bound (the derivation of T) say it there, once.
    """
    explained = [check for check in checks if not check.passed or by_rule(check.reason)]
    if not explained:
        return []
    standards = {check.derivation[0] for check in explained}
    standard = standards.pop() if len(standards) == 1 else ""
    reasons = {check.derivation[1] for check in checks}
    ends = {check.metric: [end for end in _ends(check.reason) if end in reasons] for check in explained}
    repeated = {end for of_check in ends.values() for end in of_check}
    lines = [Reason("why allowed ({}):", standard) if standard else rendered("why allowed:")]
    for check in sorted(checks, key=lambda check: check.derivation[1] not in repeated):
        if check in explained or check.derivation[1] in repeated:
            reason = rendered(check.derivation[1] if standard else check.reason)
            for end in ends.get(check.metric, ())[:1]:
                reason = reason.removesuffix(sentence("; {}", end))
            lines.append(f"  {check.metric}: {reason}")
    return lines


def _ends(reason: str) -> Iterator[str]:
    """The reasons that end a reason, the longest first."""
    while isinstance(reason, Reason) and isinstance(end := reason.args[-1] if reason.args else None, str):
        if reason.code.endswith("; {}"):
            yield end
        reason = end


def _aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(columns(line[column]) for line in cells) for column in range(len(cells[0]) - 1)]
    return [
        "  ".join(
            [*(text + " " * (width - columns(text)) for text, width in zip(line, widths)), line[-1]]
        ).rstrip()
        for line in cells
    ]


def _side(label: str, side: RowSide) -> list[str]:
    if not side.shape:
        return []
    paths = [path for path in side.path.split(";") if path]
    node = "" if side.node and side.node in side.path else side.node
    what = " ".join(word for word in (side.op_type, node, side.slot) if word)
    lines = [f"{label:6}  {side.dtype} {side.shape}  {what}".rstrip()]
    if len(paths) > FILES:
        return [*lines, Reason("        and {} more files, which the CSV names", len(paths) - 1)]
    return [*lines, *(f"{FILE}{near(path)}" for path in paths[1:])]


def _number(value: Scalar) -> str:
    return "undefined" if value is None else number(value)


# A failed comparison in one line, its numbers first; and in what room is left beside a test's id.


_NAMES = {
    "relative_euclidean_distance": ("relative L2", "L2"),
    "cosine_similarity": ("cosine", "cosine"),
    "max_absolute_error": ("max absolute error", "max abs"),
    "mean_relative_error": ("mean relative error", "mean rel"),
    "max_relative_error": ("max relative error", "max rel"),
}
"""Metrics that people call by shorter names than the reports do: in a sentence, and where room is scarce."""
_COUNTS = {
    "new_nonfinite": ("NaN or Inf in mine only", "new NaN/Inf"),
    "lost_nonfinite": ("NaN or Inf in golden only", "lost NaN/Inf"),
    "mismatches": ("different", "different"),
}


def in_numbers(row: Row) -> str:
    """The failed bound that says most, in numbers; the verdict's sentence where no bound failed."""
    check = main_check(row)
    if check is None:
        return row.sentence
    excess = check.excess
    if check.at_least or check.metric in _COUNTS or not 1.05 <= excess < math.inf:
        return _long(check, row)
    times = f"{excess:.0f}" if 10 <= excess < 1e6 else f"{excess:.2g}"
    return Reason("{} ({} times)", _long(check, row), times)


def briefly(row: Row) -> tuple[str, ...]:
    """Texts for a comparison that fails, or may, in the short summary, the fullest first."""
    if row.excused:
        excuse = printable(row.excuse, REASON)
        if code_of(excuse) != INHERITED:
            return (excuse,)
        root, step, *_ = arguments(excuse, INHERITED) or ()
        return excuse, Reason("inherited from {} at step {}", root, step), Reason("inherited from {}", root)
    check = main_check(row)
    if check is None:
        return (row.sentence, row.verdict) if row.alone else (row.sentence,)
    if check.metric in _COUNTS:
        count = Reason("{} {}", f"{check.measured or 0:.0f}", _COUNTS[check.metric][1])
        return in_numbers(row), _long(check, row), count
    (measured, allowed), sign = _apart(check, 2), "<" if check.at_least else ">"
    bare = f"{measured} {sign} {allowed}"
    named = Reason("{} {}", _names(check)[-1], bare)
    return in_numbers(row), _long(check, row), named, bare, f"{measured}{sign}{allowed}"


def further_reasons(row: Row) -> Iterator[str]:
    """The clauses of the verdict's sentence, and the reasons, that add to the numbers of failed bounds."""
    failed = {check.metric for check in row.checks if not check.passed}
    if not failed:
        return
    sentences = [
        clause
        for clause in clauses(row.sentence)
        if arguments(clause, FURTHER) is None and _subject(clause) not in failed
    ]
    if sentences:
        yield joined("; ", sentences)
    yield from (reason for reason in row.reasons if reason != row.sentence and reason not in row.notes)


def _subject(sentence: str) -> Argument:
    """The name or number that a reason is about, its first; of the texts of earlier files the first word."""
    subject: Argument = sentence
    while isinstance(subject, Reason):
        subject = subject.args[0] if subject.args else ""
    return sentence.partition(" ")[0] if subject is sentence else subject


def main_check(row: Row) -> Check | None:
    """Counts first, then what has no value, then the relative L2 distance, then the largest excess."""
    failed = [check for check in row.checks if not check.passed]
    return max(failed, key=_weight) if failed else None


def _weight(check: Check) -> tuple[int, float]:
    if check.metric in _COUNTS:
        return 3, check.measured or 0.0
    if check.measured is None or math.isnan(check.measured):
        return 2, 0.0
    return int(check.metric == "relative_euclidean_distance"), check.excess


def _names(check: Check) -> tuple[str, ...]:
    return _NAMES.get(check.metric, (check.metric,))


def _long(check: Check, row: Row) -> str:
    word = "required" if check.at_least else "allowed"
    if check.metric in _COUNTS:
        elements = row.counts.get("elements")
        count: str = f"{check.measured or 0:.0f}"
        count = Reason("{} of {} elements", count, elements) if elements else count
        return Reason("{} {}, {} {:g}", count, _COUNTS[check.metric][0], word, check.allowed)
    measured, allowed = _apart(check, 3)
    return Reason("{} {}, {} {}", _names(check)[0], measured, word, allowed)


def _apart(check: Check, digits: int) -> tuple[str, str]:
    """Measured and allowed in as few digits as tell them apart."""
    if check.measured is None:
        return "undefined", _rounded(check.allowed, digits, check.at_least)
    for precision in range(digits, 17):
        texts = _rounded(check.measured, precision), _rounded(check.allowed, precision, check.at_least)
        if texts[0] != texts[1]:
            break
    return texts


def _rounded(value: float, digits: int, is_similarity: bool = False) -> str:
    """`value` in `digits` digits; of what is best at 1, so many of its distance from 1."""
    if is_similarity and 0 < 1 - value < 1:
        return f"{value:.{digits - 1 - math.floor(math.log10(1 - value))}f}"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e6 else text
