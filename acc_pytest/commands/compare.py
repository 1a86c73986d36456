"""`acc compare`: `pytest --acc-golden ... --acc-mine ...` under the old tool's flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import AccError
from ..guard import FLAG, shows_tracebacks
from ..options import command_line
from .arguments import add_sides, values_of_sides

if TYPE_CHECKING:
    from .arguments import Commands

LOG_LEVELS = {
    "debug": ["-vv", "--log-level=DEBUG"],
    "info": [],
    "warning": ["-q"],
    "error": ["-qq"],
    "fatal": ["-qq"],
    "critical": ["-qq"],
}
"""The old tool's log levels as pytest's verbosity."""


def add(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "compare",
        aliases=["cc"],
        help="compare two dumps",
        description="Compare two dumps by pytest, under the flags of the old tool. Exit code: pytest's.",
        epilog="Everything after -- is passed to pytest: acc compare -gp G -mp M -- -k SelfAttention -n 2",
    )
    add_sides(parser)
    parser.add_argument("-o", "--output", default=".", metavar="DIR", help="directory of the CSV report")
    parser.add_argument(
        "-alg",
        "--custom-algorithms",
        nargs="+",
        default=[],
        metavar="FILE.py:FUNCTION",
        help="your own metrics, (golden, mine) -> (number, message)",
    )
    parser.add_argument("-l", "--log-level", default="info", choices=LOG_LEVELS, help="how much is printed")
    parser.add_argument("-st", "--stats", action="store_true", help="not needed: statistics are recognised")
    parser.add_argument("-w", "--weight", action="store_true", help="not offered: weights are no dump")
    parser.add_argument("-r", "--rank", metavar="N", help="compare this rank only (default: all common ones)")
    parser.set_defaults(run=run, passes_on=True)


def run(given: argparse.Namespace) -> int:
    """Run pytest over the two dumps; returns its exit code."""
    if given.weight:
        raise AccError("-w: weights are not compared; give dumps of a run")
    if given.stats:
        print(
            "acc: -st is not needed: dumps of statistics are recognised and compared as such", file=sys.stderr
        )
    values = values_of_sides(given) | {"output": given.output, "metrics": tuple(given.custom_algorithms)}
    if given.rank is not None:
        values["rank"] = given.rank
    return run_pytest(values, [*LOG_LEVELS[given.log_level], *given.for_pytest])


def run_pytest(values: Mapping[str, object], words: Sequence[str]) -> int:
    """Run pytest with the options `values`, by `Settings` field, and further words; returns its exit code."""
    import pytest

    # -p acc: also where plugins are not loaded by themselves (PYTEST_DISABLE_PLUGIN_AUTOLOAD).
    # acc_pytest is loaded already, which pytest would warn of.
    quiet = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    debug = [FLAG] if shows_tracebacks() else []
    return int(pytest.main(["-p", "acc", *quiet, *command_line(values), *debug, *words]))
