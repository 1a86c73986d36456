"""One mapped pair, or any two tensors, in; one `Row` out. Runs in the process that runs the test.

Whatever is wrong with the input of a pair (a cut file, shapes that do not agree, a threshold that
is wrong) becomes the row's reason: a comparison never raises for it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.imports import torch
from ..base.reason import Reason
from ..base.vocabulary import number
from ..errors import AccError, FormatError, Incomparable, NoPayload, ShapesDiffer, guarded
from ..judging.derive import NONFINITE
from ..judging.judges import Judge
from ..judging.threshold import JudgeContext, RowLevel, Threshold
from ..judging.verdict import Check, Judgement, verdict_of
from ..mapping.operand_shards import extreme
from ..mapping.pair import WEIGHTS, Operand, Pair
from ..mapping.reconcile import Comparison, as_stored, open_pair
from ..mapping.views import RowSpan
from ..mapping.weights import POLICY
from ..reporting.row import SUSPECT, UNJUDGED, WORST_OF, Row, RowSide
from ..tensors.header import looking_once
from ..tensors.ref import TensorRef
from .choices import with_choices
from .likeness import with_likeness
from .noise import with_noise
from .rows import incomparable, judged, measured_row, pair_row, worst_replica
from .statistics import compare_statistics
from .tokens import after_ties, with_left

if TYPE_CHECKING:
    from ..noise.counterparts import Counterpart
    from ..tensors.digest import WeightDigest
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
    level: RowLevel | None = None,
) -> Row:
    """Open, measure and judge a pair. `number` is its place in the plan.

    `counterpart` is where a noise run has its golden tensor, `None` where none was given. `level` is what the
    layers before show of errors of rows, `None` where they show nothing.

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
            return _of_statistics(row, lambda: compare_statistics(pair, row, judge, counterpart), make_ties)
        try:
            opened = open_pair(pair)
        except ShapesDiffer:
            rest = _rest_of_shapes(row, pair, judge, make_ties)
            if rest is None:
                raise
            return rest
        contexts = [JudgeContext.of(pair, c.width or _length(c.golden)) for c in opened.comparisons]
        contexts = with_noise(contexts, pair, opened.comparisons, counterpart)
        if level is not None:
            levels = dict(zip(("level_typical_row", "level_last_row", "level_rows", "level_bias"), level))
            contexts = [replace(context, **levels) for context in contexts]  # type: ignore[arg-type]
        rows = []
        for context, comparison in zip(contexts, opened.comparisons):
            measured = measured_row(row, context, *judge.tensors(context, comparison.golden, comparison.mine))
            measured = _with_unjudged(measured, opened.unjudged)
            measured = _with_ties(measured, pair, context, comparison, judge, make_ties)
            measured = with_likeness(measured, comparison.golden, comparison.mine)
            notes = opened.notes
            if context.noise_reason:
                notes += (context.noise_reason,)
            if comparison.label:
                notes += (Reason(WORST_OF, comparison.label, len(opened.comparisons)),)
            if opened.suspect and measured.verdict == "fail":
                measured = replace(
                    measured,
                    sentence=Reason("{}; {}", opened.suspect, measured.sentence),
                    reasons=(opened.suspect, *measured.reasons),
                    context={**measured.context, SUSPECT: opened.suspect},
                )
            rows.append(replace(measured, notes=(*notes, *measured.notes)) if notes else measured)
        if pair.mine.printed and not pair.golden.printed:
            with contextlib.suppress(NoPayload, Incomparable):  # the mean of all elements; a part has none
                mean = compare_statistics(pair, row, judge, counterpart)
                rows.append(replace(mean, notes=opened.notes))
        return worst_replica(rows)

    return with_code(with_input_sentence(_incomparable_on_error(row, compared), pair), pair)


def _of_statistics(row: Row, compared: Callable[[], Row], make_ties: Callable[[], AfterTies] | None) -> Row:
    """The row of a pair of statistics. Raises `NoPayload` where it fails and a choice decides it that may be
    one among equals: values alone would tell."""

    def check() -> None:
        choice = "" if make_ties is None or row.number is None else make_ties().hidden_choice(row.number)
        if choice:
            raise NoPayload(Reason("statistics do not tell whether {} is a choice among equals", choice))

    try:
        made = compared()
    except Incomparable:
        check()
        raise
    if made.verdict == "fail":
        check()
    return made


