"""What replay costs: the time of a comparison with it over the time without, ATB and torch against golden.

The demo of the largest size that is quick to make, compared in one process; torch is golden's own model in
the dtype of mine. Prints a line each, and says at the end whether the bar holds: at most 4 times.

    python benchmarks/replay.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from acc_pytest.comparison import compare_pair
from acc_pytest.demo import DemoSpec, make_demo
from acc_pytest.demo.golden import seeded
from acc_pytest.diagnosis.recomputation import LOOKING, RecomputeBudget, Recomputer
from acc_pytest.diagnosis.recompute_torch import TorchRecomputer
from acc_pytest.diagnosis.recomputers import recomputer_of
from acc_pytest.judging.judges import Judge
from acc_pytest.mapping.pair import Plan
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from acc_pytest.threads import one_thread

MOST = 4.0
REPEATS = 3
SPEC = DemoSpec(
    layers=4, hidden=512, heads=8, kv_heads=8, intermediate=1376, prompt_length=128, decode_steps=0,
    dtype="bfloat16", noise=True,
).resolved()  # fmt: skip


@one_thread()
def main() -> int:
    """Print the figures; 0 when the bar holds."""
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="acc-") as directory:
        paths = make_demo(Path(directory) / "demo", SPEC)
        budget = RecomputeBudget(LOOKING.most, measured=True)
        for name, mine in (("ATB", paths.mine), ("torch", paths.noise)):
            settings = Settings.from_values({"golden": str(paths.golden), "mine": str(mine)})
            plan = make_plan(settings)

            def recomputer(plan: Plan = plan) -> Recomputer:
                if plan.mine_kind != "torch":
                    return recomputer_of(plan, budget)
                return TorchRecomputer(plan.mine_root, plan.pairs, seeded(SPEC.model, SPEC.seed), budget)

            judge = Judge(settings.rules)
            without = least(lambda plan=plan, judge=judge: compared(plan, judge))  # type: ignore[misc]
            extra = least(lambda plan=plan, made=recomputer: replayed(plan, made()))  # type: ignore[misc]
            ratio = (without + extra) / without
            worst = max(worst, ratio)
            outcomes = replayed(plan, recomputer())
            print(
                f"{name}: {len(plan.pairs)} pairs, {without:.2f} s without replay; {outcomes} operators "
                f"computed again, ratio {ratio:.2f}"
            )
    print(f"replay: ratio {worst:.2f} (at most {MOST:g}): {'holds' if worst <= MOST else 'MISSED'}")
    return 0 if worst <= MOST else 1


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
