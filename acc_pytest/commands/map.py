"""`acc map`: print what would be compared with what, and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..reporting.printable import message
from .arguments import add_sides, values_of_sides

if TYPE_CHECKING:
    from .arguments import Commands


def add(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "map",
        help="print what would be compared with what, and why",
        description="Print every pair of two dumps, and every tensor without a partner, with the reason.",
    )
    add_sides(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Print the plan line by line."""
    from ..mapping.explain import explain
    from ..session import make_plan
    from ..settings import Settings

    for line in explain(make_plan(Settings.from_values(values_of_sides(given)))):
        print(message(line))
    return 0
