"""Outcomes as tables, misses in words, and the figures of the last line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rates import counted, share

from acc_pytest.lab.atb import FAULTS

from .runs import Outcome

Cells = list[str]


@dataclass(frozen=True)
class Goal:
    """What is wanted: shares of faulty runs that are red and have the right first root; no red clean run.

    `of_detected` says that the second is a share of the red ones.
    """

    detection: float = 0.99
    first_root: float = 0.98
    of_detected: bool = False


class Examined(Protocol):
    """What the tables want to know of a run."""

    @property
    def red(self) -> bool: ...
    @property
    def hit(self) -> bool: ...
    @property
    def late(self) -> bool: ...
    @property
    def void(self) -> bool: ...
    @property
    def others(self) -> int: ...
    @property
    def pairs(self) -> int: ...


E = TypeVar("E", bound=Examined)


@dataclass(frozen=True)
class Figures:
    """Counts: faulty runs that change anything, red ones, those whose first root is the injected operator (of
    these `late` at a later step), faults that nothing reads; clean runs, red ones, pairs."""

    faulty: int
    red: int
    hits: int
    late: int
    void: int
    clean: int
    alarms: int
    pairs: int
    goal: Goal = Goal()

    @classmethod
    def of(cls, faulty: Sequence[Examined], clean: Sequence[Examined], goal: Goal = Goal()) -> Figures:
        felt = [one for one in faulty if not one.void]
        return cls(
            len(felt),
            sum(one.red for one in felt),
            sum(one.hit for one in felt),
            sum(one.late for one in felt),
            len(faulty) - len(felt),
            len(clean),
            sum(one.red for one in clean),
            sum(one.pairs for one in clean),
            goal,
        )

    @property
    def good(self) -> bool:
        """Whether the goal holds."""
        enough = self.red >= self.goal.detection * self.faulty
        return enough and self.hits >= self.goal.first_root * self.rooted and self.alarms == 0

    @property
    def rooted(self) -> int:
        """The runs of which the first roots are a share."""
        return self.red if self.goal.of_detected else self.faulty

    def __str__(self) -> str:
        return (
            f"detection {share(self.red, self.faulty)}, first root {share(self.hits, self.rooted)}"
            f"{f', {self.late} of them at a later step' if self.late else ''}"
            f"{f', {self.void} faults that nothing reads left out' if self.void else ''}, "
            f"false alarms in clean runs of {self.pairs} pairs {counted(self.alarms, self.clean)}: "
            f"the goal {'holds' if self.good else 'does not hold'}"
        )


def by(outcomes: Iterable[E], key: Callable[[E], str], title: str) -> list[Cells]:
    """A table with a line for each value of `key`: runs, red ones, right first roots, other roots a run."""
    groups: dict[str, list[E]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    table = [[title, "runs", "detected", "first root", "other roots a run"]]
    for name, found in groups.items():
        others = sum(one.others for one in found) / len(found)
        red, hits = sum(one.red for one in found), sum(one.hit for one in found)
        table.append([name, str(len(found)), str(red), str(hits), f"{others:.2f}"])
    return table


def fault_of(outcome: Outcome) -> str:
    fault = outcome.case.fault
    return f"{fault.kind}: {FAULTS[fault.kind].what}" if fault else ""


def step_of(outcome: Outcome) -> str:
    fault = outcome.case.fault
    return "all" if fault is None or fault.step is None else str(fault.step)


TABLES: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("fault", fault_of),
    ("network", lambda one: one.case.network),
    ("dtype", lambda one: one.case.setting.dtype),
    ("ranks", lambda one: str(one.case.ranks)),
    ("step", step_of),
    ("operator is compared", lambda one: "yes" if one.own is not None else "no: golden has no such tensor"),
)


def explained(outcome: Outcome) -> str:
    """Why a fault was not detected, or another operator was called the first root; with numbers."""
    own, names = outcome.own, " or ".join(outcome.faulty)
    if own is None:
        seen = f"{names} has no pair, for golden has no such tensor"
    else:
        size = (
            f"relative distance {own.error:.3g}, T {own.allowed:.3g}"
            if own.error is not None
            else "whole numbers"
        )
        seen = f"{names} {own.slot} is at {own.share:.2g} times its bound ({size})"
    if outcome.void:
        return f"{seen}; the logits of all steps are bit by bit those without the fault: nothing reads it"
    if not outcome.red:
        return f"{seen}; no pair fails: too small for any threshold"
    if outcome.late:
        return f"{seen}; found at step {outcome.steps[0]} only"
    later = outcome.faulty and any(name in outcome.faulty for name in outcome.roots)
    return f"{seen}; {'it is a later root' if later else 'it is no root'}; {outcome.first[:400]}"


def plain(table: Sequence[Cells]) -> str:
    """The table for a terminal; numbers are right-aligned."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(table: Sequence[Cells]) -> str:
    """The table for a document."""
    head, *rows = table
    rule = ["---", *["---:" for _ in head[1:]]]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, rule, *rows)
    )
