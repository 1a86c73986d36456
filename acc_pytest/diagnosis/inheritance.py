"""Which failing pair is a root and which inherits, decided pair by pair and the same in every process.

A pair beyond its thresholds is `inherited` when a pair that it computes from is beyond its own, else a
`root`. What is above it is looked for through pairs that do not run in this session or could not be
compared. Four rules refine this:

- An inherited pair whose operator is wrong on its own inputs is a root as well: a second mistake. It is
  computed again where its level jumps beyond its parents' by `JUMP`.
- A root whose operator is right on its own inputs got its error from above, where it is below the thresholds:
  it is called after the operator above that is wrong, or inherits from the nearest failing pair behind those
  that pass. A jump beyond `JUMP` speaks against that: then its parameters or weights are other ones, unless
  it makes golden's result of golden's inputs (the values of a mask hide what passes through a sum, and
  statistics hide much).
- A root whose operator could not be computed again inherits the same way, if it does not jump.
- Where only the order of execution is known, a jump beyond `RATE` makes a root (rate of change).

Where the prompts have other shapes everything else follows from that, comparable or not.

Every inherited pair comes from one that was executed before it, so following that one ends at a root: if
anything that runs fails, a root that runs fails. Where a dump holds the last of several calls of a module
alone, what its earlier calls made inherits from an operator that is wrong in the last.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from ..base.reason import Reason, arguments, contains, joined
from ..base.vocabulary import EARLIER_CALLS, ORDERS_OF_NAMES
from ..mapping.pair import WEIGHTS
from ..reference.recomputation import Recomputation, Recomputer, full_name, listed, shown
from ..reporting.row import INHERITED, Cause
from .evidence import PairEvidence, PairState, Standing

if TYPE_CHECKING:
    from ..mapping.pair import Pair, Plan
    from ..reporting.row import Row


JUMP = 4.0
"""How many times the error of its inputs a pair's may be and still be taken for theirs: one operator seldom
amplifies a relative error more (a norm and a product about 1, a softmax with its range of scores)."""
RATE = 10.0
"""What `JUMP` is where only the order of execution is known."""
PROMPTS = ("token ids", "input")
"""What gives all tensors of a run their shape."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """A pair's cause, but for its root: `via` is the failing pair that it inherits from, `None` of a root."""

    via: int | None
    cause: Cause


