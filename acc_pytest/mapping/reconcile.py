"""Bring the two sides of a pair to one shape: merge rank shards, cut packed tensors, pick rows.

`open_pair` does it on mapped files when a test runs, `agree` on shapes alone while the plan is made:
both go through `reconcile`, so the plan never promises what the test cannot do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..base.imports import torch
from ..base.reason import Reason
from ..errors import Incomparable, NoPayload, ShapesDiffer
from ..tensors.eval_log import HALF_A_DIGIT, NOT_PRINTED
from ..tensors.source import Changed, Source, TensorSource
from .operand_shards import (
    OperandShards,
    as_they_lie,
    lie_alike,
    open_shards,
    shards_of_shapes,
    unjudged_values,
    ways_of,
)
from .pair import BLOCKED, Operand, Pair
from .shapes import rows_and_width, same_order
from .shard_sources import cut_out, in_halves, merged, mismatch, multiplied, whole_shapes, without_padding
from .shard_values import dequantised, settled, turned_alike
from .views import UNSLICED, CacheTail, HeadPart, LastToken, Part, Repeated, TableRows, Whole

_CUTS = (Part, TableRows, CacheTail, HeadPart)
"""Views of a piece that is as large as the other side."""
_CENTRED, _FEWEST = 1e-4, 64
"""Largest mean of centred numbers by their size, and the least width of rows that tell."""
_SAID = 0.1
"""Largest share of the size of numbers by which a print may be off, to say something of them."""
_ORDERED = 0.7
"""Relative distance of rows in another order is twice as much."""
_SAMPLE = 1 << 20
"""Elements that are looked at for an order, from the start."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sources, of one shape but for `as_stored`; `label` names a replica (`rank 1`), empty for the normal
    case. `width` is the last dimension of what elements were picked of."""

    golden: Source
    mine: Source
    label: str = ""
    width: int | None = None

    @property
    def alike(self) -> bool:
        """Whether both are of one shape."""
        return tuple(self.golden.shape) == tuple(self.mine.shape)


@dataclass(frozen=True, slots=True)
class Opened:
    """A pair ready to be measured. Replicated shards give one comparison per replica.

    `notes` says in words what was done to make the shapes agree; empty when nothing was. `suspect` is what
    the tensors of the ranks tell of a failure, if any. `unjudged` is what rows of mine hold that are left
    out, where golden's hold nothing like it (`operand_shards.EXTREMES`).
    """

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    suspect: str = ""
    unjudged: str = ""

    @property
    def golden(self) -> Source:
        return self.comparisons[0].golden

    @property
    def mine(self) -> Source:
        return self.comparisons[0].mine


def open_pair(pair: Pair) -> Opened:
    """Map both sides of a pair and reconcile them.

    Raises `FormatError`, `CannotDecode`, `NoPayload` for a file, `Incomparable` when the shapes (or
    an int8 side against a floating one) leave nothing to compare.
    """
    try:
        opened = open_operands(pair.golden, pair.mine)
    except ShapesDiffer:
        if not _is_head(pair):
            raise
        # A head may be asked for the last tokens alone (`logits_to_keep`).
        last = replace(pair.golden, view=LastToken()), replace(pair.mine, view=LastToken())
        opened = open_operands(*last)
    opened = _masks(opened) if pair.fed == "mask" or _is_mask(pair, opened) else opened
    if _is_head(pair) and "Linear" in pair.golden.op_type:
        opened = _centred(opened)
    prints = pair.golden.printed, pair.mine.printed
    return _of_prints(opened, prints) if any(prints) else opened


def _of_prints(opened: Opened, prints: tuple[bool, bool]) -> Opened:
    """The elements that are printed where a side is; mine may be off by the digits that are not.

    Raises `NoPayload` where nothing is printed, or values are too small for four decimals.
    """
    comparisons, note = [], ""
    for pair in opened.comparisons:
        count = math.prod(pair.golden.shape)
        sides = (pair.golden, pair.mine)
        printed = [side.read(0, count) != NOT_PRINTED for side, is_print in zip(sides, prints) if is_print]
        places = torch.stack(printed).all(0).nonzero()[:, 0].tolist()
        if not places:
            raise NoPayload("no element that is compared was printed")
        golden, mine = (torch.cat([side.read(p, p + 1) for p in places]).double() for side in sides)
        digits, size = HALF_A_DIGIT * sum(prints), float(golden.square().mean().sqrt())
        if size < digits / _SAID:
            raise NoPayload(Reason("four decimals say nothing of values of about {:.2g}", size))
        near = golden.clamp(mine - digits, mine + digits).where(golden.isfinite(), mine)
        picked = (TensorSource(values.float()) for values in (golden, near))
        comparisons.append(replace(pair, width=pair.golden.shape[-1], golden=next(picked), mine=next(picked)))
        note = Reason("{} of {} elements are printed, with four decimals", len(places), count)
    return replace(opened, comparisons=tuple(comparisons), notes=(*opened.notes, note))


def as_stored(pair: Pair) -> Comparison | None:
    """Both sides of a pair whose shapes differ, each as it was stored; `None` for more than one tensor.

    Raises what opening a file raises.
    """
    sides = pair.golden, pair.mine
    if any(len(side.refs) != 1 or side.view != Whole() for side in sides):
        return None
    return Comparison(TensorSource(pair.golden.refs[0].open()), TensorSource(pair.mine.refs[0].open()))


def _is_head(pair: Pair) -> bool:
    """Whether a pair lies behind the last layer, and both sides are whole tensors."""
    uncut = isinstance(pair.golden.view, Whole) and isinstance(pair.mine.view, Whole)
    return pair.layer == "model" and pair.depth > 0 and uncut


def open_operands(golden_operand: Operand, mine_operand: Operand) -> Opened:
    """Two operands that are no pair yet, opened as `open_pair` opens one."""
    ways = list(ways_of(golden_operand, mine_operand))
    in_experts = golden_operand.experts is not None
    if len(ways) == 1 and not in_experts:
        return _opened_operands(*ways[0])
    nearest = _nearest(ways, _ORDERED if in_experts else math.inf)
    if nearest is None:
        raise NoPayload("nothing tells which row is which token at which expert")
    return replace(nearest, notes=("rows by token and expert", *nearest.notes)) if in_experts else nearest


def _nearest(candidates: Sequence[tuple[Operand, Operand]], bound: float) -> Opened | None:
    """The way in which both sides are nearest to each other, nearer than `bound`."""
    nearest, refusal = None, None
    for operands in candidates:
        try:
            opened = _opened_operands(*operands)
        except (Incomparable, NoPayload) as problem:
            refusal = problem
            continue
        distance = _distance(opened)
        if distance < bound:
            nearest, bound = opened, distance
        if distance < _ORDERED / 10:
            break
    if nearest is None and refusal is not None:
        raise refusal
    return nearest


def _distance(opened: Opened) -> float:
    count = min(_SAMPLE, math.prod(opened.golden.shape))
    golden, mine = (source.read(0, count).double() for source in (opened.golden, opened.mine))
    return float((golden - mine).norm() / golden.norm())


def _opened_operands(golden_operand: Operand, mine_operand: Operand) -> Opened:
    if sources := as_they_lie(golden_operand, mine_operand):
        _refuse_tiled(golden_operand, mine_operand)
        return Opened((Comparison(*sources),))
    golden, mine = open_shards(golden_operand), open_shards(mine_operand)
    _refuse_tiled(golden_operand, mine_operand)
    if (unjudged := unjudged_values(mine_operand)) and unjudged_values(golden_operand):
        unjudged = ""
    numbers = dequantised(mine, mine_operand, golden)
    notes: list[str] = []
    if numbers is not mine:
        notes.append(Reason("{} times its scale", str(mine.shards[0].dtype)[6:]))
    kinds = {side.shards[0].dtype for side in (golden, numbers)}
    if torch.int8 in kinds and any(kind.is_floating_point for kind in kinds):
        raise Incomparable(
            "one side is int8, the other floating point: quantised values mean nothing without their scale"
        )
    golden, golden_times = multiplied(golden, golden_operand, numbers)
    mine, mine_times = multiplied(numbers, mine_operand, golden)
    opened = reconcile(golden, mine)
    notes += [note for note in (golden_times, mine_times) if note]
    return replace(opened, notes=(*notes, *opened.notes), unjudged=unjudged)


def _centred(opened: Opened) -> Opened:
    """Logits, golden's less the mean of each row where mine are given so: softmax does not see that."""
    shape = opened.golden.shape
    width = shape[-1] if shape and 0 not in shape else 0
    rows = [side.read(0, width).double() for side in (opened.golden, opened.mine)]
    means = [float(row.mean().abs() / row.square().mean().sqrt()) for row in rows]
    if width < _FEWEST or not means[0] > 10 * _CENTRED > 10 * means[1]:
        return opened
    comparisons = []
    for pair in opened.comparisons:
        logits = pair.golden.read(0, math.prod(pair.golden.shape)).reshape(pair.golden.shape)
        centred = (logits - logits.double().mean(-1, keepdim=True)).to(logits.dtype)
        comparisons.append(replace(pair, golden=TensorSource(centred)))
    note = "mine are centred: golden's less the mean of each row, which softmax does not see"
    return replace(opened, comparisons=tuple(comparisons), notes=(*opened.notes, note))