def _rest_of_shapes(
    row: Row, pair: Pair, judge: Judge, make_ties: Callable[[], AfterTies] | None
) -> Row | None:
    """The row of what ties and padding leave of a pair whose sides are of other shapes; `None` where these do
    not tell which rows go together."""
    comparison = as_stored(pair)
    left = None if make_ties is None or row.number is None else make_ties().left(row.number, comparison)
    if left is None or left.rows is None or comparison is None:
        return None if left is None else after_ties(row, left)
    context = JudgeContext.of(pair, _length(comparison.golden))
    measurement, judgement = judge.tensors(context, *left.rows.of(comparison.golden, comparison.mine))
    return with_left(measured_row(row, context, left.rows.placed(measurement), judgement), left)


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
    if not left.tokens and any(c.measured for c in row.checks if c.metric == "new_nonfinite"):
        return row
    if left.rows is None:
        return _with_unjudged(after_ties(row, left), _unjudged(row, replace(row, counts={}, mine=RowSide())))
    sources = left.rows.of(comparison.golden, comparison.mine)
    context = replace(context, noise_last_row=None, level_last_row=None)
    measurement, judgement = judge.tensors(context, *sources)
    rest = with_left(measured_row(row, context, left.rows.placed(measurement), judgement), left)
    before, after = ([c.measured for c in r.checks if c.metric == "new_nonfinite"] for r in (row, rest))
    if left.padding and before != after:
        return row  # attention multiplies what it does not see by 0, which NaN and infinity survive
    earlier = row.context.get(UNJUDGED)
    rest = _with_unjudged(rest, _unjudged(row, rest) or (earlier if isinstance(earlier, str) else ""))
    return with_choices(rest, pair, comparison.golden, comparison.mine, reached, left.rows)


def _unjudged(row: Row, rest: Row) -> str:
    """The values of mine that no norm stands, in the rows that `rest` leaves out of `row` alone."""
    elsewhere = _extreme(rest, "my") or _extreme(row, "golden")
    return "" if elsewhere else _extreme(row, "my")


def _extreme(row: Row, prefix: str) -> str:
    side = row.mine if prefix == "my" else row.golden
    largest = math.inf if row.counts.get(f"{prefix}_inf") else max(abs(side.max or 0.0), abs(side.min or 0.0))
    return extreme(bool(row.counts.get(f"{prefix}_nan")), largest)


def _with_unjudged(row: Row, unjudged: str) -> Row:
    """The row with a note on what rows hold that are not judged, for the summary as well."""
    if not unjudged:
        return row
    note = Reason("{} in rows that are not judged", unjudged)
    return replace(row, notes=(*row.notes, note), context={**row.context, UNJUDGED: unjudged})


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
                row,
                Reason("data shape doesn't match: golden {}, mine {}", list(golden.shape), list(mine.shape)),
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


def with_code(row: Row, pair: Pair) -> Row:
    """The row of a pair that fails with the lines of the programs that its tensors come from."""
    if not row.red or pair.policy == POLICY:
        return row
    from ..dumps.msprobe import source_line_of
    from ..dumps.torch_manifest import code_of

    golden, mine = (
        source_line_of(ref.path, ref.member) or code_of(ref.path)
        for ref in (pair.golden.refs[0], pair.mine.refs[0])
    )
    return replace(row, golden=replace(row.golden, code=golden), mine=replace(row.mine, code=mine))


# Sentences on what a run was fed: token ids, positions, masks or weights differ, and how.


NAMES = {"token ids": "token ids differ", "positions": "positions differ", "mask": "the mask differs"}
_LARGEST = 1 << 20
"""Elements up to which whole numbers are looked at one by one; prompts are shorter."""


def with_input_sentence(row: Row, pair: Pair) -> Row:
    """The row of what a run was fed with a sentence that says so, where it does not pass.

    Another shape of what was fed is a difference like any other: what follows cannot be compared for it.
    """
    if not pair.fed or row.skipped or row.verdict not in ("fail", "incomparable"):
        return row
    if row.verdict == "incomparable" and not row.shapes_differ:
        return row
    if row.shapes_differ and pair.fed == "mask":
        mask_sentence = Reason(
            "masks in different forms: golden is {}, mine {}", row.golden.shape, row.mine.shape
        )
        return replace(row, sentence=mask_sentence, reasons=(mask_sentence, *row.reasons), skipped=True)
    what, how = _what(pair), _how(row, pair)
    sentence = Reason("{}{}", what, how)
    if pair.fed not in WEIGHTS:
        sentence = Reason("{} at step {}{}", what, pair.step, how)
    reasons = (sentence, *(reason for reason in row.reasons if reason != row.sentence))
    return replace(row, verdict="fail", sentence=sentence, reasons=reasons)


def _what(pair: Pair) -> str:
    if pair.fed in WEIGHTS:
        module, _, last = pair.mine.name.removeprefix("root.").rpartition(".")
        if module:
            return Reason("{} of {} differs", last, module)
        return Reason("{} {} differs", pair.fed, last)
    # An input of a compiled graph has a name of its own there.
    name = pair.mine.name if pair.graph else Reason("{} of {}", pair.mine.slot, pair.mine.name)
    return NAMES.get(pair.fed, Reason("{} {} differs", pair.fed, name))


