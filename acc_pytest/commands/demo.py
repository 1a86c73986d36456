"""`acc demo`: make a small golden and mine to try the comparison on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..options import command_line, shell

if TYPE_CHECKING:
    from .arguments import Commands


def add(commands: Commands) -> None:
    """Register the subcommand."""
    from ..demo.spec import FAMILIES, FAULTS

    parser = commands.add_parser("demo", help="make a small golden and mine to try the comparison on")
    parser.add_argument("directory", metavar="DIR", help="gets the directories golden and mine")
    parser.add_argument("--family", default="llama", choices=FAMILIES, help="kind of model")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="number of decoder layers")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes that share the model")
    parser.add_argument("--fault", default="none", choices=("none", *FAULTS), help="the mistake in mine")
    parser.add_argument("--fault-layer", type=int, default=0, metavar="N", help="the layer it is in")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Write the pair and print the command that compares it."""
    from pathlib import Path

    from ..demo import DemoSpec, Fault, make_demo

    fault = None if given.fault == "none" else Fault(given.fault, given.fault_layer)
    spec = DemoSpec(family=given.family, layers=given.layers, ranks=given.ranks, fault=fault)
    paths = make_demo(Path(given.directory), spec)
    if paths.faulty:
        print(f"the first wrong operator of mine is {paths.faulty[0]}")
    print("compare with:")
    print(shell(["pytest", *command_line({"golden": str(paths.golden), "mine": str(paths.mine)})]))
    return 0
