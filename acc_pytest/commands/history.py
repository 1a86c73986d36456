"""`acc history DIR`: the runs that `--acc-history` kept, the age of each root, errors of pairs over time."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AccError
from ..reporting.history import History, PastRun, since
from ..reporting.summary import times
from ..reporting.texts import message, shortened

if TYPE_CHECKING:
    from .arguments import Commands


BLOCKS = "▁▂▃▄▅▆▇█"
"""A block for each half of a power of ten; those of the upper half are beyond the bound."""


_NARROWEST = 24
"""The least width of the last column, which is cut to the width of a terminal."""


def add_history(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "history",
        help="print the runs that pytest --acc-history kept, or a pair's error over them",
        description="Print the runs of a directory, the newest last, and since when each root is one.",
    )
    parser.add_argument("directory", metavar="DIR", help="the directory of --acc-history")
    parser.add_argument("--pair", default="", metavar="ID", help="the error of this pair, or of all like it")
    parser.set_defaults(run=run_history)


def run_history(arguments: argparse.Namespace) -> int:
    """Print the runs or the pairs, and a warning for each file that is no run. Raises `AccError`."""
    if not Path(arguments.directory).is_dir():
        raise AccError(f"{arguments.directory} is not an existing directory; give that of --acc-history")
    history = History(arguments.directory)
    lines = list(_pairs(history, arguments.pair.lower()) if arguments.pair else _runs(history))
    for warning in history.warnings:
        print(f"acc: warning: {message(warning)}", file=sys.stderr)
    if not history.runs:
        raise AccError(f"{arguments.directory}: holds no run; give the directory of --acc-history")
    if not lines:
        raise AccError(f"--pair {arguments.pair}: no comparison of the last runs has this in its id")
    for line in lines:
        print(line)
    return 0


def _runs(history: History) -> Iterator[str]:
    """A table of the runs, and a sentence on each root of the last one."""
    heads = ("run", "verdict", "failures", "worst", "commit", "roots, else the worst pair")
    table: list[tuple[str, ...]] = [heads, *map(_cells, history.runs)]
    widths = [max(map(len, column)) for column in zip(*table)][:-1]
    room = shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths)
    for cells in table:
        last = shortened(cells[-1], max(room, _NARROWEST)) if sys.stdout.isatty() else cells[-1]
        yield "  ".join([*map(str.ljust, cells, widths), last])
    yield from map(message, since(history.runs))


def _cells(run: PastRun) -> tuple[str, ...]:
    verdict = f"{run.verdict} (partial)" if run.partial else run.verdict
    failures, place = f"{run.failures} of {run.pairs}", ", ".join(run.roots) or run.worst
    cells = run.time[:16], verdict, failures, _times(run.worst_error), run.commit, place
    return tuple(message(cell) or "-" for cell in cells)


def _times(error: float | None) -> str:
    return "-" if error is None else times(error)


def _pairs(history: History, name: str) -> Iterator[str]:
    """For each comparison that is called so its error over the last runs: as a picture, and in numbers."""
    errors = history.errors(lambda pair: name in pair.lower() or name.endswith(f"::{pair.lower()}"))
    for pair in dict.fromkeys(pair for run in errors for pair in run):
        values = [run.get(pair) for run in errors]
        yield message(pair)
        yield f"  {''.join(map(_block, values))}  {' '.join(map(_times, values))} times its bound"


def _block(error: float | None) -> str:
    if error is None:
        return "·"
    height = math.ceil(2 * math.log10(error)) + 3 if 0 < error < math.inf else 7 * bool(error)
    return BLOCKS[min(max(height, 0), len(BLOCKS) - 1)]
