"""`acc demo-torchair`: dumps of FX and GE to try things with, without an NPU."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import AccError
from ..reporting.printable import shell

if TYPE_CHECKING:
    from ..demo.torchair import TorchairPaths
    from .arguments import Commands


def add_demo_torchair(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "demo-torchair",
        help="make a small model's FX and GE dumps",
        description="Dump a small model as TorchAir does: FX in float32 (golden), its graphs as the Graph "
        "Engine runs them in float16 (mine), and those once more without fusion (unfused).",
    )
    parser.add_argument(
        "directory", nargs="?", default="torchair_demo", metavar="DIR", help="directory of the dumps"
    )
    parser.add_argument(
        "--release",
        default="7.2",
        metavar="X.Y",
        help="TorchAir release whose layout is written (default: 7.2)",
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="devices (default: 1)")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="runs of each graph (default: 2)")
    parser.add_argument(
        "--seed", type=int, default=7, metavar="N", help="seed of weights and inputs (default: 7)"
    )
    parser.add_argument(
        "--fault", metavar="OP", help="make this operator of mine compute wrong results, for example Gelu"
    )
    parser.set_defaults(run=run_demo_torchair)


def run_demo_torchair(arguments: argparse.Namespace) -> int:
    """Write the dumps and print the commands that compare them."""
    from pathlib import Path

    from ..demo.torchair import GeFault, TorchairSpec, make_torchair_demo

    spec = TorchairSpec(
        release=arguments.release,
        ranks=arguments.ranks,
        steps=arguments.steps,
        seed=arguments.seed,
        fault=GeFault(arguments.fault) if arguments.fault else None,
    )
    try:
        paths = make_torchair_demo(Path(arguments.directory), spec)
    except AccError as error:
        # torch.fx adds lines to what is raised below it
        raise AccError(str(error).splitlines()[0]) from error
    print("\n".join(_comparisons(paths)))
    return 0


def _comparisons(paths: TorchairPaths) -> list[str]:
    golden, mine, unfused = (str(path.parent) for path in (paths.golden, paths.mine, paths.unfused))
    lines = [
        "GE against FX:         " + _command(golden, mine),
        "fused against unfused: " + _command(unfused, mine),
    ]
    if paths.faulty:
        lines.append(f"the fault is in {paths.faulty[0]}")
    return lines


def _command(golden: str, mine: str) -> str:
    return shell(["pytest", f"--acc-golden={golden}", f"--acc-mine={mine}"])
