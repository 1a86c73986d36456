"""`acc history DIR`: the runs that `--acc-history` kept, the age of each root, errors of pairs over time."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import AccError
from ..reporting.history import LAST, History, PastRun, since
from ..reporting.summary import times
from ..reporting.texts import message, on_screen

if TYPE_CHECKING:
    from .arguments import Commands


MOST_PAIRS = 20
"""Pairs that are printed of those that `--pair` names."""
NUMBERS = 10
"""Runs of which a line has the numbers, beside the picture."""
BLOCKS = "▁▂▃▄▅▆▇█"
"""A block for each half of a power of ten; those of the upper half are beyond the bound."""


def add_history(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "history",
        help="print the runs that pytest --acc-history kept, or a pair's error over them",
        description="Print the runs of a directory, the newest last, and since when each root is one.",
    )
    parser.add_argument("directory", metavar="DIR", help="the directory of --acc-history")
    parser.add_argument("--pair", default="", metavar="ID", help="the error of this pair, or of all like it")
    parser.add_argument(
        "--last", type=int, default=LAST, metavar="N", help=f"show the last N runs (default: {LAST})"
    )
    parser.set_defaults(run=run_history, refuse=parser.error)


def run_history(arguments: argparse.Namespace) -> int:
    """Print the runs or the pairs; files that are no run are warned of. Raises `AccError` without a run."""
    if arguments.last < 1:
        arguments.refuse(f"--last must be >= 1, got {arguments.last}")
    history = History(arguments.directory)
    pairs = list(_pairs(history, arguments.pair, arguments.last)) if arguments.pair else []
    for warning in history.warnings:
        print(f"acc: warning: {message(warning)}", file=sys.stderr)
    if not history.runs:
        raise AccError(f"{arguments.directory}: holds no run; give the directory of pytest --acc-history")
    if arguments.pair and not pairs:
        raise AccError(f"--pair {arguments.pair}: no comparison of the last {arguments.last} runs is like it")
    for line in pairs or _runs(history.runs, arguments.last):
        print(line)
    return 0


def _runs(runs: Sequence[PastRun], last: int) -> Iterator[str]:
    """A table of the last runs, and a sentence on each root."""
    table = [("run", "verdict", "failures", "worst", "pair", "roots", "commit"), *map(_cells, runs[-last:])]
    widths = [max(map(len, column)) for column in zip(*table)]
    if len(runs) > last:
        yield f"{len(runs) - last} earlier runs are not shown (--last)"
    for cells in table:
        yield "  ".join(map(str.ljust, cells, widths)).rstrip()
    yield from on_screen(map(message, since(runs)))


def _cells(run: PastRun) -> tuple[str, ...]:
    roots = ", ".join(run.roots[:2]) + (f" and {len(run.roots) - 2} more" if len(run.roots) > 2 else "")
    return (
        message(run.when),
        f"{message(run.verdict)}{' (partial)' if run.partial else ''}",
        f"{run.failures} of {run.pairs}",
        _times(run.worst_error),
        message(run.worst) or "-",
        message(roots) or "-",
        message(run.commit),
    )


def _times(error: float | None) -> str:
    return "-" if error is None else times(error)


def _pairs(history: History, name: str, last: int) -> Iterator[str]:
    """For each comparison that is called so its error over the runs: as a picture, and in numbers."""
    name = name.lower()
    errors = history.errors(lambda pair: name in pair.lower() or name.endswith(f"::{pair.lower()}"), last)
    pairs = list(dict.fromkeys(pair for run in errors for pair in run))
    if pairs:
        runs = history.runs[-last:]
        yield f"{len(runs)} runs, {message(runs[0].when)} to {message(runs[-1].when)}; 1 is the bound"
    worst = sorted(pairs, key=lambda pair: -max(run.get(pair) or 0.0 for run in errors))[:MOST_PAIRS]
    for pair in sorted(worst, key=pairs.index):
        values = [run.get(pair) for run in errors]
        before = "... " if len(values) > NUMBERS else ""
        yield message(pair)
        yield f"  {''.join(map(_block, values))}  {before}{' '.join(map(_times, values[-NUMBERS:]))}"
    if len(pairs) > MOST_PAIRS:
        yield f"and {len(pairs) - MOST_PAIRS} more pairs, with smaller errors"


def _block(error: float | None) -> str:
    if error is None or math.isnan(error):
        return "·"
    height = math.ceil(2 * math.log10(error)) + 3 if 0 < error < math.inf else 7 * bool(error)
    return BLOCKS[min(max(height, 0), len(BLOCKS) - 1)]