class Inheritance:
    """Causes of failing pairs of a plan.

    `state` judges a pair of this session (and remembers it), and is `None` for one that does not run.
    """

    def __init__(
        self, plan: Plan, state: Callable[[int], PairState | None], local: Recomputer, lifts: bool = True
    ) -> None:
        self._plan = plan
        self._evidence = PairEvidence(plan, state, local, lifts)
        self._state_of = self._evidence.state
        self._local = local
        self._ancestors = Ancestors(plan.parents, self._state_of, lambda number: plan.pairs[number].step)
        self._suspects = Suspects(plan, self._ancestors, local)
        self._inputs = KnownInputs(plan, self._ancestors, self._suspects, self._evidence)
        self._runs: dict[object, list[int]] = defaultdict(list)
        for number, pair in enumerate(plan.pairs):
            self._runs[_run_of(pair)].append(number)
        self._prompts = [number for number, pair in enumerate(plan.pairs) if pair.fed in PROMPTS]
        self._decided: dict[int, _Decision] = {}
        self._roots: dict[int, tuple[int, str]] = {}

    def lift(self, state: PairState) -> float | None:
        return self._evidence.lift(state)

    def recomputed(self, state: PairState) -> Recomputation:
        """See `PairEvidence.recomputed`."""
        return self._evidence.recomputed(state)

    def cause(self, state: PairState) -> Cause:
        """Why the pair that stands so fails; it must be failing."""
        decision = self._decision(state)
        root, name = self._root(state)
        cause = replace(decision.cause, root=root, root_name=name)
        if decision.via is None:
            return cause
        via = self._state_of(decision.via)
        route = Reason(" by way of {}", shown(via.name)) if via is not None and via.number != root else ""
        suffix = Reason(": {}", cause.text) if cause.text else ""
        step = self._plan.pairs[root].step
        text = Reason(INHERITED, shown(name), step, route, suffix)
        return replace(cause, text=text)

    def cause_of_shapes(self, state: PairState) -> Cause | None:
        """Why the pair cannot be compared, where the run was fed something of another shape; else `None`."""
        if not state.shapes_differ or (via := self._input_before(state)) is None:
            return None
        root, name = self._root(via)
        sentence = Reason("other shapes follow from what the run was fed: {}", via.input_sentence)
        return Cause("inherited", "dataflow", (via.number,), root, name, text=sentence)

    def _input_before(self, state: PairState) -> PairState | None:
        """The nearest input of the run before a pair that has another shape; `None` where none has."""
        for number in self._prompts:
            if number >= state.number:
                break
            earlier = self._state_of(number)
            if earlier is not None and earlier.failing and earlier.shapes_differ:
                return earlier
        return None

    def _root(self, state: PairState) -> tuple[int, str]:
        """The root of a pair and what it is called; every pair on the way learns it too."""
        route: list[PairState] = []
        while state.number not in self._roots:
            decision = self._decision(state)
            if decision.via is None:
                self._roots[state.number] = state.number, decision.cause.root_name
                break
            route.append(state)
            parent = self._state_of(decision.via)
            assert parent is not None
            state = parent
        root = self._roots[state.number]
        self._roots.update((passed.number, root) for passed in route)
        return root

    def _decision(self, state: PairState) -> _Decision:
        if state.number not in self._decided:
            self._decided[state.number] = self._decide(state)
        return self._decided[state.number]

    def _decide(self, state: PairState) -> _Decision:
        number = state.number
        if state.replayed == "wrong":
            return self._wrong_by_replay(state)
        if (via := self._input_before(state)) is not None:
            return _inherited(Cause("inherited", "dataflow", (via.number,)), via)
        parents = list(self._ancestors.nearest(number))
        failing = [parent for parent in parents if parent.failing]
        ordered = number in self._plan.by_order
        amplification = _ratio(state, failing or parents)
        base = Cause(
            "root", "order" if ordered else "dataflow", tuple(parent.number for parent in failing),
            amplification=amplification,
        )  # fmt: skip
        if not failing:
            return self._root_or_above(state, parents, base)
        jumps = amplification is not None and amplification > (RATE if ordered else JUMP)
        if not jumps:
            return _inherited(base, failing[0])
        local = self._local.of_pair(number)
        with_local = _with(base, local)
        if local.outcome == "wrong" and not local.reads:
            sentence = Reason("its inputs differ already, but {}", local.sentence)
            return self._is_root(state, replace(with_local, basis="local", text=sentence))
        if ordered and not local.outcome:
            sentence = Reason(
                "its error is {:.3g} times that of what ran before it (rate of change)", amplification
            )
            return self._is_root(state, replace(with_local, text=sentence))
        return _inherited(with_local, failing[0])

    def _wrong_by_replay(self, state: PairState) -> _Decision:
        """Its operator is wrong on its own inputs, whatever these are: there is no stronger evidence.

        Where its weights are other ones, these are the root, and of several tensors that one module's code
        made it is the first. Where golden's code computed it in place of mine, it may have taken more than
        one operator of mine, so that what differs already is the root.
        """
        number = state.number
        parents = list(self._ancestors.nearest(number))
        failing = [parent for parent in parents if parent.failing]
        local = self._local.of_pair(number)
        if local.outcome != "wrong" and (of_golden := self._local.of_golden(number)).outcome == "wrong":
            local = of_golden
        maker = self._maker(number)
        origins = [
            parent
            for parent in failing
            if local.reads
            or self._plan.pairs[parent.number].fed in WEIGHTS
            or (parent.replayed == "wrong" and self._maker(parent.number) == maker)
        ]
        if origins:
            cause = _with(Cause("inherited", "dataflow", tuple(origin.number for origin in origins)), local)
            return _inherited(cause, origins[0], local.sentence)
        sentence = (
            Reason("its inputs differ already, but {}", local.sentence)
            if failing
            else self._wrong_operator(number, local, parents)
        )
        cause = Cause(
            "root", "local", tuple(parent.number for parent in failing),
            amplification=_ratio(state, failing or parents), text=sentence,
        )  # fmt: skip
        return self._is_root(state, _with(cause, local), local.culprit)

    def _maker(self, number: int) -> str:
        """The node whose code made the tensor of a pair."""
        gap = self._plan.gaps.get(number)
        return (gap.module if gap else "") or self._plan.pairs[number].mine.node

    def _root_or_above(self, state: PairState, parents: Sequence[PairState], base: Cause) -> _Decision:
        """Nothing directly above fails: is it this operator, or what came in below the thresholds?"""
        number = state.number
        if state.input_sentence:
            return self._is_root(state, replace(base, text=state.input_sentence))
        local = self._local.of_pair(number)
        cause = _with(base, local)
        if local.outcome == "wrong":
            text = self._wrong_operator(number, local, parents)
            return self._is_root(state, replace(cause, text=text), local.culprit)
        if (via := self._wrong_in_earlier_calls(number)) is not None:
            sentence = "an earlier call of it, which the dump does not hold, ran before this"
            return _inherited(replace(cause, parents=(via.number,)), via, sentence)
        hidden = self._suspects.wrong_between(number)
        if hidden:
            sentence = Reason(
                "{} lies between it and its inputs, is not compared, and is wrong on its own inputs",
                shown(hidden),
            )
            return self._is_root(state, replace(cause, basis="local", text=sentence), hidden)
        if local.outcome == "right":
            return self._accumulated(state, parents, cause)
        # A jump speaks against an error from behind pairs that pass, but for those that pass within the bound
        # that the values of a mask make, and for those that pass by their statistics.
        jumps = cause.amplification is None or cause.amplification > JUMP
        via = self._failing_behind(number, lambda passing: passing.masked or passing.stated or not jumps)
        if via is not None:
            return _inherited(replace(cause, parents=(via.number,)), via, "what is between passes")
        if (via := self._given_before(number)) is not None:
            step = self._plan.pairs[via.number].step
            agreement = self._inputs.agreement(number, parents)
            sentence = Reason("{}, but what it had at step {} did not", agreement, step)
            return _inherited(replace(cause, parents=(via.number,)), via, sentence)
        return self._is_root(
            state,
            replace(cause, text=self._inputs.sentence(number, parents, local.why)),
        )

    def _wrong_in_earlier_calls(self, number: int) -> PairState | None:
        """The first operator that is wrong on its own inputs in a module that ran before this tensor was
        made, but of which the dump holds a later call alone; or `None`."""
        step = self._plan.pairs[number].step
        for unseen in self._plan.unseen.get(number, ()):
            for module in arguments(unseen, EARLIER_CALLS) or ():
                for later, pair in enumerate(self._plan.pairs):
                    if pair.step != step or not f"{pair.mine.node}.".startswith(f"{module}."):
                        continue
                    state = self._state_of(later)
                    if state is not None and state.replayed == "wrong":
                        return state
        return None

    def _given_before(self, number: int) -> PairState | None:
        """What fails among the inputs that an operator had at the latest earlier step where any did.

        An operator that cannot be computed again from its inputs may keep some of those of earlier steps:
        attention its keys and values, a recurrence its state. `None` where all agreed.
        """
        earlier = self._runs[_run_of(self._plan.pairs[number])]
        for before in reversed(earlier[: earlier.index(number)]):
            if (via := next((p for p in self._ancestors.nearest(before) if p.failing), None)) is not None:
                return via
        return None

    def _accumulated(self, state: PairState, parents: Sequence[PairState], cause: Cause) -> _Decision:
        """The operator is right on its own inputs, and nothing directly above it fails."""
        right = "the operator is right on its own inputs"
        exact = bool(parents) and not any(parent.level for parent in parents)
        jumps = exact or (cause.amplification is not None and cause.amplification > JUMP)
        if parents and (not jumps or self._local.of_golden(state.number).outcome == "right"):
            if (via := self._failing_behind(state.number, lambda _: True)) is not None:
                sentence = Reason("{}, and what is between passes", right)
                return _inherited(replace(cause, parents=(via.number,)), via, sentence)
            culprit = self._suspects.wrong_above(state.number)
            if culprit:
                text = Reason(
                    "{}; {} above it is wrong on its own, though within its thresholds", right, shown(culprit)
                )
                return self._is_root(state, replace(cause, basis="local", text=text), culprit)
            culprit, unlike = self._suspects.unlike_above(state.number)
            if culprit:
                sentence = Reason(
                    "{}; {} above it is within its thresholds, but {}", right, shown(culprit), unlike
                )
                return self._is_root(state, replace(cause, text=sentence), culprit)
            agree = self._inputs.agreement(state.number, parents)
            text = Reason("{}, and {}: more error came from above than rounding makes", right, agree)
            if rounding := self._evidence.rounding(state.number):
                text = Reason(
                    "{}, and {}: right rounding alone moves this by {:.0%}, which is more than can be judged "
                    "without a noise profile (acc noise-profile GOLDEN NOISE_DUMP)",
                    *(right, agree, rounding),
                )
            return self._is_root(state, replace(cause, text=text))
        if unlike := self._suspects.unlike(state.number):
            return self._is_root(state, replace(cause, text=Reason("{}, but {}", right, unlike)))
        suspect, unlike = self._suspects.unlike_between(state.number)
        if suspect:
            sentence = Reason(
                "{}; {}, between it and its inputs, is not compared: {}", right, shown(suspect), unlike
            )
            return self._is_root(state, replace(cause, text=sentence), suspect)
        sentence = Reason(
            "{} and parameters, so these are other ones than golden's (weights, parameters, ids)", right
        )
        return self._is_root(state, replace(cause, text=sentence))

    def _wrong_operator(self, number: int, local: Recomputation, parents: Sequence[PairState]) -> str:
        """The sentence on an operator that is wrong on its own inputs: these need not all be compared."""
        if not self._plan.golden_kind or local.culprit:
            return local.sentence
        return Reason("{}, and {}", self._inputs.agreement(number, parents), local.sentence)

    def _failing_behind(self, number: int, passable: Callable[[PairState], bool]) -> PairState | None:
        """The nearest failing pair above that is reached through `passable` pairs that pass; or `None`."""
        for state, stopped in self._ancestors.walk(
            number, lambda state: state.failing or not passable(state)
        ):
            if stopped and state.failing:
                return state
        return None

    def _is_root(self, state: PairState, cause: Cause, name: str = "") -> _Decision:
        name = name or _maker(self._plan, state.number) or state.name
        return _Decision(None, replace(cause, root_name=name))