def _masks(opened: Opened) -> Opened:
    """Masks that are added to scores, whatever they put where nothing may be seen; beside one that says what
    may be seen (truth values) as the same."""
    masks = (
        replace(pair, golden=_mask(pair.golden, pair.mine), mine=_mask(pair.mine, pair.golden))
        for pair in opened.comparisons
    )
    return replace(opened, comparisons=tuple(masks))


def _is_mask(pair: Pair, opened: Opened) -> bool:
    """Whether what a module was given says on one side what may be seen (truth values), and blocks on the
    other what may not."""
    if not pair.mine.slot.startswith("input"):
        return False
    kinds = [side.refs[0].header().dtype.kind for side in (pair.golden, pair.mine)]
    if sorted(kinds) != ["bool", "float"]:
        return False
    source = opened.mine if kinds[0] == "bool" else opened.golden
    added = source.read(0, math.prod(source.shape))
    return bool(((added == 0) | (added <= BLOCKED / 2)).all() and (added <= BLOCKED / 2).any())


def _mask(source: Source, opposite: Source) -> Source:
    if not source.dtype.is_floating_point:
        return source
    if opposite.dtype == torch.bool:
        return Changed(source, lambda scores: scores > BLOCKED / 2, dtype=torch.bool)
    return Changed(source, lambda scores: scores.clamp(min=BLOCKED))


