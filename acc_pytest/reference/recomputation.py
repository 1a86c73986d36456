"""Computing an operator of mine again: the outcome, and what every kind of dump offers for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..base.reason import Reason, joined
from ..errors import AccError, RefusedCall, guarded
from ..reporting.texts import shortened

WRONG_ITSELF = "is wrong on its own inputs"
WRONG = "the operator is wrong on its own inputs"
NOT_AT_HAND = "the tensors are not at hand"


@dataclass(frozen=True, slots=True)
class Recomputation:
    """`outcome` is `right`, `wrong`, or empty where nothing is known, with the reason in `why`.

    `error` is the relative L2 distance from the exact result, `None` where it has no value. `allowed` is what
    it was held against and `reason` how that came to be, `noise` what rounding was measured to do;
    `row_error` and `row_allowed` are those of the worst row, `typical_error` those of a typical one, and
    `bias` is how much all of it is too large or small (`rows`). They are `None` and empty where it was
    judged in another way. `sources` are the numbers of the pairs that it was found to be computed from, by
    values of both sides: it reads nothing else. `reads` are those that golden's code computed it from.
    """

    outcome: str = ""
    error: float | None = None
    why: str = ""
    noise: float | None = None
    allowed: float | None = None
    reason: str = ""
    row_error: float | None = None
    row_allowed: float | None = None
    typical_error: float | None = None
    typical_allowed: float | None = None
    bias: float | None = None
    bias_allowed: float | None = None
    bias_noise: float | None = None
    bias_deviation: float | None = None
    part_bias: float | None = None
    part_bias_allowed: float | None = None
    golden_error: float | None = None
    golden_allowed: float | None = None
    note: str = ""
    lacking: str = ""
    culprit: str = ""
    sources: str = ""
    reads: str = ""

    @property
    def measured(self) -> dict[str, tuple[float, float]]:
        """Measurement and bound by the name of the measure; of all elements first."""
        measures = {
            "error": (self.error, self.allowed),
            "row_error": (self.row_error, self.row_allowed),
            "typical_row_error": (self.typical_error, self.typical_allowed),
            "bias": (None if self.bias is None else abs(self.bias), self.bias_allowed),
            "part_bias": (self.part_bias, self.part_bias_allowed),
            "golden_error": (self.golden_error, self.golden_allowed),
        }
        return {
            name: (value, bound)
            for name, (value, bound) in measures.items()
            if value is not None and bound is not None
        }

    @property
    def furthest(self) -> tuple[float, float]:
        """Measurement and bound of the measure that is the largest share of its bound."""
        return max(self.measured.values(), key=lambda pair: pair[0] / pair[1] if pair[1] else math.inf)

    @property
    def sentence(self) -> str:
        """A sentence on an operator that is wrong, or on another one that is."""
        what = WRONG
        if self.culprit:
            what = Reason("{}, before it and not compared, {}", shown(self.culprit), WRONG_ITSELF)
        return Reason("{}: {}", what, self.detail) if self.detail else what

    def is_beyond(self, times: float) -> bool:
        """Whether it is wrong by so many times what is allowed, in any measure."""
        return self.outcome == "wrong" and any(
            error > times * bound for error, bound in self.measured.values()
        )

    @property
    def detail(self) -> str:
        """A clause that follows `WRONG`; empty where nothing more is known."""
        if self.error is None:
            return self.why
        if self.noise is None or self.allowed is None:
            return Reason("relative L2 error {:.3g}", self.error)
        if self.error <= self.allowed:
            return self.why
        times: str = "it rounds nothing"
        if self.noise:
            times = Reason("{:.3g} times its rounding", self.error / self.noise)
        return Reason("relative L2 error {:.3g} ({})", self.error, times)


NOT_COMPUTED = Recomputation()


@dataclass(frozen=True, slots=True)
class RecomputeBudget:
    """The most elements of an operator that is computed again; whether its rounding is `measured`."""

    limit: int
    measured: bool = False


DOUBTS = 2.0
"""How many times its bound an operator must be off where mine may round more than what it is held against: an
operator of ATB where nobody asked for it to be computed again, code of mine that is not golden's."""
LOOKING = RecomputeBudget(1 << 27)
"""That of looking for causes (1 GiB in float64)."""


