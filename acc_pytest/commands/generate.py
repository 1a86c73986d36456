"""`acc generate`: a small model serves one request, under the probe of the `ATB_*` variables.

What an inference program is to `acc dump`, without weights to download::

    acc dump --backend cpu --type model tensor -er 0,3 --exec "acc generate --model llama"

Weights and prompt come from the seed, so `acc demo` with the same options has the golden.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from .demo_model import add_model, list_faults, spec_of

if TYPE_CHECKING:
    from .arguments import Commands


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

    from ..atb_cpu import LanguageModel, NoProbe, Runtime
    from ..demo.golden import seeded

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
