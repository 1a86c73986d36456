"""`acc demo`: make a small golden and mine, compare them, and say where everything is."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..options import command_line
from ..reporting.printable import message, shell
from ..reporting.wrapping import terminal_width, wrapped_command
from .demo_model import add_model, list_faults, spec_of
from .pytest_run import run_pytest

if TYPE_CHECKING:
    from ..demo import DemoPaths
    from .arguments import Commands


CSV = "accuracy.csv"
"""The report of a demo, whose directory is made anew each time, as the report is."""


def add_demo(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="make a small model's golden and mine, compare them",
        description="Dump a tiny torch model (float32, the golden) and the same network as ATB operators on "
        "the CPU (float16, mine), and compare the two. Exit code: pytest's.",
        epilog="Everything after -- is passed to pytest: acc demo -- -k SelfAttention -n 2",
    )
    parser.add_argument(
        "directory",
        nargs="?",
        default="acc_demo",
        metavar="DIR",
        help="directory of the dumps and the CSV report",
    )
    add_model(parser)
    parser.add_argument(
        "--noise",
        action="store_true",
        help="keep a noise run as a dump (--acc-noise) in place of golden's noise profile",
    )
    parser.add_argument("--only-dump", action="store_true", help="make the dumps, compare nothing")
    parser.set_defaults(run=run_demo, passes_on=True)


def run_demo(arguments: argparse.Namespace) -> int:
    """Write the pair, compare it, and print the command that compares it again."""
    if arguments.list_faults:
        list_faults()
        return 0
    from pathlib import Path

    from ..demo import make_demo

    directory, spec = (
        Path(arguments.directory),
        replace(spec_of(arguments), noise=arguments.noise, profile=not arguments.noise),
    )
    paths = make_demo(directory, spec)
    values: dict[str, Any] = {"golden": str(paths.golden), "mine": str(paths.mine)}
    values |= {"output": str(directory), "csv": CSV}
    if paths.noise is not None:
        values["noise"] = str(paths.noise)
    if spec.family == "llama-int8":
        values["config"] = ("w8a8",)
    code = 0 if arguments.only_dump else run_pytest(values, arguments.for_pytest)
    for line in _closing(paths, values):
        print(line)
    return code


def _closing(paths: DemoPaths, values: dict[str, Any]) -> list[str]:
    lines = [f"golden: {message(str(paths.golden))}", f"mine:   {message(str(paths.mine))}"]
    if paths.noise is not None:
        lines.append(f"noise:  {message(str(paths.noise))}")
    if paths.faulty:
        lines.append(f"the fault is in {' and '.join(paths.faulty)}")
    return [
        *lines,
        "compare again:",
        *wrapped_command(shell(["pytest", *command_line(values)]), terminal_width()),
    ]
