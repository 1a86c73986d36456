"""The third table of `benchmarks/detection.py`: GE graphs of TorchAir against FX."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from .report import Report
from .tables import Figures, Goal, by
from .torchair_faults import meaning
from .torchair_programs import programs
from .torchair_runs import DTYPES, Case, Device, Outcome, examine, spots

GOAL = Goal(detection=0.95, first_root=0.95)
TABLES: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("fault", lambda one: f"{one.case.kind}: {meaning(one.case.kind)}"),
    ("operator", lambda one: one.case.op_type),
    ("program", lambda one: one.case.program),
    ("dtype", lambda one: f"{one.case.dtype}{', fused' if one.case.fused else ''}"),
)
CASES = 160
"""Faulty runs of a sample."""
FORMS = (("float32", False), ("float32", True), ("float16", False), ("float16", True))


def torchair(report: Report, directory: Path, seed: int, cases: int, verbose: bool) -> bool:
    """Run the table and print it; returns whether its goal holds. At least `cases` faults are drawn."""
    found = programs(directory, seed)
    devices = {
        (name, dtype, fused): Device(program, DTYPES[dtype], fused)
        for name, program in found.items()
        for dtype, fused in FORMS
    }
    grid = [case for (_, dtype, _), device in devices.items() for case in spots(device, dtype)]
    faulty = sample(grid, cases, seed)
    clean = [Case(*key) for key in devices]
    report.say(
        f"TorchAir: {len(faulty)} faulty runs of a grid of {len(grid)}, {len(clean)} clean ones, seed {seed}"
    )
    outcomes = []
    for case in (*faulty, *clean):
        outcomes.append(examine(case, devices[case.program, case.dtype, case.fused], directory / "run"))
        if verbose:
            report.say(f"{case}: {'; '.join(outcomes[-1].roots) or 'green'}; {outcomes[-1].first[:300]}")
    wrong, right = outcomes[: len(faulty)], outcomes[len(faulty) :]
    felt = [one for one in wrong if not one.void]
    for title, key in TABLES:
        report.table(by(felt, key, title))
    for one in outcomes:
        if word := _missed(one):
            report.say(f"- {word}: {one.case}: {one.first[:400]}")
    figures = Figures.of(wrong, right, GOAL)
    others = sum(one.others for one in felt)
    report.say(f"{figures}; {others} other roots")
    return figures.good and not others


def sample(grid: Sequence[Case], count: int, seed: int) -> list[Case]:
    """At least `count` cases: one of each fault at each type of operator, then of each program, then any."""
    order = list(grid)
    random.Random(seed).shuffle(order)
    chosen: dict[Case, None] = {}
    for key in (lambda one: (one.kind, one.op_type), lambda one: (one.kind, one.program, one.dtype)):
        seen = {key(one) for one in chosen}
        for case in order:
            if key(case) not in seen:
                seen.add(key(case))
                chosen[case] = None
    for case in order:
        if len(chosen) >= count:
            break
        chosen[case] = None
    return list(chosen)


def _missed(outcome: Outcome) -> str:
    if not outcome.case.kind:
        return "false alarm" if outcome.red else ""
    if not outcome.red:
        return "nothing reads it" if outcome.void else "not detected"
    if not outcome.hit:
        return "wrong root"
    return f"{outcome.others} other roots ({', '.join(outcome.roots)})" if outcome.others else ""
