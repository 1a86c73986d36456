"""The arguments that say which small model to run, for `acc demo` and `acc generate`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..demo import DemoSpec

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
    from ..atb_cpu import FAULTS

    print("\n".join(FAULTS))


def spec_of(arguments: argparse.Namespace) -> DemoSpec:
    """The demo that was asked for; a fault that the usual model cannot have brings its own model."""
    from ..demo import HOMES, DemoSpec, Fault

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
