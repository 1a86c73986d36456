"""The rule of evidence: which pairs agree, and which errors rounding alone can have made.

The inputs of an operator agree only if each was compared with its partner and passed under a bound that is
no excuse (`Standing.SOUND`). What was not compared (unmapped, incomparable, left out after a tie, statistics
alone) does not agree and excuses nothing. Every judge and every sentence about inputs asks `PairEvidence`.

A pair beyond its bound passes only where rounding explains it. With e the measured error of a pair, r the
error of its operator on its own inputs, n the rounding of that operator, and p the pairs it computes from,

    E = hypot(n, share * carried)        share = sqrt(sum E_p^2 / sum e_p^2)

is what rounding has made of it; carried is sqrt(e^2 - r^2) where the operator was computed again and is right
on both sides, so that its result follows from its inputs whatever it amplifies. An operator that was not
computed again, or reads what is not compared, hands on at most the largest e_p: nothing says that it
amplifies. An operator that is wrong, and one below a pair that fails, has no E. So a fault anywhere above
makes share small in all that follows from it, and its error is not excused.

The bounds of the pair may then follow from `T = min(1/4, 2 E)` (`judging.derive`); 2 is the safety factor of
T. A rule's factor raises the 1/4, up to 1/2 (`PairState.cap`). Such a pair is `LIFTED`: its row says so, the
summary counts it, and those below it are held against their own E again, not against inputs that agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from ..comparison.expert_calls import ExpertCalls
from ..judging.tolerance import PER_LAYER, SAFETY
from ..mapping.choices_above import is_choice
from ..mapping.fed import EXACT
from .names import full_name
from .pair_state import PairState
from .recomputation import Recomputation, Recomputer

if TYPE_CHECKING:
    from ..mapping.pair import Plan

_MODULE_ROUNDINGS = PER_LAYER / SAFETY
"""Units of rounding of an operator that was not computed again: it may be a whole layer."""


class Standing(Enum):
    """The standing of a compared tensor: equal, passing by an excuse, beyond its bound, or not known."""

    SOUND = "sound"
    LIFTED = "lifted"
    DIFFERS = "differs"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a pair's operator: how each that was compared stands, and the names of the others."""

    compared: tuple[Standing, ...]
    not_compared: tuple[str, ...]

    @property
    def agree(self) -> bool:
        """Whether each input was compared and passed under a bound that is no excuse."""
        return not self.not_compared and set(self.compared) == {Standing.SOUND}


@dataclass(frozen=True, slots=True)
class _Error:
    """The measured error of a pair, and how much of it rounding has made; both relative to golden."""

    measured: float
    rounding: float


_NONE = _Error(0.0, 0.0)


