"""Errors that are rounding and nothing else, however large: each operator up to there is right by replay.

Golden's modules have computed every module of mine again from its own inputs, and what the run was fed
agrees. So mine computes what golden does, but for rounding, and a network that makes much of rounding (a
softmax with a large range, a choice among experts) is not the fault of mine.

Some operators cannot be computed again: of large experts in one tensor golden's dump has no values. One is
taken for right where its error is no more than it may have been given: each kind of error (of the whole, of
rows, of an element) at most `JUMP` times that of what it is computed from.

Operators of ATB are computed with the parameters and weights of mine, on both sides: from the inputs of
mine and from golden's (`golden_inputs`). Only where the first makes the tensor of mine and the second
golden's, mine computes what golden does.

Of other dumps this cannot be said: their operators are right or wrong with the parameters of mine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..comparison.expert_calls import ExpertCalls
from ..mapping.choices_above import is_choice
from .pair_state import PairState
from .recomputation import Recomputation

if TYPE_CHECKING:
    from ..mapping.pair import Plan


_EXACT = frozenset({"weight", "buffer", "token ids", "positions", "mask"})
"""What a run was fed that agrees to the bit, whatever it was chosen by: no error comes through it."""


class Accumulation:
    """Which pairs of a plan are sound: they and all above them are right on both sides.

    `golden` says whether the operator of a pair makes golden's result from golden's inputs, and `own` whether
    it is right on those of mine, where no row says so.
    """

    def __init__(
        self,
        plan: Plan,
        state: Callable[[int], PairState | None],
        golden: Callable[[int], Recomputation],
        own: Callable[[int], Recomputation],
    ) -> None:
        self._plan = plan
        self._golden = golden
        self._own = own
        self._state_of = state
        self._experts = ExpertCalls(plan)
        self._sound: dict[int, bool] = {}
        self._clean: frozenset[int] = frozenset()
        self._clean_to = -1

    def state(self, number: int) -> PairState | None:
        """How a pair stands; one whose error is accumulated rounding does not fail."""
        state = self._state_of(number)
        if state is not None and state.failing and self.explains(state):
            return replace(state, failing=False)
        return state

    def explains(self, state: PairState) -> bool:
        """Whether the error of a failing pair is rounding that has accumulated, or its shapes differ because
        such rounding has changed a choice above."""
        if self._plan.mine_kind not in ("torch", "atb") or state.replayed == "wrong":
            return False
        if state.accumulated:
            return True
        if self._plan.mine_kind == "atb":
            return self._is_sound(state.number)
        return (state.replayed == "right" or self._is_explained(state)) and self._is_sound(state.number)

    def _is_sound(self, number: int) -> bool:
        if number in self._sound or not self._plan.parents:
            return self._sound.get(number, False)
        self._take_over(number)
        if number not in self._sound and not self._is_right(number):
            self._decide(number, False)
        for each in self._not_known(number) if number not in self._sound else ():
            above = all(self._sound.get(one, False) for one in self._above(each))
            self._decide(each, above and self._is_right(each))
        return self._sound[number]

    def _take_over(self, number: int) -> None:
        """What is known to be unsound makes unsound what is computed from it, down to a pair.

        Each pair of a long chain may be asked for, the last one first: what was looked through is remembered
        as long as no pair above it has turned out to be unsound since.
        """
        if number in self._clean and number <= self._clean_to:
            return
        order = self._not_known(number)
        for each in order:
            if any(self._sound.get(one) is False for one in self._above(each)):
                self._decide(each, False)
        if number not in self._sound:
            self._clean, self._clean_to = frozenset(order), number

    def _decide(self, number: int, sound: bool) -> None:
        self._sound[number] = sound
        if not sound:
            self._clean_to = min(self._clean_to, number)  # a pair comes after all that it is computed from

    def _not_known(self, number: int) -> list[int]:
        """A pair and those above it of which it is not known whether they are sound. A pair comes after all
        that it is computed from."""
        above, found = [number], {number}
        for each in above:
            new = [one for one in self._above(each) if one not in found and one not in self._sound]
            found.update(new)
            above += new
        return sorted(found)

    def _above(self, number: int) -> Sequence[int]:
        """The pairs through which an error may come to a pair."""
        return () if self._plan.pairs[number].fed in _EXACT else self._plan.parents[number]

    def _is_right(self, number: int) -> bool:
        """Of what a run was fed that it agrees, if it is not what the step before gave. Of all else that its
        operator is right, or where that could not be computed, that it is off by no more than one operator's
        rounding, or than what it was given. Of what comes wholly after a tie nothing can be said, nor need
        be: it passes."""
        state = self._state_of(number)
        if state is None:
            return False
        if self._plan.pairs[number].fed and not state.replayed:
            return not state.failing
        if self._plan.mine_kind == "atb":
            return self._is_right_of_atb(state)
        if not state.replayed:
            return state.near or state.after_tie or self._is_explained(state)
        return state.replayed == "right" and self._golden(number).outcome == "right"

    def _is_right_of_atb(self, state: PairState) -> bool:
        """The same of an operator of ATB. What no operator wrote, or cannot be computed from golden's inputs
        (a sum over ranks, of which golden has the result alone), is near to its inputs."""
        if state.after_tie:
            return True
        own = self._own(state.number).outcome
        if own == "wrong" or (golden := self._golden(state.number).outcome) == "wrong":
            return False
        return own == golden == "right" or state.near or self._is_explained(state)

    def _is_explained(self, state: PairState) -> bool:
        """Whether what a pair is computed from is as far off as it is itself.

        Where a choice above differs, whole rows are other ones: then only what most rows have can tell, and
        of the tokens of one expert nothing. A pair that fails was judged without such rows, if they are those
        of a tie.
        """
        numbers = self._plan.parents[state.number]
        above = [each for each in map(self._state_of, numbers) if each is not None]
        chose = any(
            is_choice(self._plan.pairs[each.number])
            and (each.failing or (each.level > 0 and not state.failing))
            for each in above
        )
        if state.shapes_differ or (chose and self._experts.holds(self._plan.pairs[state.number])):
            return chose
        return state.relative.explained_by([each.relative for each in above], by_rows=chose)
