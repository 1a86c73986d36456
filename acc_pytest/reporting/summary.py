"""The numbers and names at the end of a run: at most 20 lines, the starting point of the error first."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..base.reason import Reason, clauses, contains, joined
from ..base.vocabulary import INCOMPLETE
from ..judging.threshold import is_narrowed
from ..judging.tolerance import CAPPED
from ..mapping.pair import LAST_OUTPUT
from ..tensors.dtypes import by_name
from .failure_text import in_numbers
from .precision import Precision
from .row import PADDING, REPLAY, UNJUDGED, VERDICTS, Row
from .texts import printable

if TYPE_CHECKING:
    from ..mapping.pair import Plan
    from .view import Result, Root, Run


WORST = 5
WIDTH = 160
ROOT_WIDTH = 600
"""A root's line says where, what follows from it, and why it is one."""


class Tally:
    """Counts rows as they arrive and keeps the first failing one and the worst few.

    `tests` are the ids of the tests that rows have come from, `red_tests` of those that fail. `failures`
    counts the comparisons that fail for themselves, not for what they were computed from. `after_tie` counts
    the tensors of which all tokens, or some, come after a tie, `padded` those judged without tokens of
    padding, `replayed` those whose operator was computed again or was not (`--acc-replay`), `unreplayed` why
    one was not, and `lacking` why golden's outline is not known whole. `lifted` counts those that pass as
    accumulated rounding, `most_lifted` is the most that one of them has of its bound. `narrowed` counts
    tensors of mine in a coarser type than its weights, by both. `unjudged` are places and names of
    tensors, and what their rows hold that are left out. `complete`: no row is missing of the tests that were
    asked for.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.tests: set[str] = set()
        self.red_tests: set[str] = set()
        self.failures = 0
        self.after_tie: Counter[str] = Counter()
        self.padded = 0
        self.unjudged: list[tuple[int, str, str]] = []
        self.lifted, self.most_lifted = 0, 0.0
        self.narrowed: Counter[tuple[str, str]] = Counter()
        self.precision = Precision()
        self.replayed: Counter[bool] = Counter()
        self.unreplayed = ""
        self.lacking = ""
        self.complete = True
        self.caveats = Caveats()
        self.first: Row | None = None
        self._worst: list[tuple[float, int, Row]] = []

    def add(self, row: Row) -> None:
        """Take one row into account; order of arrival does not matter."""
        self.counts[row.verdict] += 1
        self.tests.add(row.test_id)
        self.caveats.add(row)
        self.padded += PADDING in row.context
        if values := row.context.get(UNJUDGED):
            self.unjudged.append((_place(row), row.mine.node or row.name, str(values)))
        self.after_tie.update([row.after_tie] if row.after_tie else ())
        if (declared := str(row.context.get("declared", ""))) and _coarser(row.mine.dtype, declared):
            self.narrowed[row.mine.dtype, declared] += 1
        self.precision.add(row)
        self.lifted += row.times_lifted > 0
        self.most_lifted = max(self.most_lifted, row.times_lifted)
        by_values = f"{REPLAY}sources" in row.context
        if row.replayed is not None and (not by_values or f"{REPLAY}why" in row.context):
            self.replayed[row.replayed and not by_values] += 1
            self.unreplayed = self.unreplayed or _words(row, f"{REPLAY}why")
            self.lacking = self.lacking or _words(row, f"{REPLAY}lacking")
        if not row.red:
            return
        self.red_tests.add(row.test_id)
        if self.first is None or _place(row) < _place(self.first):
            self.first = row
        if row.alone:
            return
        self.failures += row.verdict != "inherited"
        bisect.insort(self._worst, (-row.excess, _place(row), row), key=lambda entry: entry[:2])
        del self._worst[WORST:]

    @property
    def worst(self) -> tuple[Row, ...]:
        """Failing comparisons by how far they are beyond their bound, at most five."""
        return tuple(row for _, _, row in self._worst)

    @property
    def compared(self) -> int:
        """Comparisons that produced numbers."""
        judged = sum(self.counts[verdict] for verdict in ("pass", "tie", "fail", "inherited", "known"))
        return judged - self.after_tie["wholly"]

    @property
    def nothing_replayed(self) -> bool:
        """Whether replay was asked for and computed no operator again."""
        return self.replayed[False] > 0 and not self.replayed[True]

    @property
    def tried(self) -> int:
        """Comparisons that a test was made for."""
        return self.compared + self.after_tie["wholly"] + self.counts["incomparable"]


def _place(row: Row) -> int:
    """Rows of a user's own tests have no place in execution order; they come last."""
    return row.number if row.number is not None else 2**62


