"""What pytest prints for a failed comparison: a sentence, a table, and where to look next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .printable import printable
from .row import Row, Scalar, Side, number

WIDTH = 4000
"""Characters of a line: names come from files, and paths may be long."""


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

    pytest shows `reprcrash.message` in its short summary and as the JUnit message, and asks
    `toterminal` for the rest.
    """

    text: str

    @property
    def reprcrash(self) -> Crash:
        return Crash(self.text.partition("\n")[0])

    def toterminal(self, writer: Any) -> None:
        """Write the text to pytest's terminal writer, the sentence in red."""
        first, _, rest = self.text.partition("\n")
        writer.line(first, red=True, bold=True)
        if rest:
            writer.line(rest)

    def __str__(self) -> str:
        return self.text


def failure_text(row: Row, rerun: str = "") -> str:
    """The failure in words. First line: the verdict; `rerun` is the command that repeats this test."""
    lines = [row.sentence]
    if row.cause is not None and row.cause.text:
        lines.append(f"cause: {row.cause.text}")
    if row.checks:
        lines += ["", *_table(row)]
    if row.worst.index:
        values = f"golden {row.worst.golden!r}, mine {row.worst.mine!r}"
        lines += ["", f"worst element {row.worst.index}: {values}"]
    lines += ["", *_side("golden", row.golden), *_side("mine", row.mine)]
    if row.policy:
        lines.append(f"matched by {row.policy}: {row.mapping_reason}")
    lines += [f"note: {note}" for note in row.notes]
    lines = [printable(line, WIDTH) for line in lines]
    if rerun:
        lines.append(f"re-run: {rerun}")
    return "\n".join(lines)


def _table(row: Row) -> list[str]:
    """metric | measured | allowed | why, broken bounds first; then the metrics without a bound."""
    cells = [("", "metric", "measured", "allowed", "why")]
    for check in sorted(row.checks, key=lambda check: check.passed):
        mark = "ok" if check.passed else "FAIL"
        cells.append((mark, check.metric, _number(check.measured), check.bound, check.reason))
    bounded = {check.metric for check in row.checks}
    for name, value in (*row.metrics.items(), *row.custom.items()):
        if name not in bounded and value is not None:
            cells.append(("", name, _number(value), "", ""))
    return _aligned(cells)


def _aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]) - 1)]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(line, widths)), line[-1]]).rstrip()
        for line in cells
    ]


def _side(label: str, side: Side) -> list[str]:
    if not side.path and not side.shape:
        return []
    what = f"{side.op_type} {side.node} {side.slot}".strip()
    lines = [f"{label:6}  {side.dtype} {side.shape}  {what}".rstrip()]
    lines += [f"        {path}" for path in side.path.split(";") if path]
    return lines


def _number(value: Scalar) -> str:
    return "undefined" if value is None else number(value)
