"""The door to all that computes operators again, whatever wrote the dump.

    pair -> case -> executor -> twice -> held -> outcome

The tensor of a pair was written by an operator, which is a case: its kind and attributes, the inputs of that
side, its weights. An executor computes a case exactly and as mine rounds (`Twice`), and one rule holds the
tensor against both (`hold`). Nothing is said where an executor does not support a case, or may not know all
of it: a wrong operator must never be called right for want of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from ..base.reason import Reason
from ..base.threads import threads_for
from ..errors import OperatorError
from ..mapping.pair import Operand, Pair
from ..tensors.ref import TensorRef
from .recomputation import LOOKING, Recomputation, Recomputations, RecomputeBudget, Recomputer, worst
from .twice import Twice, hold, too_large

Call = TypeVar("Call")


@dataclass(frozen=True)
class OperatorCase(Generic[Call]):
    """An operator as a dump has it: what its executor calls, a tensor that it wrote and its number, and those
    that it read. `doubt` says what may not be known of it, so that another result is none of its faults."""

    call: Call
    result: TensorRef
    index: int = 0
    read: Sequence[TensorRef] = ()
    doubt: str = ""

    @property
    def largest(self) -> int:
        """The elements of its largest tensor."""
        return max(ref.header().numel for ref in (self.result, *self.read))


class Executor(Protocol[Call]):
    """Computes the operators of one kind of dump."""

    def supports(self, case: OperatorCase[Call]) -> Reason | None:
        """Why a case is not computed; `None` where it is."""

    def compute(self, case: OperatorCase[Call]) -> Twice:
        """The result of a case. Raises `AccError` for what keeps it from being computed."""


class CaseRecomputer(Recomputer, Executor[Call]):
    """Recomputes the operators that wrote the tensors of pairs, each tensor once, as cases (`case`)."""

    def __init__(self, pairs: Sequence[Pair], budget: RecomputeBudget = LOOKING) -> None:
        self._pairs = pairs
        self._budget = budget
        self._recomputed = Recomputations()

    def of_pair(self, number: int) -> Recomputation:
        return self._of_operand(self._pairs[number].mine)

    def case(self, ref: TensorRef) -> OperatorCase[Call]:
        """The operator that wrote a tensor. Raises `AccError` where the dump does not tell it."""
        raise NotImplementedError

    def supports(self, case: OperatorCase[Call]) -> Reason | None:
        """See `Executor.supports`: not what is larger than the budget."""
        return too_large((case.result, *case.read), self._budget.limit)

    def opened(self, case: OperatorCase[Call], twice: Twice) -> torch.Tensor:
        """The tensor that a case wrote, as it was before it was dumped."""
        return case.result.open()

    def _of_operand(self, operand: Operand) -> Recomputation:
        if not operand.slot.startswith("output"):
            return Recomputation(why=Reason("{} is read, not written by it", operand.slot))
        return worst([self._of(ref) for ref in operand.refs])

    def _of(self, ref: TensorRef) -> Recomputation:
        key = ref.path, ref.member
        return self._recomputed.of(key, lambda: self._held(self.case(ref)), Reason("computing {} again", ref))

    def _held(self, case: OperatorCase[Call], *, measured: bool = False) -> Recomputation:
        """The outcome for a case, beside its `measured` rounding even where the budget does not ask for that.

        Raises `AccError` for all that keeps it from being computed.
        """
        if (reason := self.supports(case)) is not None:
            raise OperatorError(reason)
        with threads_for(case.largest):
            twice = self.compute(case)
            mine = self.opened(case, twice)
            outcome = hold(twice if measured or self._budget.measured else twice.alone, mine)
        return Recomputation(why=case.doubt) if case.doubt and outcome.outcome == "wrong" else outcome