def _how(row: Row, pair: Pair) -> str:
    if row.shapes_differ:
        return Reason(": {}", _lengths(row, pair))
    further = next((c.measured for c in row.checks if c.metric == "new_nonfinite" and not c.passed), None)
    if further and pair.fed in WEIGHTS:
        return Reason(": {} of its values are NaN or infinite in mine alone", int(further))
    values = None if pair.fed in WEIGHTS or pair.fed == "input" else _whole_numbers(pair)
    if values is None:
        distance = row.metrics.get("relative_euclidean_distance")
        if isinstance(distance, float):
            return Reason(": relative L2 {}", number(distance))
        return Reason(": {}", row.sentence)
    golden, mine = values
    where = (golden != mine).nonzero().flatten()
    if not len(where):
        return Reason(": {}", row.sentence)
    first = int(where[0])
    differing_values = Reason("golden {}, mine {}", golden[first].item(), mine[first].item())
    if len(golden) == 1:
        return Reason(": {}{}", differing_values, _argmax(pair, int(golden), int(mine)))
    return Reason(": {} of {}, the first at {}: {}", len(where), len(golden), first, differing_values)


def _lengths(row: Row, pair: Pair) -> str:
    """`prompts have 7 and 9 tokens`, or the shapes."""
    shapes = [_shape(operand) for operand in (pair.golden, pair.mine)]
    if pair.fed == "token ids" and all(shapes):
        golden, mine = (shape[-1] for shape in shapes)
        if golden != mine and pair.step == 0:
            return Reason("prompts have {} (golden) and {} (mine) tokens", golden, mine)
    return Reason("golden is {}, mine {}", row.golden.shape, row.mine.shape)


def _shape(operand: Operand) -> tuple[int, ...]:
    try:
        return operand.refs[0].header().shape
    except (AccError, OSError):
        return ()