def _maker(plan: Plan, number: int) -> str:
    """The module whose code made a tensor that is compared where it is read: what is around a gap, or what
    handed it out and is not compared itself. Empty for other tensors."""
    if (gap := plan.gaps.get(number)) is not None:
        return gap.module
    between = plan.between.get(number, ()) if plan.pairs[number].mine.slot.startswith("input") else ()
    return full_name(between[0]) if between else ""


def _run_of(pair: Pair) -> tuple[object, ...]:
    """The key of a tensor, equal at all steps."""
    return pair.golden.node, pair.golden.slot, pair.mine.node, pair.mine.slot, pair.rank, pair.graph


def _inherited(cause: Cause, via: PairState, text: str = "") -> _Decision:
    return _Decision(via.number, replace(cause, kind="inherited", text=text))


def _ratio(state: PairState, parents: Sequence[PairState]) -> float | None:
    """A pair's level over the largest of those above it; `None` where one of them is no number."""
    largest = max((parent.level for parent in parents), default=0.0)
    if not 0.0 < largest < math.inf or math.isinf(state.level):
        return None
    return state.level / largest


def _with(cause: Cause, local: Recomputation) -> Cause:
    return replace(cause, local=local.outcome, local_error=local.error)


class KnownInputs:
    """Sentences about the inputs of the pairs of a plan, of which not all need be compared."""

    def __init__(self, plan: Plan, ancestors: Ancestors, suspects: Suspects, evidence: PairEvidence) -> None:
        self._plan = plan
        self._ancestors = ancestors
        self._suspects = suspects
        self._evidence = evidence

    def sentence(self, number: int, parents: Sequence[PairState], why: str) -> str:
        """The sentence on a root with the pairs `parents` above; `why` is why it was not computed again."""
        if number in self._plan.gaps:
            return self._inside(number, parents)
        agree = self.agreement(number, parents)
        if unlike := self._suspects.unlike(number):
            agree = joined("; ", (agree, unlike))
        return Reason("{} (not computed again: {})", agree, why)

    def agreement(self, number: int, parents: Sequence[PairState]) -> str:
        """A sentence on the inputs of a root, by the rule of evidence."""
        if any(contains(self._plan.lineage, order) for order in ORDERS_OF_NAMES):
            return Reason("the first that differs in {}, as no inputs were dumped", self._plan.lineage)
        if number in self._plan.by_order:
            return "nothing that ran before it fails" if parents else "it ran first"
        inputs = self._evidence.inputs(number, parents, self._ancestors.passed(number))
        if inputs.agree:
            return "its inputs agree"
        sentence = "all that was compared above it agrees" if parents else "nothing above it is compared"
        maker = _maker(self._plan, number)
        not_compared = [name for name in inputs.not_compared if name != maker]
        if Standing.LIFTED in inputs.compared:
            sentence = Reason("{}, but for ties and accumulated rounding", sentence)
        return Reason("{} (not compared: {})", sentence, listed(not_compared)) if not_compared else sentence

    def _inside(self, number: int, parents: Sequence[PairState]) -> str:
        """The sentence on the place in a module where its own code made a tensor that is wrong."""
        gap, pair = self._plan.gaps[number], self._plan.pairs[number]
        where = [Reason("after {}", listed(gap.after))] if gap.after else []
        where += [Reason("before {}", shown(gap.before))] if gap.before else []
        module = shown(gap.module.rpartition(".")[2]) or "the model"
        fault = Reason("the fault is inside {}", module)
        if where:
            fault = Reason("{}, {}", fault, joined(" and ", where))
        unseen = self._plan.unseen.get(number, ())
        not_compared = Reason("; {}", Reason("not compared: {}", listed(unseen))) if unseen else ""
        agree = (
            "what these modules gave and what it was given agree"
            if parents
            else "nothing above it is compared"
        )
        tensor_name = Reason("{} of {}", pair.mine.slot, shown(gap.before)) if gap.before else pair.mine.slot
        return Reason("{}: {} differs, and {}{}", fault, tensor_name, agree, not_compared)


