"""The numbers and names at the end of a run: at most 20 lines, the starting point of the error first."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..judging.threshold import is_narrowed
from ..tensors.dtypes import by_name
from .caveats import Caveats
from .numbers import in_numbers
from .printable import printable
from .row import PADDING, REPLAY, VERDICTS, Row

if TYPE_CHECKING:
    from ..mapping.pair import Plan

WORST = 5
WIDTH = 160
ROOT_WIDTH = 600
"""A root's line says where, what follows from it, and why it is one."""


class Tally:
    """Counts rows as they arrive and keeps the first failing one and the worst few.

    `tests` are the ids of the tests that rows have come from, `red_tests` of those that fail. `after_tie`
    counts the tensors of which all tokens, or some, come after a tie, `padded` those judged without tokens of
    padding, `replayed` those whose operator was computed again or was not (`--acc-replay`), `unreplayed` why
    one was not, and `lacking` why golden's outline is not known whole. `lifted` counts those that pass as
    accumulated rounding, `most_lifted` is the most that one of them has of its bound. `narrowed` counts
    tensors of mine in a coarser type than its weights, by both. `complete`: no row is missing of the tests
    that were asked for.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.tests: set[str] = set()
        self.red_tests: set[str] = set()
        self.after_tie: Counter[str] = Counter()
        self.padded = 0
        self.lifted, self.most_lifted = 0, 0.0
        self.narrowed: Counter[tuple[str, str]] = Counter()
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
        self.after_tie.update([row.after_tie] if row.after_tie else ())
        if (declared := str(row.context.get("declared", ""))) and _coarser(row.mine.dtype, declared):
            self.narrowed[row.mine.dtype, declared] += 1
        self.lifted += row.times_lifted > 0
        self.most_lifted = max(self.most_lifted, row.times_lifted)
        if row.replayed is not None:
            self.replayed[row.replayed] += 1
            self.unreplayed = self.unreplayed or str(row.context.get(f"{REPLAY}why", ""))
            self.lacking = self.lacking or str(row.context.get(f"{REPLAY}lacking", ""))
        if not row.red:
            return
        self.red_tests.add(row.test_id)
        if self.first is None or _place(row) < _place(self.first):
            self.first = row
        if row.alone:
            return
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
        sentences.append(f"only {coverage(plan):.1%} of the nodes could be mapped, the floor is {floor:.1%}")
    if tally.compared and tally.nothing_replayed:
        sentences.append("no operator could be computed again (--acc-replay)")
    return sentences


def coverage_line(plan: Plan, floor: float) -> str:
    """Coverage of both sides in words, and whether the better one reaches the floor."""
    best = coverage(plan)
    verdict = "reached" if best >= floor else f"NOT reached: {best:.1%} is below it, so the run fails"
    return (
        f"coverage: golden {_of(plan.golden_mapped, plan.golden_total, ' nodes')}, "
        f"mine {_of(plan.mine_mapped, plan.mine_total)}; floor {floor:.0%} {verdict}"
    )


def _share(mapped: int, total: int) -> float:
    return mapped / total if total else 0.0


def _of(mapped: int, total: int, what: str = "") -> str:
    return f"{mapped} of {total}{what} ({_share(mapped, total):.0%})"


def summary_lines(
    tally: Tally, plan: Plan | None, floor: float, roots: Sequence[str] = (), feed_roots: int = 0
) -> list[str]:
    """The summary, at most 20 lines of at most `WIDTH` characters; `roots` are the lines of root causes.

    The first `feed_roots` of these are of what the run was fed and stand before everything else but caveats.
    What fails without one (it could not be compared, it is people's own) is named as the first failing.
    """
    caveats = "; ".join(tally.caveats.first(plan))
    lines = [_cut(line, ROOT_WIDTH) for line in (*filter(None, [caveats]), *roots[:feed_roots])]
    lines.append(verdicts_line(tally))
    if tally.after_tie:
        lines.append(after_tie_line(tally))
    if tally.padded:
        lines.append(f"padding: {tally.padded} judged without tokens that the mask hides, which nobody reads")
    if tally.lifted:
        lines.append(lifted_line(tally))
    lines += [narrowed_line(*types, count) for types, count in tally.narrowed.items()]
    if plan is not None and plan.golden_kind:
        lines.append(coverage_line(plan, floor))
    if tally.replayed:
        lines.append(replayed_line(tally))
    if tally.tried and not tally.compared:
        lines.append("nothing was compared: every pair is incomparable, so the run is not a success")
    lines += tally.caveats.at_cap
    lines += [_cut(line, ROOT_WIDTH) for line in roots[feed_roots:]]
    if tally.first is not None and (not roots or tally.first.cause is None):
        lines.append(_cut(f"first failing: {describe(tally.first)}"))
    if tally.worst and not roots:
        lines.append("worst by their bounds:")
        lines += [_cut(f"  {describe(row)}") for row in tally.worst]
    return lines


def verdicts_line(tally: Tally) -> str:
    """The number of rows by verdict, and, where tests have several rows, how many tests fail."""
    counted = ", ".join(f"{tally.counts[verdict]} {verdict}" for verdict in VERDICTS if tally.counts[verdict])
    if tally.tried > len(tally.tests):
        counted += f" (one for each tensor); {tests_that_fail(tally)}"
    return f"verdicts: {counted or 'none'}{'' if tally.complete else '; the run is incomplete'}"


def replayed_line(tally: Tally) -> str:
    """The line on tensors that replay has judged, and why not the first of the others."""
    computed, refused = tally.replayed[True], tally.replayed[False]
    line = f"replay: {computed} of {computed + refused} tensors of operators were computed again"
    line += ", so the run is not a success" if tally.nothing_replayed else ""
    line += f"; one was not because {tally.unreplayed}" if refused else ""
    if tally.lacking:
        line += f"; only linear layers were, because golden's model cannot be made: {tally.lacking}"
    return _cut(line, ROOT_WIDTH)


def after_tie_line(tally: Tally) -> str:
    """The line on pairs that were not judged because of ties."""
    counts = [f"{tally.after_tie[how]} {how}" for how in ("partly", "wholly") if tally.after_tie[how]]
    return (
        f"ties: {' and '.join(counts)} not judged: another choice among equals changes what follows from it"
    )


def narrowed_line(stored: str, declared: str, count: int) -> str:
    """The line on tensors of mine of a coarser type than its weights, and the rounding that they may have."""
    tensors = "1 tensor of mine is" if count == 1 else f"{count} tensors of mine are"
    allowed = declared if is_narrowed(stored, declared) else stored
    return f"types: {tensors} {stored}, coarser than its {declared} weights: bounds are those of {allowed}"


def _coarser(stored: str, declared: str) -> bool:
    formats = by_name(stored).format, by_name(declared).format
    return formats[0] is not None and formats[1] is not None and formats[0].roundoff > formats[1].roundoff


def lifted_line(tally: Tally) -> str:
    """The line on pairs that pass although they are beyond their bounds, and by how much."""
    pairs = "1 pair passes" if tally.lifted == 1 else f"{tally.lifted} pairs pass"
    return f"rounding: {pairs} as accumulated rounding, at most {tally.most_lifted:.3g} times the bound"


def tests_that_fail(tally: Tally) -> str:
    """The run in tests, as pytest counts it: of several rows of one test the worst decides."""
    return f"{len(tally.red_tests)} of {len(tally.tests)} tests fail"


def describe(row: Row) -> str:
    """One failing row in a line: name, operator, step, layer, and why it fails."""
    kind = row.mine.op_type or row.golden.op_type
    kind = f" ({kind})" if kind and not row.name.startswith(kind) else ""
    place = f" step {row.step}" if row.step != "" else ""
    if row.case:
        _, *group = row.test_id.split("::")[:2]
        place = f" {' '.join([row.mine.slot, *group])}"
    place += f" rank {row.rank}" if row.rank else ""
    place += f" {row.layer}" if row.layer else ""
    return f"{row.name}{kind}{place}: {row.excuse if row.excused or row.strict else in_numbers(row)}"


def _cut(line: str, width: int = WIDTH) -> str:
    return printable(line, width)