def _whole_numbers(pair: Pair) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The values of both sides in one order; `None` for others than whole numbers, or too many."""
    try:
        golden, mine = (_flat(operand) for operand in (pair.golden, pair.mine))
    except (AccError, OSError):
        return None
    if golden is None or mine is None or len(golden) != len(mine):
        return None
    return golden, mine


def _flat(operand: Operand) -> torch.Tensor | None:
    if math.prod(operand.refs[0].header().shape) > _LARGEST:
        return None
    tensor = operand.refs[0].open()
    return None if tensor.is_floating_point() else tensor.reshape(-1).to(torch.int64)


def _argmax(pair: Pair, golden: int, mine: int) -> str:
    """Why the token of a decode step is another one, as far as the logits of the step before tell."""
    best = [_last_argmax(operand) for operand in (pair.golden, pair.mine)]
    if None in best or not isinstance(pair.step, int):
        return ""
    if best == [golden, mine]:
        return Reason("; the argmax of step {} diverged", pair.step - 1)
    if best[0] == golden and best[1] != mine:
        return Reason("; the argmax of mine at step {} is {}", pair.step - 1, best[1])
    return ""


def _last_argmax(operand: Operand) -> int | None:
    """The token with the largest of the last logits; `None` where these are not at hand on one rank."""
    if len(operand.chosen_from) != 1:
        return None
    try:
        logits = operand.chosen_from[0].open()
    except (AccError, OSError):
        return None
    if not logits.is_floating_point() or not logits.dim() or not logits.shape[-1]:
        return None
    return int(logits.reshape(-1, logits.shape[-1])[-1].argmax())


# Weights by what two torch dumps say of them: no value is there, and none is read.
#
# Two weights of one dtype are the same or are not. Of other dtypes each may be the other one rounded;
# beyond that they are different weights. Thresholds of a standard and of rules are for results, and do not
# count here.


METRIC = "relative_euclidean_distance"


def has_digest(pair: Pair) -> bool:
    """Whether the pair is one of weights of which a side has a digest and not the values."""
    if pair.policy != POLICY:
        return False
    from ..dumps.torch_model import WEIGHTS_FILE

    return any(Path(ref.path).name == WEIGHTS_FILE for side in (pair.golden, pair.mine) for ref in side.refs)


def compare_weights(pair: Pair, row: Row) -> Row:
    """The row of a weight that a dump has a digest of; the other one's is made of the values, where it has
    these.

    Raises `NoPayload` where one has none, and for shapes or units that differ; `FormatError` for the digests
    of another capture.
    """
    golden, mine = _digest(pair.golden), _digest(pair.mine)
    row = replace(
        row,
        golden=replace(row.golden, dtype=f"torch.{golden.dtype}"),
        mine=replace(row.mine, dtype=f"torch.{mine.dtype}"),
    )
    spans = [side.view if isinstance(side.view, RowSpan) else None for side in (pair.golden, pair.mine)]
    if any(spans):
        return _by_rows(pair, row, golden, mine, spans)
    if golden.shape != mine.shape:
        raise NoPayload(Reason("shapes differ: golden {}, mine {}", list(golden.shape), list(mine.shape)))
    try:
        distance = golden.distance(mine) if golden.differs(mine) else 0.0
    except ValueError as error:
        raise NoPayload(str(error)) from error
    # A network may be rounded as a whole and computed in float32; a buffer that its code keeps so is not.
    is_kept = pair.fed == "buffer" and golden.dtype == mine.dtype
    alike = bool(distance) and not is_kept and golden.nonfinite == mine.nonfinite
    note = _agreement(golden, mine) if alike else ""
    if note:
        distance = 0.0
    scaled = [
        Reason("{} holds {}, scaled by {}", side, w.dtype, w.scale)
        for side, w in (("golden", golden), ("mine", mine))
        if w.scale
    ]
    if scaled:
        note = f"{'; '.join(scaled)}; {golden.distance(mine):.2g} apart"
    judgement = _judged(golden, mine, distance)
    return judged(
        row,
        judgement,
        metrics={METRIC: distance},
        counts={"elements": math.prod(golden.shape)},
        notes=(*((note,) if note else ()), "by digests: the weights were not dumped"),
    )


def _by_rows(
    pair: Pair, row: Row, golden: WeightDigest, mine: WeightDigest, spans: Sequence[RowSpan | None]
) -> Row:
    """The row of a weight that is a piece of another one, by the numbers of their rows: those of a matrix are
    sums that were stored in float16, which moves them by its unit roundoff."""
    ours, theirs = (_row_numbers(operand, span) for operand, span in zip((pair.golden, pair.mine), spans))
    if ours.shape != theirs.shape:
        raise NoPayload(Reason("rows differ: golden {}, mine {}", list(ours.shape), list(theirs.shape)))
    size = float(ours.norm())
    distance = float((ours - theirs).norm()) / size if size else float(theirs.norm())
    stored = 2 * float(torch.finfo(torch.float16).eps) if ours.shape[1] > 1 else 0.0
    rounding = 0.0 if golden.dtype == mine.dtype else golden.rounding(mine)
    bound = Threshold(
        METRIC, rounding + stored, False, Reason("weights: {}", "rounding of their numbers, and of types")
    )
    order = next((span.order for span in spans if span is not None), ())
    return judged(
        row,
        verdict_of([Check.of(bound, distance)], ours.numel()),
        metrics={METRIC: distance},
        counts={"elements": ours.numel()},
        notes=(
            "by numbers of its rows: the weights were not dumped",
            *(("in another order",) if order else ()),
        ),
    )


def _row_numbers(operand: Operand, span: RowSpan | None) -> torch.Tensor:
    from ..dumps.torch_model import ROWS_FILE
    from ..tensors.digest import TURNED

    (ref,) = operand.refs
    member = ref.member + TURNED * (span is not None and span.turned)
    numbers = TensorRef(str(Path(ref.path).parent / ROWS_FILE), member).open().double()
    numbers = numbers.reshape(len(numbers), -1)
    return numbers if span is None else numbers[span.places()]


def _judged(golden: WeightDigest, mine: WeightDigest, distance: float) -> Judgement:
    allowed = 0.0 if golden.dtype == mine.dtype else golden.rounding(mine)
    why = (
        "one dtype"
        if golden.dtype == mine.dtype
        else Reason("rounding of {} to {}", golden.dtype, mine.dtype)
    )
    further = mine.nonfinite - golden.nonfinite
    checks = [
        Check.of(Threshold(METRIC, allowed, False, Reason("weights: {}", why)), distance),
        *map(Check.of, NONFINITE, (float(max(0, further)), float(max(0, -further)))),
    ]
    return verdict_of(checks if further else checks[:1], math.prod(golden.shape))


def _agreement(golden: WeightDigest, mine: WeightDigest) -> str:
    """A note that both are equal once they are rounded to a narrower dtype; empty where they are not."""
    for name, crc32 in golden.rounded.items():
        if mine.rounded.get(name) == crc32:
            return Reason("equal once both are rounded to {}", name)
    return ""


def _digest(operand: Operand) -> WeightDigest:
    from ..dumps.torch_model import FOREIGN, weights_of
    from ..tensors.digest import digest

    (ref,) = operand.refs
    if not ref.member:
        return digest(ref.open())
    saved = weights_of(Path(ref.path).parent).get(ref.member)
    if saved is not None and saved.reason == FOREIGN:
        raise FormatError(f"{FOREIGN}: {ref.path}")
    if saved is None or saved.digest is None:
        raise NoPayload(
            Reason("{}: no digest: {}", ref, saved.reason if saved is not None else "it is not listed")
        )
    return saved.digest