def coverage(plan: Plan) -> float:
    """Mapped nodes as a share of all dumped nodes, on the side where that share is larger.

    One side often dumps what the other has no name for (fused operators, views), so that only the
    better covered side says whether the mapping worked. 0 where nothing was dumped.
    """
    return max(_share(plan.golden_mapped, plan.golden_total), _share(plan.mine_mapped, plan.mine_total))


def shortfalls(tally: Tally, plan: Plan | None, floor: float) -> list[str]:
    """Why a run is not green whose tests pass, a sentence each: golden is not finite, the mapping is below
    its floor, replay computed nothing."""
    sentences = tally.caveats.not_finite
    if plan is not None and plan.pairs and coverage(plan) < floor:
        sentences.append(
            Reason("only {:.1%} of the nodes could be mapped, the floor is {:.1%}", coverage(plan), floor)
        )
    if tally.compared and tally.nothing_replayed:
        sentences.append("no operator could be computed again (--acc-replay)")
    return sentences


def coverage_line(plan: Plan, floor: float) -> str:
    """Coverage of both sides in words, and whether the better one reaches the floor."""
    best = coverage(plan)
    reached = "reached"
    if best < floor:
        reached = Reason("NOT reached: {:.1%} is below it, so the run fails", best)
    golden, mine = (plan.golden_mapped, plan.golden_total), (plan.mine_mapped, plan.mine_total)
    return Reason(
        "coverage: golden {} of {} nodes ({:.0%}), mine {} of {} ({:.0%}); floor {:.0%} {}",
        *(*golden, _share(*golden), *mine, _share(*mine), floor, reached),
    )


def _share(mapped: int, total: int) -> float:
    return mapped / total if total else 0.0


def summary_lines(
    tally: Tally, plan: Plan | None, floor: float, roots: Sequence[str] = (), feed_roots: int = 0
) -> list[str]:
    """The summary, at most 20 lines of at most `WIDTH` characters; `roots` are the lines of root causes.

    The first `feed_roots` of these are of what the run was fed and stand before everything else but caveats.
    What fails without one (it could not be compared, it is people's own) is named as the first failing.
    """
    caveats = joined("; ", tally.caveats.first(plan))
    of_names = plan is not None and plan.mine_kind == "tensors"
    first = filter(None, [tally.precision.line(of_names), caveats])
    lines = [_cut(line, ROOT_WIDTH) for line in (*first, *roots[:feed_roots])]
    lines.append(verdicts_line(tally))
    lines += [line for _, line in allowances(tally)]
    if plan is not None and plan.golden_kind:
        lines.append(coverage_line(plan, floor))
    if tally.replayed:
        lines.append(replayed_line(tally))
    if tally.tried and not tally.compared:
        lines.append("nothing was compared: every pair is incomparable, so the run is not a success")
    lines += tally.caveats.at_cap
    lines += [_cut(line, ROOT_WIDTH) for line in roots[feed_roots:]]
    if tally.first is not None and (not roots or tally.first.cause is None):
        lines.append(_cut(Reason("first failing: {}", describe(tally.first))))
    if tally.worst and not roots:
        lines.append("worst by their bounds:")
        lines += [_cut(Reason("  {}", describe(row))) for row in tally.worst]
    return lines


def allowances(tally: Tally) -> Iterator[tuple[str, str]]:
    """The lines on what was judged by less than its usual bound, or not at all, each with its kind."""
    if tally.after_tie:
        yield "tie", after_tie_line(tally)
    if tally.padded:
        yield (
            "padding",
            Reason("padding: {} judged without tokens that the mask hides, which nobody reads", tally.padded),
        )
    if tally.unjudged:
        yield "not_judged", _cut(unjudged_line(tally.unjudged))
    if tally.lifted:
        yield "lifted", lifted_line(tally)
    for types, count in tally.narrowed.items():
        yield "narrowed", narrowed_line(*types, count)


def verdicts_line(tally: Tally) -> str:
    """The number of rows by verdict, and, where tests have several rows, how many tests fail."""
    counts = [
        Reason("{} {}", tally.counts[verdict], verdict) for verdict in VERDICTS if tally.counts[verdict]
    ]
    line = Reason("verdicts: {}", joined(", ", counts or ["none"]))
    if tally.tried > len(tally.tests):
        line = Reason("{} (one for each tensor); {}", line, tests_that_fail(tally))
    return line if tally.complete else Reason("{}; the run is incomplete", line)


