"""What to say of a root whose operator could not be computed again: what is known of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .ancestors import Ancestors
from .evidence import PairEvidence, Standing
from .names import listed, shown
from .pair_state import PairState
from .suspects import Suspects

if TYPE_CHECKING:
    from ..mapping.pair import Plan


class KnownInputs:
    """Sentences about the inputs of the pairs of a plan, of which not all need be compared."""

    def __init__(self, plan: Plan, ancestors: Ancestors, suspects: Suspects, evidence: PairEvidence) -> None:
        self._plan = plan
        self._ancestors = ancestors
        self._suspects = suspects
        self._evidence = evidence

    def said(self, number: int, above: Sequence[PairState], why: str) -> str:
        """Of a root with the pairs `above`; `why` says why its operator was not computed again."""
        if number in self._plan.gaps:
            return self._inside(number, above)
        agree = self.agreement(number, above)
        if unlike := self._suspects.unlike(number):
            agree += f"; {unlike}"
        return f"{agree} (not computed again: {why})"

    def agreement(self, number: int, above: Sequence[PairState]) -> str:
        """What is known of the inputs of a root, by the rule of evidence."""
        if number in self._plan.by_order:
            return "nothing that ran before it fails" if above else "it ran first"
        inputs = self._evidence.inputs(number, above, self._ancestors.passed(number))
        if inputs.agree:
            return "its inputs agree"
        said = "all that was compared above it agrees" if above else "nothing above it is compared"
        if Standing.LIFTED in inputs.compared:
            said += ", but for ties and accumulated rounding"
        return f"{said} (not compared: {listed(inputs.not_compared)})" if inputs.not_compared else said

    def _inside(self, number: int, above: Sequence[PairState]) -> str:
        """Where in a module its own code made a tensor that is wrong."""
        gap, pair = self._plan.gaps[number], self._plan.pairs[number]
        where = [f"after {listed(gap.after)}"] if gap.after else []
        where += [f"before {shown(gap.before)}"] if gap.before else []
        module = shown(gap.module.rpartition(".")[2]) or "the model"
        said = ", ".join([f"the fault is inside {module}", *([" and ".join(where)] if where else [])])
        unseen = self._plan.unseen.get(number, ())
        not_compared = f"; not compared: {listed(unseen)}" if unseen else ""
        agree = (
            "what these modules gave and what it was given agree" if above else "nothing above it is compared"
        )
        seen = f"{pair.mine.slot} of {shown(gap.before)}" if gap.before else pair.mine.slot
        return f"{said}: {seen} differs, and {agree}{not_compared}"
