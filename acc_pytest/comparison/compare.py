"""One mapped pair, or any two tensors, in; one `Row` out. Runs in the process that runs the test.

Whatever is wrong with the input of a pair (a cut file, shapes that do not agree, a threshold that
is wrong) becomes the row's reason: a comparison never raises for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..dumps.msprobe_stacks import source_line_of
from ..errors import AccError, NoPayload, ShapesDiffer
from ..guard import guarded
from ..judging.judges import Judge
from ..judging.threshold import JudgeContext
from ..mapping.pair import Pair
from ..mapping.reconcile import Comparison, Opened, open_pair
from ..mapping.weights import POLICY
from ..reporting.row import Row, RowSide
from ..tensors.header import looking_once
from .after_ties import after_ties, with_left
from .fed import with_input_sentence
from .noise import with_noise
from .rows import incomparable, measured_row, pair_row, worst_replica
from .statistics import compare_statistics
from .ties import with_choices
from .weights import compare_weights, has_digest

if TYPE_CHECKING:
    from ..noise.counterparts import Counterpart
    from ..tensors.source import Source
    from .tie_reach import AfterTies


@looking_once()
def compare_pair(
    pair: Pair,
    make_judge: Callable[[], Judge],
    test_id: str,
    number: int,
    counterpart: Counterpart | None = None,
    make_ties: Callable[[], AfterTies] | None = None,
) -> Row:
    """Open, measure and judge a pair. `number` is its place in the plan.

    `counterpart` is where a noise run has its golden tensor, `None` where none was given.

    `make_ties` is called where the pair fails: tokens that come after another choice among equals are left
    out.

    `make_judge` may raise `AccError` (for a wrong marker or hook), which is a reason too.

    Replicas (one tensor per rank, all of which should be equal) are judged one by one; the row is
    that of the worst, and its notes say which one it is.
    """
    row = pair_row(pair, test_id, number)

    def compared() -> Row:
        if has_digest(pair):
            return compare_weights(pair, row)
        judge = make_judge()
        if _is_statistics(pair):
            return compare_statistics(pair, row, judge, counterpart)
        try:
            opened = open_pair(pair)
        except ShapesDiffer:
            left = None if make_ties is None else make_ties().left(number, None)
            if left is None:
                raise
            return after_ties(row, left)
        return _compare_opened(row, pair, opened, judge, counterpart, make_ties)

    return with_source_line(with_input_sentence(_incomparable_on_error(row, compared), pair), pair)


def _compare_opened(
    row: Row,
    pair: Pair,
    opened: Opened,
    judge: Judge,
    counterpart: Counterpart | None,
    make_ties: Callable[[], AfterTies] | None,
) -> Row:
    """The row of the worst of the tensors that were opened."""
    contexts = [JudgeContext.of(pair, _length(comparison.golden)) for comparison in opened.comparisons]
    contexts = with_noise(contexts, pair, opened.comparisons, counterpart)
    rows = []
    for context, comparison in zip(contexts, opened.comparisons):
        measured = measured_row(row, context, *judge.tensors(context, comparison.golden, comparison.mine))
        measured = _with_ties(measured, pair, context, comparison, judge, make_ties)
        notes = opened.notes
        if context.noise_reason:
            notes += (context.noise_reason,)
        if comparison.label:
            notes += (f"{comparison.label}, the worst of {len(opened.comparisons)} replicas",)
        if opened.suspect and measured.verdict == "fail":
            sentence = f"{opened.suspect}; {measured.sentence}"
            measured = replace(measured, sentence=sentence, reasons=(opened.suspect, *measured.reasons))
        rows.append(replace(measured, notes=(*notes, *measured.notes)) if notes else measured)
    return worst_replica(rows)


def _with_ties(
    row: Row,
    pair: Pair,
    context: JudgeContext,
    comparison: Comparison,
    judge: Judge,
    make_ties: Callable[[], AfterTies] | None,
) -> Row:
    """The row of a pair that fails as far as ties leave it: a choice, or what comes after one."""
    if row.verdict != "fail":
        return row
    number = row.number
    if make_ties is None or number is None:
        return with_choices(row, pair, comparison.golden, comparison.mine)
    ties = make_ties()
    reached = ties.reached(number)
    row = with_choices(row, pair, comparison.golden, comparison.mine, reached)
    left = ties.left(number, comparison) if row.verdict == "fail" else None
    if left is None:
        return row
    if left.rows is None:
        return after_ties(row, left)
    sources = left.rows.of(comparison.golden, comparison.mine)
    measurement, judgement = judge.tensors(context, *sources)
    rest = with_left(measured_row(row, context, left.rows.placed(measurement), judgement), left)
    before, after = ([c.measured for c in r.checks if c.metric == "new_nonfinite"] for r in (row, rest))
    if left.padding and before != after:
        return row  # attention multiplies what it does not see by 0, which NaN and infinity survive
    return with_choices(rest, pair, comparison.golden, comparison.mine, reached, left.rows)


def compare_tensors(
    golden: Source, mine: Source, make_judge: Callable[[], Judge], test_id: str, name: str
) -> Row:
    """Measure and judge any two tensors; shapes that differ make them incomparable.

    `name` says what they are, where the test compares more than one thing.
    """
    row = Row(test_id, "incomparable", "", golden=_described(golden, name), mine=_described(mine, name))

    def compared() -> Row:
        if tuple(golden.shape) != tuple(mine.shape):
            return incomparable(
                row, f"data shape doesn't match: golden {list(golden.shape)}, mine {list(mine.shape)}"
            )
        context = JudgeContext(id=name, golden_name=name, mine_name=name, length=_length(golden))
        return measured_row(row, context, *make_judge().tensors(context, golden, mine))

    return _incomparable_on_error(row, compared)


def _described(source: Source, name: str) -> RowSide:
    return RowSide(name=name, dtype=str(source.dtype), shape=str(list(source.shape)))


def _length(golden: Source) -> int | None:
    return int(golden.shape[-1]) if golden.shape else None


def _is_statistics(pair: Pair) -> bool:
    """Whether a side holds statistics only. A header that cannot be read is reported when opened."""
    try:
        return any(ref.header().payload == "statistics" for ref in (*pair.golden.refs, *pair.mine.refs))
    except (AccError, OSError):
        return False


def _incomparable_on_error(row: Row, compared: Callable[[], Row]) -> Row:
    try:
        with guarded("comparing golden and mine", (OSError,)):
            return compared()
    except NoPayload as error:
        return incomparable(row, str(error), skipped=True)
    except ShapesDiffer as error:
        return replace(incomparable(row, str(error)), shapes_differ=True)
    except (AccError, OSError) as error:
        return incomparable(row, str(error))


def with_source_line(row: Row, pair: Pair) -> Row:
    """The row of a pair that fails with the line of the program of mine that called its operation."""
    if row.verdict != "fail" or pair.policy == POLICY:
        return row
    line = source_line_of(pair.mine.refs[0].path, pair.mine.refs[0].member)
    return replace(row, notes=(*row.notes, f"mine called this at {line}")) if line else row
