"""The pairs above a pair that have something to say: those that run and could be compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from .pair_state import PairState

MOST_FOUND = 64
"""Ancestors of one pair that are looked at; a pair reads that many tensors only where little is compared."""
MOST_PASSED = 4096
"""Pairs without a result that are walked through on the way to these."""


class Ancestors:
    """Walks upwards through `parents`. `state` judges a pair, and is `None` for one that does not run.

    `step_of` says which step a pair is of: its own step is searched before those before it.
    """

    def __init__(
        self,
        parents: Sequence[Sequence[int]],
        state: Callable[[int], PairState | None],
        step_of: Callable[[int], object],
    ) -> None:
        self._parents = parents
        self._state_of = state
        self._step_of = step_of

    def nearest(self, number: int) -> Iterator[PairState]:
        """The nearest pairs above that have a result, judged one after the other as they are asked for."""
        return (state for state, _ in self.walk(number, lambda state: state.compared))

    def passed(self, number: int) -> list[int]:
        """The pairs without a result between a pair and the nearest above it that have one."""
        passed: list[int] = []
        for _ in self.walk(number, lambda state: state.compared, passed):
            pass
        return passed

    def walk(
        self,
        number: int,
        stop: Callable[[PairState], bool],
        passed: list[int] | None = None,
    ) -> Iterator[tuple[PairState, bool]]:
        """Upwards until `stop` holds: every pair with a result that was met, and whether it holds there.

        Only where it does not is the search continued above. `passed` collects the pairs without a result.
        """
        step = self._step_of(number)
        in_step: deque[int] = deque()
        earlier: deque[int] = deque()
        visited = {number}
        with_result = walked = 0

        def open_up(current: int) -> None:
            for parent in self._parents[current] if current < len(self._parents) else ():
                if parent not in visited:
                    visited.add(parent)
                    (in_step if self._step_of(parent) == step else earlier).append(parent)

        open_up(number)
        while (in_step or earlier) and with_result < MOST_FOUND and walked < MOST_PASSED:
            current = in_step.popleft() if in_step else earlier.popleft()
            walked += 1
            state = self._state_of(current)
            if state is None or not state.compared:
                if passed is not None:
                    passed.append(current)
                open_up(current)
                continue
            with_result += 1
            stopped = stop(state)
            yield state, stopped
            if not stopped:
                open_up(current)
