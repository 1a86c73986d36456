"""`python -m acc_pytest.atb_cpu`: a small model serves one request, under the probe of the `ATB_*` variables.

What an inference program is to `acc dump`, without weights to download::

    acc dump --backend cpu --type model tensor -er 0,3 --exec "python -m acc_pytest.atb_cpu --model llama"

Weights and prompt come from the seed, so `acc demo` with the same options has the golden.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..commands.arguments import USAGE_ERROR
from ..commands.demo_model import add_model, list_faults, spec_of
from ..errors import AccError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code. Mistakes of the user end in one line on stderr."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.list_faults:
            list_faults()
        else:
            _run(given)
    except AccError as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        return USAGE_ERROR
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m acc_pytest.atb_cpu",
        description="Run a small model as ATB operators on the CPU: warm-up, prompt, greedy decoding. The "
        "ATB_* variables that acc dump sets say what is dumped; without them nothing is.",
    )
    add_model(parser)
    return parser


def _run(given: argparse.Namespace) -> None:
    import torch

    from ..demo.golden import seeded
    from . import LanguageModel, NoProbe, Runtime

    spec = spec_of(given).resolved()
    with torch.no_grad():
        weights = dict(seeded(spec.model, spec.seed).named_parameters())
    watched = any(name.startswith("ATB_") for name in os.environ)
    runtime = Runtime.from_environment(spec.ranks) if watched else Runtime([NoProbe()] * spec.ranks)
    model = LanguageModel(spec.model, weights, runtime, spec.fault)
    if spec.warmup:
        model.warm_up(spec.prompt_length)
    generator = torch.Generator().manual_seed(spec.seed + 1)
    ids = torch.randint(0, spec.vocab, (spec.prompt_length,), generator=generator).tolist()
    _say("prompt", ids)
    made: list[int] = []
    for _ in range(spec.decode_steps + 1):
        ids = [int(model.step(ids).argmax())]
        made += ids
    _say("generated", made)


def _say(what: str, ids: list[int]) -> None:
    sys.stdout.write(f"{what}: {' '.join(map(str, ids))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