def _words(row: Row, name: str) -> str:
    """The text in the context of a row; a reason stays one, for other languages."""
    value = row.context.get(name, "")
    return value if isinstance(value, str) else str(value)


def replayed_line(tally: Tally) -> str:
    """The line on tensors that replay has judged, and why not the first of the others."""
    computed, refused = tally.replayed[True], tally.replayed[False]
    lines = [
        Reason("replay: {} of {} tensors of operators were computed again", computed, computed + refused)
    ]
    if tally.nothing_replayed:
        lines = [Reason("{}, so the run is not a success", *lines)]
    lines += [Reason("one was not because {}", tally.unreplayed)] if refused else []
    if tally.lacking:
        lines.append(
            Reason("only linear layers were, because golden's model cannot be made: {}", tally.lacking)
        )
    return _cut(joined("; ", lines), ROOT_WIDTH)


def after_tie_line(tally: Tally) -> str:
    """The line on pairs that were not judged because of ties."""
    after = tally.after_tie
    counts = joined(" and ", [Reason("{} {}", after[how], how) for how in ("partly", "wholly") if after[how]])
    return Reason("ties: {} not judged: another choice among equals changes what follows from it", counts)


def unjudged_line(unjudged: Sequence[tuple[int, str, str]]) -> str:
    """The line on values in rows that are not judged, and where they begin."""
    kinds = joined(" and ", sorted({values for _, _, values in unjudged}))
    tensors = "1 tensor" if len(unjudged) == 1 else Reason("{} tensors", len(unjudged))
    return Reason("{} in rows that are not judged of {}, first in {}", kinds, tensors, min(unjudged)[1])


def narrowed_line(stored: str, declared: str, count: int) -> str:
    """The line on tensors of mine of a coarser type than its weights, and the rounding that they may have."""
    tensors = "1 tensor of mine is" if count == 1 else Reason("{} tensors of mine are", count)
    allowed = declared if is_narrowed(stored, declared) else stored
    return Reason(
        "types: {} {}, coarser than its {} weights: bounds are those of {}",
        tensors,
        stored,
        declared,
        allowed,
    )


def _coarser(stored: str, declared: str) -> bool:
    formats = by_name(stored).format, by_name(declared).format
    return formats[0] is not None and formats[1] is not None and formats[0].roundoff > formats[1].roundoff


def lifted_line(tally: Tally) -> str:
    """The line on pairs that pass although they are beyond their bounds, and by how much."""
    pairs = "1 pair passes" if tally.lifted == 1 else Reason("{} pairs pass", tally.lifted)
    return Reason(
        "rounding: {} as accumulated rounding, at most {:.3g} times the bound", pairs, tally.most_lifted
    )


def tests_that_fail(tally: Tally) -> str:
    """The run in tests, as pytest counts it: of several rows of one test the worst decides."""
    return Reason("{} of {} tests fail", len(tally.red_tests), len(tally.tests))


def describe(row: Row) -> str:
    """One failing row in a line: name, operator, step, layer, and why it fails."""
    kind = row.mine.op_type or row.golden.op_type
    name: str = f"{row.name} ({kind})" if kind and not row.name.startswith(kind) else row.name
    places: list[str] = [name]
    if row.case:
        places += [row.mine.slot, *row.test_id.split("::")[1:2]]
    elif row.step != "":
        places.append(Reason("step {}", row.step))
    places += [Reason("rank {}", row.rank)] if row.rank else []
    places += [row.layer] if row.layer else []
    why = row.excuse if row.excused or row.strict else in_numbers(row)
    return Reason("{}: {}", joined(" ", places), why)


def _cut(line: str, width: int = WIDTH) -> str:
    return printable(line, width)


# Limits of what a run proves: the first line of its summary, and a reason to fail.


WHOLE = 0.9
"""The part of golden's nodes from which on a comparison is not called partial."""
_ANYTHING = ("mask", "cache", "buffer")
"""Kinds of feed that may hold NaN and Inf: masks do, and caches what the memory held."""


