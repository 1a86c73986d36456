"""The second table of `benchmarks/detection.py`: torch against torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import torch_grid
from .report import Report
from .tables import Figures, Goal, by
from .torch_faults import FAULTS
from .torch_grid import Case
from .torch_runs import Outcome, examine_all

GOAL = Goal(detection=0.98, first_root=0.95, of_detected=True)
TABLES: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("fault", lambda one: f"{one.case.fault}: {FAULTS[one.case.fault].what}"),
    ("network", lambda one: one.case.network),
    ("dtype", lambda one: one.case.dtype),
    ("attention", lambda one: one.case.setting.implementation),
)


@dataclass(frozen=True)
class Options:
    """What is run and shown.

    `cases` is the size of a sample of the faulty runs (0: all), `only` an architecture, a fault or both
    (`llama/rope_sign`, `/rope_sign`, `llama/clean`), `verbose` prints the lines of every run's summary.
    """

    seed: int
    jobs: int
    cases: int = 0
    only: str = ""
    verbose: bool = False


def torch_against_torch(report: Report, directory: Path, given: Options) -> bool:
    """Run the table and print it; returns whether its goal holds."""
    found = torch_grid.settings(given.seed, given.only.partition("/")[0])
    faulty = [case for case in torch_grid.faulty(found, given.seed) if _asked(case, given.only)]
    if given.cases:
        faulty = sorted(random.Random(given.seed).sample(faulty, min(given.cases, len(faulty))), key=str)
    clean = [case for case in torch_grid.clean(found) if _asked(case, given.only)]
    report.say(f"torch against torch: {len(faulty)} faulty runs, {len(clean)} clean ones, seed {given.seed}")
    outcomes = []
    for one in examine_all([*faulty, *clean], directory, given.jobs):
        outcomes.append(one)
        if given.verbose:
            _tell(report, one)
    wrong, right = outcomes[: len(faulty)], outcomes[len(faulty) :]
    for title, key in TABLES:
        report.table(by([one for one in wrong if not one.void], key, title))
    for one in outcomes:
        if word := _missed(one):
            report.say(f"- {word}: {one.case}: {_explained(one)}")
    figures = Figures.of(wrong, right, GOAL)
    report.say(f"torch against torch: {figures}")
    return figures.good


def _asked(case: Case, only: str) -> bool:
    network, _, fault = only.partition("/")
    return network in ("", case.network) and fault in ("", case.fault or "clean")


def _tell(report: Report, outcome: Outcome) -> None:
    word = _missed(outcome) or "right"
    report.say(f"{outcome.case}: truth {outcome.truth}; {word}; {outcome.seconds:.2f} s")
    for line in outcome.lines:
        report.say(f"    {line}")


def _missed(outcome: Outcome) -> str:
    if not outcome.case.fault:
        return "false alarm" if outcome.red else ""
    if not outcome.red:
        return "nothing reads it" if outcome.void else "not detected"
    return "" if outcome.hit else "wrong root"


def _explained(outcome: Outcome) -> str:
    named = ", ".join(outcome.roots[:4]) or "no root"
    truth = f"it is {outcome.truth}; " if outcome.case.fault else ""
    return f"{truth}{outcome.failing} of {outcome.pairs} pairs fail; roots: {named}; {outcome.first[:300]}"