class Recomputer(Protocol):
    """Says whether operators of mine are right on their own inputs."""

    def of_pair(self, number: int) -> Recomputation:
        """The outcome for the operator that wrote the tensor of a pair."""

    def of_operator(self, number: int, path: str) -> Recomputation:
        """The outcome for the operator at `path` in the tree of mine, in the execution of the pair."""
        return Recomputation(why=NOT_AT_HAND)

    def of_golden(self, number: int) -> Recomputation:
        """Whether that operator makes golden's result from golden's inputs, with the parameters of mine."""
        return Recomputation(why=NOT_AT_HAND)

    def unlike(self, number: int, path: str) -> str:
        """A sentence on parameters of that operator that its twins in other layers do not have; or empty."""
        return ""


class StoredRecomputer(Recomputer):
    """Outcomes of an earlier run, by the number of the pair; none for operators that are not compared."""

    def __init__(self, outcomes: dict[int, Recomputation], why: str = NOT_AT_HAND) -> None:
        self._outcomes = outcomes
        self._unknown = Recomputation(why=why)

    def of_pair(self, number: int) -> Recomputation:
        return self._outcomes.get(number, self._unknown)


class SharedOut(Recomputer):
    """Leaves each pair to the recomputer that `choose` names."""

    def __init__(self, choose: Callable[[int], Recomputer]) -> None:
        self._choose = choose

    def of_pair(self, number: int) -> Recomputation:
        return self._choose(number).of_pair(number)

    def of_operator(self, number: int, path: str) -> Recomputation:
        return self._choose(number).of_operator(number, path)

    def of_golden(self, number: int) -> Recomputation:
        return self._choose(number).of_golden(number)

    def unlike(self, number: int, path: str) -> str:
        return self._choose(number).unlike(number, path)


class Recomputations:
    """Outcomes by key (an output, a file); each is computed once."""

    def __init__(self) -> None:
        self._outcomes: dict[Hashable, Recomputation] = {}

    def of(self, key: Hashable, compute: Callable[[], Recomputation], doing: str) -> Recomputation:
        """The outcome for `key`, that of `compute` the first time. `doing` is for errors nobody foresaw."""
        if key not in self._outcomes:
            self._outcomes[key] = attempted(compute, doing)
        return self._outcomes[key]


def attempted(compute: Callable[[], Recomputation], doing: str) -> Recomputation:
    """The outcome of `compute`; where that raises, the error is the reason; a call refused is a note."""
    try:
        with guarded(doing, (OSError,)):
            return compute()
    except (AccError, OSError) as error:
        return Recomputation(why=str(error), note=str(error) if isinstance(error, RefusedCall) else "")


def worst(outcomes: Sequence[Recomputation]) -> Recomputation:
    """One word for several: `wrong` if any is, `right` if all are, of each the largest error."""
    for outcome in ("wrong", "", "right"):
        candidates = [recomputed for recomputed in outcomes if recomputed.outcome == outcome]
        if candidates:
            return max(candidates, key=lambda each: -1.0 if each.error is None else each.error)
    return Recomputation(why="it has no output")


# Names from dumps as they stand in sentences.


NAME_WIDTH = 120
NAMED = 3
"""Operators between a root and its parents that its sentence names."""


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    omitted = Reason(" and {} more", len(names) - NAMED) if len(names) > NAMED else ""
    return joined(", ", map(shown, names[:NAMED])) + omitted


def shown(name: str) -> str:
    """A name from a dump as it stands in sentences: a row for every inherited failure repeats it."""
    return shortened(name, NAME_WIDTH)


def full_name(path: str) -> str:
    """The name of the operator at `path`, as ATB makes it of the ids above: `RopeOperation_2_0_1_0`."""
    segments = [segment.partition("_") for segment in path.split("/")]
    if not all(number.isdecimal() for number, _, _ in segments):
        return path
    return "_".join((segments[-1][2], *(number for number, _, _ in segments)))
