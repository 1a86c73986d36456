"""The table of a run, and its findings by where they came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .children import Finding, Tally
from .oracle import BAD, REFUSED, RETURNED

_COLUMNS = ("format", "mutations", RETURNED, REFUSED, *BAD, "CPU s")


def table(tallies: Sequence[Tally]) -> list[str]:
    """Markdown, a line a format and a last one of all."""
    rows = [_COLUMNS, tuple("---" if column == "format" else "--:" for column in _COLUMNS)]
    rows += [_row(tally) for tally in tallies]
    if len(tallies) > 1:
        whole = Tally("all", seconds=sum(tally.seconds for tally in tallies))
        for tally in tallies:
            whole.counts.update(tally.counts)
        rows.append(_row(whole))
    widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))]
    return [_line(row, widths) for row in rows]


def _row(tally: Tally) -> tuple[str, ...]:
    counts = [f"{tally.counts[kind]:,}" for kind in (RETURNED, REFUSED, *BAD)]
    return tally.format, f"{tally.total:,}", *counts, f"{tally.seconds:.0f}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
    return f"| {' | '.join(cells)} |"


def progress(tally: Tally) -> str:
    """One line when a format is done."""
    bad = ", ".join(f"{tally.counts[kind]} {kind}" for kind in BAD if tally.counts[kind])
    return f"{tally.format}: {tally.total} in {tally.seconds:.1f} s{': ' + bad if bad else ''}"


def findings(tally: Tally, most: int) -> Iterator[str]:
    """Findings of different origins, the most frequent first, at most so many."""
    kinds: dict[str, list[Finding]] = {}
    for finding in tally.findings:
        kinds.setdefault(_origin(finding), []).append(finding)
    for origin, same in sorted(kinds.items(), key=lambda item: -len(item[1]))[:most]:
        first = same[0]
        said = f"{len(same)} x {first.outcome.kind}, --replay {first.case}: {first.outcome.said:.200}"
        yield f"{said} [{origin:.160}]"


def _origin(finding: Finding) -> str:
    """Where it came from: the last line of ours in the trace, or the message without its numbers."""
    places = re.findall(r'File "[^"]*/(acc_pytest/[^"]*)", line (\d+)', finding.outcome.trace)
    if places:
        return f"{finding.outcome.kind} {places[-1][0]}:{places[-1][1]}"
    return finding.outcome.kind + re.sub(r"[\d/][^ ]*", "", finding.outcome.said)[:80]