def agree(golden: Operand, mine: Operand) -> str:
    """Empty when the two operands can be compared judging by their headers, else the reason.

    Raises `FormatError` when a header cannot be read.
    """
    headers = [ref.header() for ref in (*golden.refs, *mine.refs)]
    if any(header.payload == "statistics" for header in headers):
        return _statistics_refusal(golden, mine)
    if lie_alike(golden, mine):
        return ""
    try:
        reconcile(shards_of_shapes(golden), shards_of_shapes(mine))
    except Incomparable as refusal:
        return str(refusal)
    return ""


def _statistics_refusal(golden: Operand, mine: Operand) -> str:
    """Max, min, mean and norm of a whole say nothing of a part, so a pair must not need cutting."""
    for operand in (golden, mine):
        if not isinstance(operand.view, UNSLICED):
            return "statistics cannot be sliced"
    if not all(ref.header().counted for ref in (*golden.refs, *mine.refs)):
        return ""
    counts = [sum(ref.header().numel for ref in operand.refs) for operand in (golden, mine)]
    shard_counts = [operand.refs[0].header().numel for operand in (golden, mine)]
    if counts[0] == counts[1] or shard_counts[0] == shard_counts[1]:
        return ""
    return Reason(
        "statistics of {} elements (golden) say nothing of {} elements (mine)", counts[0], counts[1]
    )


def _refuse_tiled(golden: Operand, mine: Operand) -> None:
    """Two sides in one device layout can be compared, one of them against plain rows cannot."""
    layouts = [{ref.header().layout for ref in operand.refs} for operand in (golden, mine)]
    if layouts[0] == layouts[1]:
        return
    from ..tensors.device_layouts import is_tiled

    for name, side_layouts in zip(("golden", "mine"), layouts):
        if tiled := sorted(layout for layout in side_layouts if is_tiled(layout)):
            raise Incomparable(
                Reason("{} is stored as {}, which cannot be converted to its logical shape", name, tiled[0])
            )


def reconcile(golden: OperandShards, mine: OperandShards) -> Opened:
    """Apply both views and merge the shards so that both sides have one shape.

    Raises `Incomparable` with both shapes when no rule makes them agree.
    """
    (golden, golden_turn), (mine, mine_turn) = turned_alike(golden, mine), turned_alike(mine, golden)
    (golden, golden_order), (mine, mine_order) = in_halves(golden, mine), in_halves(mine, golden)
    (golden, golden_sum), (mine, mine_sum) = settled(golden, mine), settled(mine, golden)
    opened = _reconciled(golden, mine)
    done = (golden_turn, mine_turn, golden_order, mine_order, golden_sum, mine_sum)
    notes = (golden.note, mine.note, *(shards.note for shards in done))
    distinct = tuple(dict.fromkeys(note for note in notes if note))
    suspect = next((shards.suspect for shards in done if shards.suspect), "")
    return replace(opened, notes=(*distinct, *opened.notes), suspect=suspect) if distinct else opened