class Caveats:
    """Counts rows whose comparison proves little as they arrive, and keeps the first of a golden not finite.

    NaN in golden is no value to compare with. Inf is none where nothing else is there, and in results of
    modules and layers: operators inside of attention mask with it.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: tuple[int, Row] | None = None

    def add(self, row: Row) -> None:
        """Take a row into account, in any order."""
        is_end = row.strict and contains(row.sentence, LAST_OUTPUT)
        self._counts["absent"] += row.strict and row.verdict == INCOMPLETE and not is_end
        self._counts["end"] += is_end
        self._counts["capped"] += any(contains(check.reason, CAPPED) for check in row.checks)
        if row.case or not row.counts:
            return
        place = row.number if row.number is not None else 2**62
        if _is_not_finite(row) and (self._first is None or place < self._first[0]):
            self._first = place, row
        if not row.fed:
            self._counts["results"] += 1
            ends = row.golden.min, row.golden.max, row.mine.min, row.mine.max
            self._counts["empty"] += row.counts.get("elements") == 0
            self._counts["nothing but zeros"] += all(end == 0 for end in ends)

    @property
    def not_finite(self) -> list[str]:
        """A sentence on the first tensor of golden that is not finite; none where all are."""
        if self._first is None:
            return []
        row = self._first[1]
        name = printable(row.golden.name or row.name, 120)
        name = name if row.step == "" else Reason("{} ({})", name, Reason("step {}", row.step))
        return [
            Reason("golden is not finite from {} on, so the run fails; dump one without NaN and Inf", name)
        ]

    def first(self, plan: Plan | None) -> list[str]:
        """The sentences of the first line of a summary."""
        sentences = self.not_finite
        if plan is not None and plan.golden_mapped < WHOLE * plan.golden_total:
            share = 100 * plan.golden_mapped / plan.golden_total
            sentences.append(Reason("partial: {:.0f} % of golden's tensors were compared", share))
        if plan is not None and plan.golden_root == plan.mine_root and plan.golden_kind not in ("", "manual"):
            sentences.append("golden and mine are the same directory")
        sentences += [LAST_OUTPUT] if self._counts["end"] else []
        sentences += ["incomplete: a dump lacks what it states"] if self._counts["absent"] else []
        results = self._counts["results"]
        for what in ("empty", "nothing but zeros"):
            sentences += (
                [Reason("{} of {} results are {}", self._counts[what], results, what)]
                if self._counts[what]
                else []
            )
        return sentences

    @property
    def at_cap(self) -> list[str]:
        """The line on pairs that were judged by the largest bound."""
        capped = self._counts["capped"]
        if capped == 1:
            return ["1 pair was held against the cap of 0.25"]
        return [Reason("{} pairs were held against the cap of 0.25", capped)] if capped else []


def _is_not_finite(row: Row) -> bool:
    nan, inf = (row.counts.get(f"golden_{what}") for what in ("nan", "inf"))
    computed = row.level not in ("op", "") and not row.golden.slot.startswith("input")
    infinite = inf and (computed or inf == row.counts.get("elements"))
    return row.fed not in _ANYTHING and bool(nan or infinite)


# The verdict of a run in one sentence, which a report begins with, and one that counts.
#
# Its sentences are `Reason`s, which the page says in Chinese too.


_BROKEN = "Incomplete, and already broken: {}: {}{}"
_NAME_WIDTH = 120
"""Characters of a name."""

SENTENCE = 300


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """`text` is the verdict, `lead` how many comparisons stand behind it (may be empty).

    `tone`: `good`, `bad`, or `open` where nothing fails but not everything ran.
    """

    tone: Literal["good", "bad", "open"]
    text: str
    lead: str = ""


def run_verdict(run: Run, result: Result) -> RunVerdict:
    """The verdict of a run."""
    tally, complete, failures = result.tally, result.tally.complete, result.tally.failures
    all_roots = () if result.diagnosis is None else result.diagnosis.roots
    roots = [root for root in all_roots if any(row.red for row in (root.row, *root.also))]
    if roots:
        return RunVerdict("bad", _broken(roots, complete), _counted(run, result, failures))
    if tally.first is not None:
        return _worst(run, result, tally.first, failures)
    if not tally.tried and result.exit_status in (0, 1, 5):
        return RunVerdict("open" if result.exit_status == 0 else "bad", "Nothing was compared")
    if not tally.compared and complete:
        return RunVerdict(
            "bad", Reason("Nothing was compared: none of {} {} could be", tally.tried, _units(run))
        )
    if not complete:  # and none of the tests that have run fails
        every = Reason(" of {}", len(run.plan.pairs)) if run.plan is not None else ""
        counts = tally.compared, every, _units(run)
        sentence = Reason("Incomplete: {}{} {} were compared, none fails", *counts)
        return RunVerdict("bad" if result.exit_status else "open", sentence)
    sentence = Reason("No difference beyond its bound: {} {}", tally.compared, _units(run))
    if result.exit_status == 0:
        return RunVerdict("good", sentence, accepted_line(tally))
    why = (*result.problems, *shortfalls(tally, run.plan, run.floor))
    why += (Reason("pytest ended with exit status {}.", result.exit_status),)
    return RunVerdict("bad", Reason("{}, but the run fails", sentence), printable(why[0], SENTENCE))


def accepted_line(tally: Tally) -> str:
    """The sentence on known differences; empty without any."""
    known = tally.counts["known"]
    return Reason("{} of them differ in a way that is known and accepted.", known) if known else ""


def _broken(roots: list[Root], complete: bool) -> str:
    """The sentence on the first root: its place, its excess, and the number of further roots."""
    first = roots[0]
    row = next(row for row in (first.row, *first.also) if row.red)
    remark = Reason("; {}", Reason("and {} more", len(roots) - 1)) if len(roots) > 1 else ""
    if first.fed:
        differ = row.fed in ("weight", "buffer")
        if not complete:
            what = "the models differ" if differ else "the run was fed something else"
            return Reason(_BROKEN, what, printable(first.fed, SENTENCE), remark)
        what = "The models differ" if differ else "The run was fed something else"
        return Reason("{}: {}{}", what, printable(first.fed, SENTENCE), remark)
    name = row.mine.op_type or row.golden.op_type or row.name
    if first.name != first.row.name:
        name = first.name
    if not complete:
        return Reason(_BROKEN, Reason("breaks at {}", _where(name, row)), _how(row), remark)
    return Reason("Breaks at {}: {}{}", _where(name, row), _how(row), remark)


def _worst(run: Run, result: Result, first: Row, failures: int) -> RunVerdict:
    """Without roots: how many tests fail, and which comparison is farthest beyond its bound."""
    tally = result.tally
    row = tally.worst[0] if tally.worst else first
    if not failures:
        return RunVerdict("bad", Reason("Fails at {}: {}", _named(row.name), printable(row.excuse, SENTENCE)))
    of = _where(row.mine.op_type or row.golden.op_type or row.name, row)
    if run.title == "opcheck":
        of = joined(", ", [_named(label) for label in (row.name, row.mine.slot) if label])
    if failures == 1:
        return RunVerdict("bad", Reason("Fails at {}: {}", of, _how(row)), _counted(run, result, failures))
    return RunVerdict(
        "bad",
        tests_that_fail(tally),
        Reason("{} of {} {} fail, the worst: {}: {}", failures, tally.tried, _units(run), of, _how(row)),
    )


def _counted(run: Run, result: Result, failures: int) -> str:
    tally = result.tally
    inherited = tally.counts["inherited"]
    counts = failures, tally.tried, _units(run), "fails" if failures == 1 else "fail"
    if not inherited:
        return Reason("{} of {} {} {}.", *counts)
    further = "its" if failures == 1 else "their", inherited, "inherits" if inherited == 1 else "inherit"
    return Reason("{} of {} {} {} on {} own; {} more {} from what fails.", *counts, *further)


def _where(name: str, row: Row) -> str:
    """The operator, its layer, and the step, as people say it."""
    step: str = Reason("step {}", row.step) if row.graph else Reason("decode {}", row.step)
    if row.step == "" or (row.step == 0 and not row.graph):
        step = "prefill" if row.step == 0 else ""
    labels = [name, "" if row.layer == row.graph else row.layer, row.graph, step]
    return joined(", ", (_named(label) for label in labels if label))


def _how(row: Row) -> str:
    """The excess of a comparison over its bound; its sentence where that is no number."""
    if not math.isfinite(row.excess) or not row.excess:
        return printable(clauses(row.sentence)[0], SENTENCE)
    if row.excess < 1.05:
        return "just beyond its bound"
    return Reason("{} times its bound", times(row.excess))


def times(excess: float) -> str:
    """`1.3`, `12`, `151`, `2e7`: no more digits than mean anything."""
    if excess >= 99.5:
        return f"{excess:.0f}" if excess < 1e5 else f"{excess:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{excess:.2g}"


def _units(run: Run) -> str:
    """The noun for what is counted: of people's own tests neither pairs nor outputs of operators."""
    if run.title == "opcheck":
        return "outputs"
    return "comparisons" if run.plan is None else "pairs"


def _named(text: str) -> str:
    return printable(text, _NAME_WIDTH)
