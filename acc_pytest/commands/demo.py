"""`acc demo`: make a small golden and mine, compare them, and say where everything is."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AccError
from ..options import command_line
from ..reporting.texts import message, shell, terminal_width, wrapped_command
from .arguments import run_pytest

if TYPE_CHECKING:
    from ..lab.demo import DemoSpec
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
    from ..lab.demo import make_demo

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
    lines = [f"golden: {message(str(paths.golden))}", f"mine:   {message(str(paths.mine))}"]
    if paths.noise is not None:
        lines.append(f"noise:  {message(str(paths.noise))}")
    if paths.faulty:
        lines.append(f"the fault is in {' and '.join(paths.faulty)}")
    for line in [
        *lines,
        "compare again:",
        *wrapped_command(shell(["pytest", *command_line(values)]), terminal_width()),
    ]:
        print(line)
    return code


# The arguments that say which small model to run, for `acc demo` and `acc generate`.


MODELS = ("llama", "bloom", "chatglm", "qwen", "moe", "llama-separate", "llama-int8")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model, its sizes and what is wrong with it."""
    kinds = ", ".join(MODELS[1:])
    parser.add_argument("--model", choices=MODELS, metavar="KIND", help=f"{MODELS[0]} (the default), {kinds}")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="decoder layers (default: 2)")
    parser.add_argument("--tp", type=int, metavar="N", help="ranks that share the model (default: 1)")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="decode steps (default: 2)")
    parser.add_argument(
        "--dtype", default="float16", choices=("float16", "bfloat16"), help="dtype of mine (default: float16)"
    )
    parser.add_argument(
        "--seed", type=int, default=7, metavar="N", help="seed of weights and prompt (default: 7)"
    )
    parser.add_argument(
        "--fault", metavar="NAME", action=Once, help="put this mistake into mine; see --list-faults"
    )
    parser.add_argument("--fault-layer", type=int, default=0, metavar="N", help="the layer it is in")
    parser.add_argument("--fault-step", type=int, metavar="N", help="the step it is in (default: every one)")
    parser.add_argument("--list-faults", action="store_true", help="print the names of the faults and exit")


class Once(argparse.Action):
    """An option that may be given once: of two values one would be silently lost."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, word: Any = None
    ) -> None:
        """Keep the value. Ends in an error of the parser where there is one already."""
        before = getattr(namespace, self.dest)
        if before is not None:
            raise argparse.ArgumentError(self, f"a demo has one fault, got {before!r} and {values!r}")
        setattr(namespace, self.dest, values)


def list_faults() -> None:
    """Print the names of the faults, one a line."""
    from ..lab.atb import FAULTS

    print("\n".join(FAULTS))


def spec_of(arguments: argparse.Namespace) -> DemoSpec:
    """The demo that was asked for; a fault that the usual model cannot have brings its own model."""
    from ..lab.demo import HOMES, DemoSpec, Fault

    family, ranks = HOMES.get(arguments.fault, ("llama", 1))
    fault = (
        Fault(arguments.fault, arguments.fault_layer, step=arguments.fault_step) if arguments.fault else None
    )
    return DemoSpec(
        family=arguments.model or family,
        layers=arguments.layers,
        ranks=arguments.tp or ranks,
        decode_steps=arguments.steps,
        dtype=arguments.dtype,
        seed=arguments.seed,
        fault=fault,
    )


# `acc demo-torchair`: dumps of FX and GE to try things with, without an NPU.


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
    from ..lab.demo.torchair import GeFault, TorchairSpec, make_torchair_demo

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
    golden, mine, unfused = (str(path.parent) for path in (paths.golden, paths.mine, paths.unfused))
    lines = [
        "GE against FX:         " + _command(golden, mine),
        "fused against unfused: " + _command(unfused, mine),
    ]
    if paths.faulty:
        lines.append(f"the fault is in {paths.faulty[0]}")
    print("\n".join(lines))
    return 0


def _command(golden: str, mine: str) -> str:
    return shell(["pytest", f"--acc-golden={golden}", f"--acc-mine={mine}"])


# `acc generate`: a small model serves one request, under the probe of the `ATB_*` variables.
#
# What an inference program is to `acc dump`, without weights to download::
#
#     acc dump --backend cpu --type model tensor -er 0,3 --exec "acc generate --model llama"
#
# Weights and prompt come from the seed, so `acc demo` with the same options has the golden.


def add_generate(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "generate",
        help="run a small model as ATB operators on the CPU",
        description="Run a small model as ATB operators on the CPU: warm-up, prompt, greedy decoding. The "
        "ATB_* variables that acc dump sets say what is dumped; without them nothing is.",
    )
    add_model(parser)
    parser.set_defaults(run=run_generate)


def run_generate(arguments: argparse.Namespace) -> int:
    """Print the ids of the prompt and those that the model chose."""
    if arguments.list_faults:
        list_faults()
        return 0
    import torch

    from ..lab.atb import LanguageModel, NoProbe, Runtime
    from ..lab.demo.golden import seeded

    spec = spec_of(arguments).resolved()
    with torch.no_grad():
        weights = dict(seeded(spec.model, spec.seed).named_parameters())
    watched = any(name.startswith("ATB_") for name in os.environ)
    runtime = Runtime.from_environment(spec.ranks) if watched else Runtime([NoProbe()] * spec.ranks)
    model = LanguageModel(spec.model, weights, runtime, spec.fault)
    if spec.warmup:
        model.warm_up(spec.prompt_length)
    generator = torch.Generator().manual_seed(spec.seed + 1)
    ids = torch.randint(0, spec.vocab, (spec.prompt_length,), generator=generator).tolist()
    _print("prompt", ids)
    chosen: list[int] = []
    for _ in range(spec.decode_steps + 1):
        ids = [int(model.step(ids).argmax())]
        chosen += ids
    _print("generated", chosen)
    return 0


def _print(label: str, ids: list[int]) -> None:
    print(f"{label}: {' '.join(map(str, ids))}", flush=True)