def _reconciled(golden: OperandShards, mine: OperandShards) -> Opened:
    for side, partner in ((golden, mine), (mine, golden)):
        if isinstance(side.view, _CUTS):
            cut, note = cut_out(side, partner)
            shards, merge_note = merged(partner, tuple(cut.shape), golden, mine)
            sources = ([cut], shards) if side is golden else (shards, [cut])
            return _opened(*sources, note, merge_note)
    golden, mine = golden.side_by_side(_width(mine)), mine.side_by_side(_width(golden))
    golden, mine = without_padding(golden, mine), without_padding(mine, golden)
    for golden_cut, mine_cut, note in _last_token_of_replicas(golden, mine):
        if same_order(golden_cut.shape, mine_cut.shape):
            goldens, golden_note = merged(golden_cut, golden_cut.shape, golden, mine)
            mines, mine_note = merged(mine_cut, golden_cut.shape, golden, mine)
            return _opened(goldens, mines, note, golden_note, mine_note)
    for golden_cut, mine_cut, note in _trimmed(golden, mine):
        for shape in (*whole_shapes(golden_cut, mine_cut), *whole_shapes(mine_cut, golden_cut)):
            if golden_cut.rule(shape) and mine_cut.rule(shape):
                goldens, golden_note = merged(golden_cut, shape, golden, mine)
                mines, mine_note = merged(mine_cut, shape, golden, mine)
                return _opened(goldens, mines, note, golden_note, mine_note)
    raise mismatch(golden, mine)


def _opened(golden: list[Source], mine: list[Source], *notes: str) -> Opened:
    count = max(len(golden), len(mine))
    comparisons = []
    for rank in range(count):
        golden_source, mine_source = golden[min(rank, len(golden) - 1)], mine[min(rank, len(mine) - 1)]
        if tuple(golden_source.shape) != tuple(mine_source.shape):
            mine_source = Changed(mine_source, shape=tuple(golden_source.shape))
        comparisons.append(
            Comparison(golden_source, mine_source, Reason("rank {}", rank) if count > 1 else "")
        )
    return Opened(tuple(comparisons), tuple(note for note in notes if note))


def _trimmed(golden: OperandShards, mine: OperandShards) -> list[tuple[OperandShards, OperandShards, str]]:
    """The two sides as they are, then cut to last tokens or tiled to a larger batch where views allow it."""
    attempts = [(golden, mine, "")]
    if isinstance(golden.view, LastToken) or isinstance(mine.view, LastToken):
        attempts += [(shorter, mine, "last token of golden") for shorter in _last_token(golden)]
        attempts += [(golden, shorter, "last token of mine") for shorter in _last_token(mine)]
    if isinstance(golden.view, Repeated):
        attempts.append((_tiled(golden, golden.view), mine, _batch_note("golden", golden.view)))
    if isinstance(mine.view, Repeated):
        attempts.append((golden, _tiled(mine, mine.view), _batch_note("mine", mine.view)))
    return attempts


def _last_token_of_replicas(
    golden: OperandShards, mine: OperandShards
) -> list[tuple[OperandShards, OperandShards, str]]:
    """The two sides with the longer cut to last tokens, where several ranks may hold the same last token.

    Shards as wide as the other side are the whole of what they hold. Their rows must not be put below each
    other only because there are as many ranks as tokens.
    """
    rows = [rows_and_width(side.shape)[0] for side in (golden, mine)]
    if golden.count == mine.count == 1 or _width(golden) != _width(mine) or rows[0] == rows[1]:
        return []
    if not isinstance(golden.view, LastToken) and not isinstance(mine.view, LastToken):
        return []
    if rows[0] > rows[1]:
        return [(shorter, mine, "last token of golden") for shorter in _last_token(golden)]
    return [(golden, shorter, "last token of mine") for shorter in _last_token(mine)]


def _width(side: OperandShards) -> int:
    return rows_and_width(side.shape)[1]


def _tiled(side: OperandShards, view: Repeated) -> OperandShards:
    return OperandShards([shard.expand(view.times, *shard.shape) for shard in side.shards], side.view)


def _batch_note(name: str, view: Repeated) -> str:
    return Reason(
        "{} repeated {} times, for the other run had a batch as many times as large", name, view.times
    )


def _last_token(side: OperandShards) -> list[OperandShards]:
    """The last row of every sequence: `[batch, tokens, width]`, else `[tokens, batch, width]` or 2-D."""
    if len(side.shape) < 2:
        return []
    cuts = [[shard[-1:] for shard in side.shards]]
    if len(side.shape) >= 3:
        cuts.insert(0, [shard[:, -1] for shard in side.shards])
    return [OperandShards(shards, side.view) for shards in cuts]
