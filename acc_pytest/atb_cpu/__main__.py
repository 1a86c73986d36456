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
from dataclasses import replace

from ..errors import AccError

USAGE_ERROR = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code. Mistakes of the user end in one line on stderr."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        _run(given)
    except AccError as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        return USAGE_ERROR
    return 0


def _parser() -> argparse.ArgumentParser:
    from ..demo.spec import FAMILIES

    parser = argparse.ArgumentParser(
        prog="python -m acc_pytest.atb_cpu",
        description="Run a small model as ATB operators on the CPU: warm-up, prompt, greedy decoding. The "
        "ATB_* variables that acc dump sets say what is dumped; without them nothing is.",
    )
    parser.add_argument("--model", default="llama", choices=FAMILIES, help="kind of model (default: llama)")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="decoder layers (default: 2)")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="ranks that share it (default: 1)")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="decode steps (default: 2)")
    parser.add_argument(
        "--dtype", default="float16", choices=("float16", "bfloat16"), help="of the model (default: float16)"
    )
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="of weights and prompt (default: 7)")
    parser.add_argument("--fault", metavar="NAME", help="a mistake in it; acc demo --list-faults names them")
    parser.add_argument("--fault-layer", type=int, default=0, metavar="N", help="the layer it is in")
    parser.add_argument("--fault-step", type=int, metavar="N", help="the step it is in (default: every one)")
    return parser


def _run(given: argparse.Namespace) -> None:
    import torch

    from ..demo import DemoSpec
    from ..demo.golden import seeded
    from . import Fault, LanguageModel, NoProbe, Runtime

    int8 = given.model == "llama-int8"
    fault = Fault(given.fault, given.fault_layer, step=given.fault_step) if given.fault else None
    spec = DemoSpec(
        family="llama" if int8 else given.model,
        layers=given.layers,
        decode_steps=given.steps,
        dtype=given.dtype,
        seed=given.seed,
        ranks=given.tp,
    ).resolved()
    with torch.no_grad():
        weights = dict(seeded(spec.model, spec.seed).named_parameters())
    watched = any(name.startswith("ATB_") for name in os.environ)
    runtime = Runtime.from_environment(given.tp) if watched else Runtime([NoProbe()] * given.tp)
    model = LanguageModel(
        replace(spec.model, family="llama-int8") if int8 else spec.model, weights, runtime, fault
    )
    if spec.warmup:
        model.warm_up(spec.prompt_length)
    generator = torch.Generator().manual_seed(spec.seed + 1)
    ids = torch.randint(0, spec.vocab, (spec.prompt_length,), generator=generator).tolist()
    _say("prompt", ids)
    made: list[int] = []
    for _ in range(given.steps + 1):
        ids = [int(model.step(ids).argmax())]
        made += ids
    _say("generated", made)


def _say(what: str, ids: list[int]) -> None:
    sys.stdout.write(f"{what}: {' '.join(map(str, ids))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
