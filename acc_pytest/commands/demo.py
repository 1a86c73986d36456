"""`acc demo`: make a small golden and mine, compare them, and say where everything is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..options import command_line, shell
from .compare import run_pytest

if TYPE_CHECKING:
    from ..demo import DemoPaths, DemoSpec
    from .arguments import Commands

MODELS = ("llama", "bloom", "chatglm", "qwen", "moe", "llama-separate", "llama-int8")


def add(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="make a small model's golden and mine, compare them",
        description="Dump a tiny torch model (float32, the golden) and the same network as ATB operators on "
        "the CPU (float16, mine), and compare the two. Exit code: pytest's.",
        epilog="Everything after -- is passed to pytest: acc demo -- -k SelfAttention -n 2",
    )
    parser.add_argument(
        "directory", nargs="?", default="acc_demo", metavar="DIR", help="gets golden, mine and the CSV report"
    )
    parser.add_argument("--model", choices=MODELS, help="kind of model (default: llama)")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="decoder layers (default: 2)")
    parser.add_argument("--tp", type=int, metavar="N", help="ranks that share the model (default: 1)")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="decode steps (default: 2)")
    parser.add_argument(
        "--dtype", default="float16", choices=("float16", "bfloat16"), help="of mine (default: float16)"
    )
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="of weights and prompt")
    parser.add_argument("--fault", metavar="NAME", help="put this mistake into mine; see --list-faults")
    parser.add_argument("--fault-layer", type=int, default=0, metavar="N", help="the layer it is in")
    parser.add_argument("--fault-step", type=int, metavar="N", help="the step it is in (default: every one)")
    parser.add_argument("--list-faults", action="store_true", help="print the names of the faults and exit")
    parser.add_argument("--only-dump", action="store_true", help="make the dumps, compare nothing")
    parser.set_defaults(run=run, passes_on=True)


def run(given: argparse.Namespace) -> int:
    """Write the pair, compare it, and print the command that compares it again."""
    if given.list_faults:
        from ..atb_cpu import FAULTS

        print("\n".join(FAULTS))
        return 0
    from pathlib import Path

    from ..demo import make_demo

    directory, spec = Path(given.directory), _spec(given)
    paths = make_demo(directory, spec)
    values: dict[str, Any] = {"golden": str(paths.golden), "mine": str(paths.mine), "output": str(directory)}
    if spec.family == "llama-int8":
        values["config"] = ("w8a8",)
    code = 0 if given.only_dump else run_pytest(values, given.for_pytest)
    for line in _said(paths, values):
        print(line)
    return code


def _spec(given: argparse.Namespace) -> DemoSpec:
    """The demo that was asked for; a fault that the usual model cannot have brings its own model."""
    from ..demo import HOMES, DemoSpec, Fault

    family, ranks = HOMES.get(given.fault, ("llama", 1))
    fault = Fault(given.fault, given.fault_layer, step=given.fault_step) if given.fault else None
    return DemoSpec(
        family=given.model or family,
        layers=given.layers,
        ranks=given.tp or ranks,
        decode_steps=given.steps,
        dtype=given.dtype,
        seed=given.seed,
        fault=fault,
    )


def _said(paths: DemoPaths, values: dict[str, Any]) -> list[str]:
    said = [f"golden: {paths.golden}", f"mine:   {paths.mine}"]
    if paths.faulty:
        said.append(f"the fault is in {' and '.join(paths.faulty)}")
    return [*said, "compare again:", shell(["pytest", *command_line(values)])]