class PairEvidence:
    """Evidence that the pairs of a plan are for each other.

    `state` judges a pair, and is `None` for one that does not run; `local` computes operators again. Without
    `lifts` nothing passes as rounding.
    """

    def __init__(
        self, plan: Plan, state: Callable[[int], PairState | None], local: Recomputer, lifts: bool = True
    ) -> None:
        self._lifts = lifts and plan.mine_kind in ("torch", "atb")
        self._plan = plan
        self._judged = state
        self._local = local
        self._experts = ExpertCalls(plan)
        self._errors: dict[int, _Error | None] = {}
        self._lifted: set[int] = set()

    def state(self, number: int) -> PairState | None:
        """The state of a pair; a lifted one does not fail."""
        state = self._judged(number)
        if state is not None and state.failing and self.lift(state) is not None:
            return replace(state, failing=False, excused=True)
        return state

    def standing(self, number: int) -> Standing:
        """The standing of a pair's tensor, for those computed from it."""
        state = self.state(number)
        if state is None or not state.compared or state.stated:
            return Standing.NOT_COMPARED
        if state.failing:
            return Standing.DIFFERS
        return Standing.LIFTED if state.excused else Standing.SOUND

    def inputs(self, number: int, parents: Iterable[PairState], passed: Sequence[int]) -> Inputs:
        """The inputs of a pair: the nearest pairs `parents` that were compared, and those `passed` on the way
        to them that were not."""
        standings = {state.number: self.standing(state.number) for state in parents}
        hidden = [number for number, standing in standings.items() if standing is Standing.NOT_COMPARED]
        names = [
            *self._plan.unseen.get(number, ()),
            *map(full_name, self._plan.between.get(number, ())),
            *(self._plan.pairs[pair].mine.name for pair in (*passed, *hidden)),
        ]
        return Inputs(tuple(standings.values()), tuple(dict.fromkeys(names)))

    def lift(self, state: PairState) -> float | None:
        """The T, at most the cap, up to which rounding explains the error of a failing pair; else `None`.

        It is 0 for a pair whose shapes, rows or whole numbers are those of another choice that rounding made.
        """
        if not self._lifts or state.replayed == "wrong":
            return None
        if state.accumulated is not None:
            stored = min(state.cap, state.accumulated)
            return stored if not stored or state.needed <= stored else None
        error = self._error(state.number)
        if state.number not in self._lifted or error is None:
            return None
        return min(state.cap, SAFETY * error.rounding)

    def _error(self, number: int) -> _Error | None:
        """The error of a pair and what rounding made of it; `None` where nothing shows that."""
        if number not in self._errors and self._plan.parents:
            for pair_number in self._unknown(number):
                self._errors[pair_number] = self._traced(pair_number)
        return self._errors.get(number)

    def _unknown(self, number: int) -> list[int]:
        """A pair and all above it that were not looked at yet; a pair comes after all it computes from."""
        pending, visited = [number], {number}
        for current in pending:
            new = [
                parent
                for parent in self._sources(current)
                if parent not in visited and parent not in self._errors
            ]
            visited.update(new)
            pending += new
        return sorted(visited)

    def _sources(self, number: int) -> Sequence[int]:
        """The pairs through which an error may come to a pair."""
        return () if self._plan.pairs[number].fed in EXACT else self._plan.parents[number]

    def _traced(self, number: int) -> _Error | None:
        state = self._judged(number)
        if state is None:
            return None
        if not state.failing and (state.near or state.error == 0.0):
            return _Error(state.error or 0.0, state.error or 0.0)
        parent_errors = [self._errors.get(parent) for parent in self._sources(number)]
        inputs = [error for error in parent_errors if error is not None]
        if len(inputs) < len(parent_errors) or state.replayed == "wrong":
            return None
        if not state.compared and not state.failing:
            return _joined(inputs) if inputs else None
        if self._plan.pairs[number].fed and not inputs:
            return _NONE if not state.failing and state.error is None else None
        return self._of_operator(state, inputs)

    def _of_operator(self, state: PairState, inputs: Sequence[_Error]) -> _Error | None:
        """The error of what an operator made of `inputs` whose errors rounding has made."""
        recomputed, verified = self._computed(state)
        if recomputed.outcome == "wrong":
            return None
        if state.error is None or state.shapes_differ:
            return self._chosen(state, verified)
        error = self._explained(state, recomputed, inputs, verified)
        if state.failing and state.needed > min(state.cap, SAFETY * error.rounding):
            return self._chosen(state, verified=False)
        if state.failing:
            self._lifted.add(state.number)
        return error

    def _computed(self, state: PairState) -> tuple[Recomputation, bool]:
        """The operator of a pair on the inputs of mine, and whether its result follows from pairs: it is
        right there and on golden's inputs, and all that it reads was compared."""
        number = state.number
        recomputed = self._local.of_pair(number) if self._plan.mine_kind == "atb" else state.recomputed
        if recomputed.outcome != "right":
            return recomputed, False
        golden = self._local.of_golden(number)
        if golden.outcome == "wrong":
            return golden, False
        if golden.outcome != "right":
            return recomputed, False
        parent_states = map(self._judged, self._sources(number))
        between = self._plan.between.get(number, ())
        return recomputed, all(state is not None and state.compared for state in parent_states) and all(
            self._local.of_operator(number, path).outcome == "right" for path in between
        )

    def _explained(
        self, state: PairState, recomputed: Recomputation, inputs: Sequence[_Error], verified: bool
    ) -> _Error:
        """The error of a pair and what rounding made of it; `verified` is that of `_computed`."""
        measured = state.error or 0.0
        arriving = _joined(inputs)
        noise = math.hypot(_rounding_of(recomputed, state), state.quantised)
        carried = math.sqrt(max(0.0, measured**2 - (recomputed.error or 0.0) ** 2)) if verified else measured
        if not verified:
            carried = min(carried, max((error.measured for error in inputs), default=0.0))
        if verified and self._plan.mine_kind == "atb":
            noise = math.hypot(noise, self._local.of_golden(state.number).error or 0.0)
        share = arriving.rounding / arriving.measured if arriving.measured else 0.0
        rounding = math.hypot(noise, share * carried)
        return _Error(measured, rounding if state.failing else min(rounding, measured))

    def _chosen(self, state: PairState, verified: bool) -> _Error | None:
        """The error of whole numbers, other shapes, and rows of one expert: golden's choice, or another that
        rounding made above. Of the latter nothing can be measured."""
        if not state.failing:
            return _NONE
        pair = self._plan.pairs[state.number]
        parents = self._plan.parents[state.number]
        follows = any(is_choice(self._plan.pairs[parent]) and self._is_another(parent) for parent in parents)
        chooses = state.error is None and is_choice(pair) and verified
        if not chooses and not (follows and (state.shapes_differ or self._experts.holds(pair))):
            return None
        self._lifted.add(state.number)
        return _NONE

    def _is_another(self, choice: int) -> bool:
        """Whether mine chose otherwise, as a tie or as rounding above lets it."""
        state = self._judged(choice)
        return choice in self._lifted or (state is not None and state.excused)


def _joined(errors: Sequence[_Error]) -> _Error:
    """The errors of several inputs together: independent ones add their squares."""
    return _Error(
        math.hypot(*(error.measured for error in errors)), math.hypot(*(error.rounding for error in errors))
    )


def _rounding_of(recomputed: Recomputation, state: PairState) -> float:
    """The relative rounding of one operator: as it was measured, else as its bound or its type says.

    One that was not computed again rounds no more than its own T allows, which a noise profile may have set.
    """
    if recomputed.outcome == "right" and recomputed.noise is not None:
        return recomputed.noise
    if recomputed.outcome == "right" and recomputed.allowed is not None:
        return recomputed.allowed / PER_LAYER
    return min(_MODULE_ROUNDINGS * state.roundoff, state.allowed / SAFETY)
