"""The bars: how good verdicts have to be, and whether they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detecting.tables import Cells
from rates import counted, share

from .outcome import Outcome, between
from .styles import STYLES
from .ways import DEFAULT, PROFILE, REPLAY

UNMEASURED = "-"


@dataclass(frozen=True)
class Bar:
    """What is wanted of runs: the least share of good ones, or the most bad ones."""

    what: str
    share: dict[str, float] | None = None
    most: dict[str, int] | None = None

    def cell(self, way: str, good: int, runs: int) -> tuple[str, bool]:
        """What is printed of it, and whether it holds; a bar without runs holds."""
        if not runs:
            return UNMEASURED, True
        if self.most is not None:
            holds, wanted = runs - good <= self.most[way], f"<= {self.most[way]}"
            measured = counted(runs - good, runs)
        else:
            assert self.share is not None
            holds, wanted = good >= self.share[way] * runs, f">= {self.share[way]:.0%}"
            measured = share(good, runs)
        return f"{measured}, {wanted}: {'holds' if holds else 'falls short'}", holds


def _ways(default: float, profile: float, replay: float) -> dict[str, float]:
    return {DEFAULT: default, PROFILE: profile, REPLAY: replay}


CLEAN = Bar("clean runs red", most={DEFAULT: 0, PROFILE: 0, REPLAY: 0})
ILL = Bar("clean runs red, ill-conditioned", most={DEFAULT: 2, PROFILE: 0, REPLAY: 0})
LARGE = Bar("caught, size >= 8 x noise", _ways(0.99, 0.99, 0.99))
MIDDLE = Bar("caught, 4-8 x", _ways(0.8, 0.98, 0.98))
SMALL = Bar("caught, 2-4 x", _ways(0.5, 0.8, 0.95))
ROOT = Bar("first root right, of the caught", _ways(0.95, 0.97, 0.98))
DEEP = Bar("scaled by 1.01 in bfloat16, 32 layers: caught", _ways(1.0, 1.0, 1.0))
TOKENS = Bar("a token zeroed or negated beside a massive one: caught and named", _ways(1.0, 1.0, 1.0))

Counted = tuple[Bar, list[Outcome], list[Outcome]]
"""A bar, its runs, and those that are good in the way that is asked for."""


def table(
    clean: Sequence[Outcome], faulty: Sequence[Outcome], deep: Sequence[Outcome], ways: Sequence[str]
) -> tuple[list[Cells], bool]:
    """A line for each bar, a column for each way, and whether all of them hold."""
    lines: list[Cells] = [["", *ways]]
    good = True
    counted = {way: _counted(clean, faulty, deep, way) for way in ways}
    for number, (bar, _, _) in enumerate(counted[ways[0]]):
        cells = [bar.what]
        for way in ways:
            _, runs, right = counted[way][number]
            text, holds = bar.cell(way, len(right), len(runs))
            cells.append(text)
            good = good and holds
        lines.append(cells)
    return lines, good


def _counted(
    clean: Sequence[Outcome], faulty: Sequence[Outcome], deep: Sequence[Outcome], way: str
) -> list[Counted]:
    well, ill = ([one for one in clean if one.ill is wanted] for wanted in (False, True))
    found: list[Counted] = [(bar, runs, _green(runs, way)) for bar, runs in ((CLEAN, well), (ILL, ill))]
    for bar, least, below in ((LARGE, 8.0, float("inf")), (MIDDLE, 4.0, 8.0), (SMALL, 2.0, 4.0)):
        runs = between(faulty, least, below)
        found.append((bar, runs, _caught(runs, way)))
    caught = _caught(faulty, way)
    found.append((ROOT, caught, _named(caught, way)))
    found.append((DEEP, list(deep), _caught(deep, way)))
    tokens = [one for one in faulty if _is_token_beside_massive(one)]
    found.append((TOKENS, tokens, _named(_caught(tokens, way), way)))
    return found


def _green(runs: Sequence[Outcome], way: str) -> list[Outcome]:
    return [one for one in runs if not one.by(way).red]


def _caught(runs: Sequence[Outcome], way: str) -> list[Outcome]:
    return [one for one in runs if one.by(way).caught]


def _named(runs: Sequence[Outcome], way: str) -> list[Outcome]:
    return [one for one in runs if one.by(way).hit]


def _is_token_beside_massive(outcome: Outcome) -> bool:
    return outcome.weights == STYLES["massive"].what and outcome.fault.startswith("token_")
