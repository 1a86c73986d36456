"""What replay costs: the time of a comparison with it over the time without, ATB and torch against golden.

The demo of the largest size that is quick to make, compared in one process; torch is golden's own model in
the dtype of mine. What is asked for (`--acc-replay`) is all operators. Unasked are small operators of ATB,
and modules of a Llama of transformers as golden's dump outlines them. Prints a line each, and whether its bar
holds.

    python benchmarks/replay.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acc_pytest import DumpConfig, register_hook
from acc_pytest.comparison import compare_pair
from acc_pytest.demo import DemoSpec, make_demo
from acc_pytest.demo.golden import seeded
from acc_pytest.diagnosis.recomputation import LOOKING, RecomputeBudget, Recomputer
from acc_pytest.diagnosis.recompute_torch import TorchRecomputer
from acc_pytest.diagnosis.recomputers import recomputer_of
from acc_pytest.dumps import open_dump
from acc_pytest.judging.judges import Judge
from acc_pytest.mapping.pair import Plan
from acc_pytest.modes.replaying import outlines_for, recomputer_for, unasked_of_atb
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from acc_pytest.threads import one_thread

MOST_ASKED = 4.0
MOST_OF_ATB = 1.5
MOST_OUTLINED = 3.0
REPEATS = 3
SPEC = DemoSpec(
    layers=4, hidden=512, heads=8, kv_heads=8, intermediate=1376, prompt_length=128, decode_steps=0,
    dtype="bfloat16", noise=True,
).resolved()  # fmt: skip
BUDGET = RecomputeBudget(LOOKING.most, measured=True)


@dataclass(frozen=True)
class Case:
    """A comparison, and who computes its operators again; `most` is the bar for the ratio."""

    name: str
    plan: Plan
    judge: Judge
    recomputer: Callable[[], Recomputer]
    most: float


@one_thread()
def main() -> int:
    """Print the figures; 0 when the bars hold."""
    good = True
    with tempfile.TemporaryDirectory(prefix="acc-") as directory:
        for case in cases(Path(directory)):
            without = least(lambda case=case: compared(case.plan, case.judge))  # type: ignore[misc]
            extra = least(lambda case=case: replayed(case.plan, case.recomputer()))  # type: ignore[misc]
            ratio = (without + extra) / without
            holds = ratio <= case.most
            good = good and holds
            print(
                f"{case.name}: {len(case.plan.pairs)} pairs, {without:.2f} s without replay; "
                f"{replayed(case.plan, case.recomputer())} operators computed again, ratio {ratio:.2f} "
                f"(at most {case.most:g}): {'holds' if holds else 'MISSED'}"
            )
    return 0 if good else 1


def cases(directory: Path) -> Iterator[Case]:
    """Each comparison, its dumps made before."""
    paths = make_demo(directory / "demo", SPEC)
    settings, plan = opened(paths.golden, paths.mine)
    judge = Judge(settings.rules)
    yield Case("ATB, asked for", plan, judge, lambda: recomputer_of(plan, BUDGET), MOST_ASKED)
    yield Case(
        "ATB, small operators",
        plan,
        judge,
        lambda: known(unasked_of_atb(settings, plan, outlines_for(settings, plan))),
        MOST_OF_ATB,
    )
    assert paths.noise is not None
    _, noise = opened(paths.golden, paths.noise)
    model = seeded(SPEC.model, SPEC.seed)
    yield Case(
        "torch, asked for",
        noise,
        judge,
        lambda: TorchRecomputer(open_dump(noise.mine_root), noise.pairs, model, BUDGET),
        MOST_ASKED,
    )
    settings, llama = opened(*llamas(directory))
    outlines = outlines_for(settings, llama)
    assert outlines
    yield Case(
        "torch, by the outline",
        llama,
        judge,
        lambda: recomputer_for(settings, llama, outlines),
        MOST_OUTLINED,
    )


def opened(golden: Path, mine: Path) -> tuple[Settings, Plan]:
    settings = Settings.from_values({"golden": str(golden), "mine": str(mine)})
    return settings, make_plan(settings)


def known(found: Any) -> Any:
    assert found is not None
    return found


def llamas(directory: Path) -> tuple[Path, Path]:
    """Dumps of a Llama of the same size, in float32 and in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8, vocab_size=1000
    )
    torch.manual_seed(SPEC.seed)
    model: Any = LlamaForCausalLM(config)
    model.eval()
    places = directory / "llama", directory / "llama_bfloat16"
    for place, dtype in zip(places, (torch.float32, torch.bfloat16)):
        with torch.no_grad(), register_hook(model.to(dtype), DumpConfig(place)):
            model(torch.arange(128)[None])
    return places


def compared(plan: Plan, judge: Judge) -> int:
    """Compare all pairs; how many there are."""
    for number, pair in enumerate(plan.pairs):
        compare_pair(pair, lambda: judge, pair.id, number)
    return len(plan.pairs)


def replayed(plan: Plan, recomputer: Recomputer) -> int:
    """Compute the operators of all pairs again; of how many something is known."""
    written = [n for n, pair in enumerate(plan.pairs) if not pair.fed]
    return sum(bool(recomputer.of_pair(number).outcome) for number in written)


def least(action: Callable[[], int]) -> float:
    """The shortest of a few tries, in seconds of the processor."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