# Suspects: operators above a root, or between it and its inputs, that are wrong on their own inputs or have
# other parameters.


LOOKED_AT = 12
"""Pairs above a root whose operators are computed again to find the one that is wrong. Of operators that are
not compared at all it is as many as the plan names (`nearest.MOST_BETWEEN`)."""
_PLAIN = re.compile("Elewise|Split|Concat|Slice|Transpose|Reshape|AllReduce|AllGather")
"""Operators without weights, and whose parameters hardly differ: they only move, add and multiply."""


def may_differ(row: Row, number: int, pair: Pair) -> bool:
    """Whether the operator of a pair that passes may have other weights or parameters than golden's: it has
    some, and is further off than one operator rounds. Rows of a tie or of experts may be others."""
    if _PLAIN.match(pair.mine.op_type) or pair.golden.experts is not None or row.after_tie:
        return False
    state = PairState.of(row, number)
    return state.error is not None and not state.near


class Suspects:
    """The operators around the pairs of a plan; names are those that roots are called by."""

    def __init__(self, plan: Plan, ancestors: Ancestors, local: Recomputer) -> None:
        self._plan = plan
        self._ancestors = ancestors
        self._local = local

    def wrong_between(self, number: int) -> str:
        """The operator that is wrong, and not compared, between a pair and those above it; or empty."""
        for path in self._plan.between.get(number, ()):
            if self._local.of_operator(number, path).outcome == "wrong":
                return full_name(path)
        for parent in self._ancestors.passed(number)[:LOOKED_AT]:
            local = self._local.of_pair(parent)
            if local.outcome == "wrong":
                return local.culprit or self._plan.pairs[parent].mine.name
        return ""

    def unlike_between(self, number: int) -> tuple[str, str]:
        """The operator that has other parameters than golden's and is not compared, and why; or empty.

        One whose parameters are not those of the other layers; else the nearest that has any, above an
        operator that has none itself: a sum or a split cannot be off where it is right.
        """
        paths = self._plan.between.get(number, ())
        for path in paths:
            if unlike := self._local.unlike(number, path):
                return full_name(path), unlike
        if not _PLAIN.match(self._plan.pairs[number].mine.op_type):
            return "", ""
        nearest = next((name for name in map(full_name, paths) if not _PLAIN.match(name)), "")
        return nearest, "its weights or parameters are other ones than golden's"

    def wrong_above(self, number: int) -> str:
        """The nearest operator above that is wrong although it is within its thresholds; or empty."""
        count = 0
        for state, _ in self._ancestors.walk(number, lambda _: False):
            if count == LOOKED_AT:
                break
            local = self._local.of_pair(state.number)
            count += bool(local.outcome)
            if local.outcome == "wrong":
                return local.culprit or state.name
        return ""

    def unlike_above(self, number: int) -> tuple[str, str]:
        """The nearest operator above with a parameter that other layers do not have, and which; or empty."""
        near = (state for state, _ in self._ancestors.walk(number, lambda _: False))
        for state in islice(near, LOOKED_AT):
            if unlike := self.unlike(state.number):
                return state.name, unlike
        return "", ""

    def unlike(self, number: int) -> str:
        """A sentence on parameters of a pair's operator that other layers do not have; or empty."""
        return self._local.unlike(number, self._plan.pairs[number].mine.node)


# The pairs above a pair that have something to say: those that run and could be compared.


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
