"""`acc compare`: `pytest --acc-golden ... --acc-mine ...` under the old tool's flags."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..errors import AccError
from .arguments import LOG_LEVELS, add_output, add_sides, values_of_sides
from .pytest_run import run_pytest

if TYPE_CHECKING:
    from .arguments import Commands


def add_compare(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "compare",
        aliases=["cc"],
        help="compare two dumps",
        description="Compare two dumps by pytest, under the flags of the old tool. Exit code: pytest's.",
        epilog="Everything after -- is passed to pytest: acc compare -gp G -mp M -- -k SelfAttention -n 2",
    )
    add_sides(parser)
    add_output(parser)
    parser.add_argument("-st", "--stats", action="store_true", help="not needed: statistics are recognised")
    parser.add_argument("-w", "--weight", action="store_true", help="not offered: weights are no dump")
    parser.add_argument("-r", "--rank", metavar="N", help="compare this rank only (default: all common ones)")
    parser.set_defaults(run=run_compare, passes_on=True)


def run_compare(arguments: argparse.Namespace) -> int:
    """Run pytest over the two dumps; returns its exit code."""
    if arguments.weight:
        raise AccError("-w: weights are not compared by themselves; leave -w out and give the dumps of a run")
    if arguments.stats:
        print(
            "acc: -st is not needed: dumps of statistics are recognised and compared as such", file=sys.stderr
        )
    values = values_of_sides(arguments) | {
        "output": arguments.output,
        "metrics": tuple(arguments.custom_algorithms),
    }
    if arguments.rank is not None:
        values["rank"] = arguments.rank
    return run_pytest(values, [*LOG_LEVELS[arguments.log_level], *arguments.for_pytest])
