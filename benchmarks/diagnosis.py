"""What root analysis costs: the time of a comparison with it over the time without, on dumps that fail.

Three demos with a fault (one early, so that nearly all pairs fail), compared in one process; then a ledger of
100,000 rows. Prints a line each, and says at the end whether the bars hold: at most 1.30, and at most 2 s.

    python benchmarks/diagnosis.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from acc_pytest.comparison import compare_pair
from acc_pytest.diagnosis.evidence import PairState
from acc_pytest.diagnosis.inheritance import Inheritance
from acc_pytest.diagnosis.run import diagnose, with_cause
from acc_pytest.diagnosis.summary import Ledger, root_lines
from acc_pytest.judging.judges import Judge
from acc_pytest.lab.demo import DemoSpec, Fault, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.reference.recomputation import StoredRecomputer
from acc_pytest.reporting.row import Row
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings

MOST = 1.30
MOST_SECONDS = 2.0
ROWS = 100_000
REPEATS = 3
DEMOS = {
    "scale, layer 0, float16": DemoSpec(layers=4, decode_steps=2, fault=Fault("scale", 0)),
    "norm_eps, layer 0, bfloat16": DemoSpec(layers=4, dtype="bfloat16", fault=Fault("norm_eps", 0)),
    "residual, hidden 512, 64 tokens": DemoSpec(
        layers=2, hidden=512, heads=8, kv_heads=8, intermediate=1376, prompt_length=64, decode_steps=1,
        fault=Fault("residual", 0),
    ),
}  # fmt: skip


def main() -> int:
    """Print the figures; 0 when the bars hold."""
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="acc-") as directory:
        for name, spec in DEMOS.items():
            plan, settings = planned(Path(directory) / "demo", spec)
            without, rows = least(lambda plan=plan, rules=settings.rules: compared(plan, rules))  # type: ignore[misc]
            extra, _ = least(lambda plan=plan, rows=rows: diagnose(plan, rows))  # type: ignore[misc]
            ratio = (without + extra) / without
            worst = max(worst, ratio)
            failing = sum(row.verdict == "fail" for row in rows)
            print(
                f"{name}: {len(rows)} pairs, {failing} beyond their thresholds: {without:.2f} s without root "
                f"analysis, ratio with it {ratio:.3f}"
            )
    seconds, roots = summed_up()
    print(f"summary of {ROWS} rows, {roots} roots: {seconds:.2f} s")
    holds = worst <= MOST and seconds <= MOST_SECONDS
    print(
        f"root analysis: ratio {worst:.3f} (at most {MOST}), summary {seconds:.2f} s (at most "
        f"{MOST_SECONDS:g}): {'holds' if holds else 'MISSED'}"
    )
    return 0 if holds else 1


def planned(directory: Path, spec: DemoSpec) -> tuple[Plan, Settings]:
    paths = make_demo(directory, spec)
    settings = Settings.from_values({"golden": str(paths.golden), "mine": str(paths.mine)})
    return make_plan(settings), settings


def compared(plan: Plan, rules: tuple[object, ...]) -> list[Row]:
    judge = Judge(rules)  # type: ignore[arg-type]
    return [compare_pair(pair, lambda: judge, pair.id, number) for number, pair in enumerate(plan.pairs)]


def least(action: Callable[[], object]) -> tuple[float, list[Row]]:
    """The shortest of a few tries, in processor time, and the last result."""
    times, found = [], None
    for _ in range(REPEATS):
        start = time.process_time()
        found = action()
        times.append(time.process_time() - start)
    return min(times), found  # type: ignore[return-value]


def summed_up() -> tuple[float, int]:
    """Seconds to sum up the rows of a long run: a demo's decode step over and over."""
    with tempfile.TemporaryDirectory(prefix="acc-") as directory:
        spec = DemoSpec(layers=2, decode_steps=1, fault=Fault("scale", 0))
        plan, settings = planned(Path(directory) / "demo", spec)
        rows = compared(plan, settings.rules)
    step = [number for number, pair in enumerate(plan.pairs) if pair.step == 1]
    first = step[0]
    pairs, parents, ledger = [], [], Ledger()
    for turn in range(ROWS // len(step)):
        shift = turn * len(step)
        for number in step:
            pairs.append(replace(plan.pairs[number], step=turn))
            parents.append(tuple(one - first + shift for one in plan.parents[number] if one >= first))
    long = replace(plan, pairs=tuple(pairs), parents=tuple(parents), by_order=frozenset(), between={})
    own = [replace(rows[step[n % len(step)]], number=n) for n in range(len(pairs))]
    states = [PairState.of(row, number) for number, row in enumerate(own)]
    inheritance = Inheritance(long, states.__getitem__, StoredRecomputer({}))
    for row, state in zip(own, states):
        ledger.add(with_cause(row, inheritance.cause(state)) if state.failing else row)
    start = time.process_time()
    diagnosis = ledger.diagnosis(long)
    root_lines(diagnosis)
    return time.process_time() - start, len(diagnosis.roots)


if __name__ == "__main__":
    sys.exit(main())
