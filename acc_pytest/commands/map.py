"""`acc map`: print what would be compared with what, and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..reporting.printable import message
from .arguments import add_sides, values_of_sides

if TYPE_CHECKING:
    from ..dumps.base import Dump
    from ..mapping.pair import Plan
    from .arguments import Commands


def add_map(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "map",
        help="print what would be compared with what, and why",
        description="Print every pair of two dumps, and every tensor without a partner, with the reason.",
    )
    add_sides(parser)
    parser.add_argument(
        "--propose",
        action="store_true",
        help="propose pairs of equal values among the tensors without a partner, which are read for it",
    )
    parser.add_argument(
        "--write",
        default="",
        metavar="FILE",
        help="add what is proposed to this mapping file, for --acc-op-mapping-file",
    )
    parser.set_defaults(run=run_map)


def run_map(arguments: argparse.Namespace) -> int:
    """Print the plan line by line, and what is proposed."""
    from ..mapping.explain import explain
    from ..session import open_and_plan
    from ..settings import Settings

    golden, mine, plan = open_and_plan(Settings.from_values(values_of_sides(arguments)))
    for line in explain(plan):
        print(message(line))
    if arguments.propose or arguments.write:
        _propose(golden, mine, plan, arguments.write)
    return 0


def _propose(golden: Dump, mine: Dump, plan: Plan, file: str) -> None:
    from ..comparison.proposals import proposals, write_proposals

    pairs = proposals(golden, mine, plan)
    print(f"proposed by equal values, and not compared: {len(pairs)} pairs")
    for proposal in pairs:
        print(message(f"  {proposal}"))
    if file:
        count = write_proposals(file, pairs)
        print(message(f"{count} of them are in {file}; compare them with --acc-op-mapping-file {file}"))
