"""Weights of golden inside those of mine: packed, transposed, sharded, in other rows, or lost.

A port packs q, k and v, gate and up, or all experts into one weight. The rows of golden's weights are packed
in it by a few numbers of each (`tensors.weight_rows`), whatever the two call them. Numbers of columns do the
same for what is transposed, or has a share of the columns. What has no rows in common with golden's is told
by its place: a piece that is wrong lies in the gap that the others leave. Loaders mix up rows and forget
biases more often than kernels compute wrongly, so this is looked at before any activation.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.imports import torch
from ..base.reason import Reason, joined
from ..errors import AccError
from ..tensors.dtypes import by_name
from ..tensors.ref import TensorRef
from .views import RowSpan

if TYPE_CHECKING:
    from ..dumps.torch_model import SavedWeight
    from ..tensors.digest import WeightDigest

_NEAR = 0.1
"""The largest relative distance of two rows that are one: rounding to 8 bits makes 0.03, and eight numbers of
the nearest of ten thousand unrelated rows are 0.3 apart. Twice that for codes of 4 bits, which make 0.09."""
_ROUNDED = 2.0**-7
"""The largest relative distance of two vectors that are one: each rounded to bfloat16."""
_SAMPLES = 8
"""Rows of a weight that are looked for in every weight of the other side."""
_NEARLY_ALL = 0.9
"""The part of the rows of a run that are golden's: few may be wrong."""
_MOST_ROWS = 4096
"""Rows of a rank's weight that are looked for in every weight of golden: of a share there is one at least."""
_BLOCK = 256
_DISTANCES = 1 << 24
"""Rows that are looked for together, and distances that are computed together, at most."""
_RUNS_NAMED = 4
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Piece:
    """The weight `golden` as the rows from `start` on of `mine`; of a share, its rows from `first` on.
    `order` says in which runs its rows lie there (first row of golden, first row in it, number of rows),
    empty where in golden's order. It is `odd` where no more than half of layers have it, `turned` where rows
    of golden or of mine are columns, and `guessed` by the gap that others leave."""

    golden: str
    mine: str
    start: int
    rows: int
    order: tuple[tuple[int, int, int], ...] = ()
    odd: bool = False
    whole: bool = False
    turned: tuple[bool, bool] = (False, False)
    guessed: bool = False
    first: int | None = None

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """The first row of golden, the first of mine, and how many, of each run of rows that lie together."""
        runs = self.order or ((0, 0, self.rows),)
        return [((self.first or 0) + ours, self.start + theirs, count) for ours, theirs, count in runs]

    @property
    def is_reordered(self) -> bool:
        """Whether the rows are those of one block on either side, in another order."""
        ends = (max((run[side] + run[2] for run in self.order), default=0) for side in (0, 1))
        return {*ends} == {self.rows}

    @property
    def span(self) -> RowSpan | None:
        """The rows that are golden's, in golden's order if other layers have that order too; `None` for a
        weight that is the `whole` of it under another name."""
        order = () if self.odd else self.order
        return None if self.whole and not order else RowSpan(self.start, self.rows, order)

    @property
    def spans(self) -> tuple[RowSpan | None, RowSpan | None]:
        """The rows of `golden` and of `mine` that are one; `None` for all of them."""
        if not any(self.turned) and self.first is None:
            return None, self.span
        span = self.span or RowSpan(self.start, self.rows)
        order = () if self.first is None else tuple((m, g, n) for g, m, n in span.order)
        of_golden = RowSpan(self.first or 0, self.rows, order, self.turned[0])
        return of_golden, replace(span, turned=self.turned[1])

    @property
    def words(self) -> str:
        """The order of the rows, in words: `rows 0-63 lie at 64-127`."""
        moved = [run for run in self.order if run[0] != run[1]]
        texts = [
            Reason("rows {}-{} lie at {}-{}", g, g + n - 1, m, m + n - 1) for g, m, n in moved[:_RUNS_NAMED]
        ]
        return joined(", ", texts + ["..."] * (len(moved) > _RUNS_NAMED))


@dataclass(frozen=True, slots=True)
class Side:
    """The weights of a side without a partner, by listed name, and the folder of their process. Matrices that
    are `turned` have the numbers of their columns as rows. With `shares` the sides are on other numbers of
    ranks."""

    saved: Mapping[str, SavedWeight]
    home: Path
    turned: bool = False
    shares: bool = False

    @property
    def least(self) -> float:
        """The least part of the rows of a weight that lie in another one: the others may be wrong. A rank
        that packs its shares of several has a part of the rows of each, and is not wrong."""
        return _NEARLY_ALL if self.shares else 0.5

    def rows(self, name: str) -> torch.Tensor | None:
        """The row numbers of a weight, in float32; `None` where the file does not have them."""
        from ..dumps.torch_model import rows_file
        from ..tensors.digest import TURNED

        try:
            numbers = TensorRef(rows_file(self.home), name + TURNED * self.turned).open().float()
        except (AccError, OSError):
            return None
        return numbers[:, None] if numbers.dim() == 1 else numbers

    def width(self, name: str) -> int:
        """The number of columns; 0 for a vector, and for what has no digest."""
        shape = self.shape(name)
        return shape[-1] if len(shape) > 1 else 0

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight; empty for what has no digest, or cannot be turned."""
        digest = self.saved[name].digest
        shape = () if digest is None else digest.shape
        return shape[::-1] if self.turned and len(shape) == 2 else () if self.turned else shape

    def count(self, name: str) -> int:
        """The number of rows."""
        shape = self.shape(name)
        return math.prod(shape[:-1] if len(shape) > 1 else shape)

    def without(self, names: Collection[str]) -> Side:
        """The weights that are none of these."""
        return replace(self, saved={n: saved for n, saved in self.saved.items() if n not in names})


def pieces(golden: Side, mine: Side) -> list[Piece]:
    """Golden's weights in those of mine, some of their rows or all, and the biases beside them."""
    packed = [piece for name in mine.saved if mine.width(name) for piece in _packed(golden, mine, name)]
    located = {piece.golden for piece in packed if not piece.guessed}
    packed = _with_biases([p for p in packed if not (p.guessed and p.golden in located)], golden, mine)
    return [*packed, *(() if golden.turned or mine.turned else _vectors(golden, mine, packed))]


def shared_rows(golden: Side, mine: Side, located: Sequence[Piece]) -> list[Piece]:
    """The rows of golden's weights in those of mine that no piece of `located` has, where a rank packs its
    shares of several, or has rows of padding behind one; and the biases beside them."""
    packed: list[Piece] = []
    for name in mine.saved:
        targets = mine.rows(name) if mine.width(name) else None
        names = _names_alike(golden, mine, name) if targets is not None else []
        rows = {g: numbers for g in names if (numbers := golden.rows(g)) is not None}
        if targets is None or not rows:
            continue
        near = max(_near(golden, g, mine, name) for g in rows)
        runs: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        free = _uncovered_rows(mine, name, located)
        for of_golden, *run in _runs_of_several(rows, targets, free, near):
            runs[of_golden].append((run[0], run[1], run[2]))
        for of_golden, of_weight in runs.items():
            # A row by itself may be near by chance.
            few = sum(run[2] == 1 for run in of_weight) < (1 - _NEARLY_ALL) * len(free)
            if of_weight := sorted(run for run in of_weight if run[2] > 1 or not few):
                packed.append(_share(of_golden, name, of_weight, (golden.turned, mine.turned)))
    return _with_biases(packed, golden, mine)


def _share(golden: str, mine: str, runs: Sequence[tuple[int, int, int]], turned: tuple[bool, bool]) -> Piece:
    first, start = runs[0][0], min(run[1] for run in runs)
    order = tuple((g - first, m - start, count) for g, m, count in runs) if len(runs) > 1 else ()
    return Piece(golden, mine, start, sum(run[2] for run in runs), order, turned=turned, first=first)


def _runs_of_several(
    weights: Mapping[str, torch.Tensor], targets: torch.Tensor, rows: Sequence[int], near: float
) -> Iterator[tuple[str, int, int, int]]:
    """The runs of these rows of `targets` that lie in one of the weights: its name, the first row there, the
    first row of `targets`, and how many. Of more than `_MOST_ROWS` some are looked for first."""
    if len(rows) > _MOST_ROWS:
        sample = targets[rows[:: 1 + len(rows) // _MOST_ROWS]]
        weights = {name: ours for name, ours in weights.items() if (_nearest(sample, ours, near) >= 0).any()}
    if not weights:
        return
    starts = [*itertools.accumulate(map(len, weights.values()), initial=0)]
    names, together = [*weights], torch.cat([*weights.values()])
    free = torch.zeros(len(targets), dtype=torch.bool)
    free[rows] = True
    for row, place in zip(rows, _nearest(targets[rows], together, near).tolist()):
        if place < 0 or not free[row]:
            continue
        number = bisect.bisect_right(starts, place) - 1
        ours = together[place : starts[number + 1]]
        theirs = targets[row : row + len(ours)]
        is_near = (ours[: len(theirs)] - theirs).norm(dim=1) <= near * theirs.norm(dim=1)
        is_near &= free[row : row + len(ours)]
        enough = is_near.cumsum(0) >= _NEARLY_ALL * torch.arange(1, len(theirs) + 1)
        count = int((is_near & enough).nonzero()[-1]) + 1
        yield names[number], place - starts[number], row, count
        free[row : row + count] = False


def _uncovered_rows(mine: Side, name: str, packed: Sequence[Piece]) -> list[int]:
    """The rows of a weight of mine that no piece has, and that are not zero, as padding is."""
    rows = mine.rows(name)
    covered = {
        row
        for piece in packed
        if piece.mine == name and piece.turned[1] == mine.turned
        for _, start, count in piece.runs
        for row in range(start, start + count)
    }
    return [] if rows is None else [r for r in rows.any(1).nonzero()[:, 0].tolist() if r not in covered]


def strangers(mine: Side, packed: Sequence[Piece], golden: str) -> Iterator[Reason]:
    """Sentences on rows of mine that are none of golden's, beside rows that are."""
    strange: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, turned in dict.fromkeys((p.mine, p.turned[1]) for p in packed if mine.width(p.mine)):
        if rows := _uncovered_rows(replace(mine, turned=turned), name, packed):
            strange["columns" if turned else "rows", stretches(rows)].append(name)
    for (kind, rows_named), names in strange.items():
        yield Reason("no weight of {} has {} {} of {}", golden, kind, rows_named, listed(names))


def _with_biases(packed: Sequence[Piece], golden: Side, mine: Side) -> list[Piece]:
    """Pieces with word of orders that few layers have, and with the biases beside them."""
    orders: dict[str, Counter[object]] = defaultdict(Counter)
    for piece in packed:
        orders[_NUMBER.sub("*", piece.golden)][piece.order] += 1
    packed = [
        replace(piece, odd=piece.is_reordered and 1 < of_kind.total() >= 2 * of_kind[piece.order])
        for piece in packed
        for of_kind in (orders[_NUMBER.sub("*", piece.golden)],)
    ]
    return [*packed, *_biases(packed, golden, mine)]


def _packed(golden: Side, mine: Side, name: str) -> Iterator[Piece]:
    if name in golden.saved and golden.width(name) == mine.width(name):
        share = _piece(golden, name, mine, name)  # of one rank
        if share is not None:
            yield share
            return
    names = _names_alike(golden, mine, name)
    alike = [g for g in names if golden.shape(g) == mine.shape(name)]
    packed = [piece for g in alike if (piece := _piece(golden, g, mine, name)) is not None]
    if all(piece.order for piece in packed):  # else no row of it is left
        further = (g for g in names if g not in alike)
        packed += [piece for g in further if (piece := _piece(golden, g, mine, name)) is not None]
    yield from packed
    if packed and (gap := _gap(packed, mine.count(name))) is not None:
        around = Counter(piece.golden.rpartition(".")[0].rpartition(".")[0] for piece in packed)
        parent = around.most_common(1)[0][0]
        paired = {piece.golden for piece in packed}
        fitting = [
            g for g in names if g not in paired and golden.count(g) == gap[1] and g.startswith(f"{parent}.")
        ]
        if len(fitting) == 1:
            yield Piece(fitting[0], name, *gap, turned=packed[0].turned, guessed=True)


def _names_alike(golden: Side, mine: Side, name: str) -> list[str]:
    """The weights of golden that have the width of one of mine, in its layer."""
    layer = _NUMBER.search(name)
    return [
        g
        for g in golden.saved
        if golden.width(g) == mine.width(name)
        and (layer is None or (m := _NUMBER.search(g)) is None or m[0] == layer[0])
    ]


def _near(golden: Side, name: str, mine: Side, pack: str) -> float:
    digests = golden.saved[name].digest, mine.saved[pack].digest
    return _NEAR * (1 + any(d is not None and d.scale and by_name(d.dtype).bits < 8 for d in digests))


def _piece(golden: Side, name: str, mine: Side, pack: str) -> Piece | None:
    """The rows of a weight of golden in one of mine; `None` where they are not there."""
    if golden.count(name) > mine.count(pack):
        return None
    rows, target = golden.rows(name), mine.rows(pack)
    near = _near(golden, name, mine, pack)
    if rows is None or target is None or (place := _located(rows, target, near, golden.least)) is None:
        return None
    whole = golden.shape(name) == mine.shape(pack)
    return Piece(name, pack, place[0], len(rows), place[1], whole=whole, turned=(golden.turned, mine.turned))


def _located(
    rows: torch.Tensor, target: torch.Tensor, near: float, share: float
) -> tuple[int, tuple[tuple[int, int, int], ...]] | None:
    """Where the rows lie in `target`: the first of them, and their runs where these are in another order."""
    if _lie_at(rows, target, 0, near):
        return 0, ()
    sample = torch.linspace(0, len(rows) - 1, min(len(rows), _SAMPLES)).long().unique()
    sampled = _nearest(rows[sample], target, near)
    if int((sampled >= 0).sum()) < share * len(sample):
        return None
    start = Counter((sampled - sample)[sampled >= 0].tolist()).most_common(1)[0][0]
    if _lie_at(rows, target, start, near):
        return start, ()
    places = _nearest(rows, target, near)
    located = places[places >= 0]
    if len(located) < share * len(rows) or len(located.unique()) < _NEARLY_ALL * len(located):
        return None  # not there, or no order of rows
    if len(located) < len(rows):
        nearest = _nearest(rows, target, math.inf)
        if len(nearest.unique()) == len(rows) == int(nearest.max() - nearest.min()) + 1:
            places = located = nearest
    offsets = Counter((places - torch.arange(len(rows)))[places >= 0].tolist())
    offset, count = offsets.most_common(1)[0]
    if count >= _NEARLY_ALL * len(located) and 0 <= offset <= len(target) - len(rows):
        return offset, ()
    start = int(located.min())
    inside = int(located.max()) < start + len(rows)
    if len(located) < len(rows) and not inside:
        return None  # split
    return start, tuple(_runs(places - start))


def _lie_at(rows: torch.Tensor, target: torch.Tensor, start: int, near: float) -> bool:
    """Whether nine of ten rows lie in `target` from `start` on, in their order."""
    if not 0 <= start <= len(target) - len(rows):
        return False
    off = (rows - target[start : start + len(rows)]).norm(dim=1)
    return bool((off <= near * rows.norm(dim=1)).float().mean() >= _NEARLY_ALL)


def _nearest(rows: torch.Tensor, target: torch.Tensor, near: float) -> torch.Tensor:
    """The nearest row of `target` for each; -1 where none is near."""
    places = torch.full((len(rows),), -1)
    reach = (near * rows.norm(dim=1)).nan_to_num()
    for block, window in _windows(rows, target, reach):
        if len(window):
            distances, nearest = torch.cdist(rows[block], target[window]).min(1)
            places[block] = torch.where(distances <= reach[block], window[nearest], -1)
    return places


def _windows(
    rows: torch.Tensor, target: torch.Tensor, reach: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Blocks of rows, each with the rows of `target` that may be near: those whose first number is."""
    if len(rows) <= _SAMPLES:  # sorting costs more than it saves
        yield torch.arange(len(rows)), torch.arange(len(target))
        return
    firsts, order = target[:, 0].sort(stable=True)
    for block in rows[:, 0].argsort().split(max(1, min(_BLOCK, _DISTANCES // max(len(target), 1)))):
        low, high = rows[block[0], 0] - reach[block].max(), rows[block[-1], 0] + reach[block].max()
        yield block, order[torch.searchsorted(firsts, low) : torch.searchsorted(firsts, high, right=True)]


def _runs(places: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """Runs of rows that lie one behind the other: the first, where it lies, and how many."""
    listed = places.tolist()
    first = 0
    for row in range(1, len(listed) + 1):
        if row == len(listed) or listed[row] != listed[row - 1] + 1:
            if listed[first] >= 0:
                yield first, listed[first], row - first
            first = row


def _gap(packed: Sequence[Piece], count: int) -> tuple[int, int] | None:
    """The only rows of a weight that no piece covers: the first, and how many."""
    gaps, end = [], 0
    for piece in sorted(packed, key=lambda piece: piece.start):
        if piece.start > end:
            gaps.append((end, piece.start - end))
        end = max(end, piece.start + piece.rows)
    gaps += [(end, count - end)] if end < count else []
    return gaps[0] if len(gaps) == 1 else None


def _biases(packed: Sequence[Piece], golden: Side, mine: Side) -> Iterator[Piece]:
    """The biases of modules whose weights are pieces, at the same rows of the bias beside."""
    for piece in packed:
        of_golden, of_mine = (_bias_of(name) for name in (piece.golden, piece.mine))
        if of_golden in golden.saved and of_mine in mine.saved:
            digest = golden.saved[of_golden].digest
            count = piece.rows if piece.first is None else golden.count(piece.golden)
            if not any(piece.turned) or (digest is not None and digest.shape == (count,)):
                yield replace(piece, golden=of_golden, mine=of_mine, turned=(False, False))


def _vectors(golden: Side, mine: Side, packed: Sequence[Piece]) -> Iterator[Piece]:
    """Gains and biases that have one twin among those of their layer on the other side. What varies by no
    more than rounding has none."""
    sides = (golden, {piece.golden for piece in packed}), (mine, {piece.mine for piece in packed})
    of_golden, of_mine = (_by_layer(side, names) for side, names in sides)
    for place, vectors in of_golden.items():
        twins = [
            (name, candidate)
            for name, values in vectors.items()
            for candidate, numbers in of_mine.get(place, {}).items()
            if (values - numbers).norm() <= _ROUNDED * values.norm()
        ]
        counts = Counter(name for pair in twins for name in zip(("golden", "mine"), pair))
        for name, candidate in twins:
            if counts["golden", name] == counts["mine", candidate] == 1:
                yield Piece(name, candidate, 0, place[1], whole=True)


def _by_layer(side: Side, paired: Collection[str]) -> dict[tuple[str, int], dict[str, torch.Tensor]]:
    """The vectors that are not `paired` and vary, by name, for the number of their layer and their length."""
    vectors: dict[tuple[str, int], dict[str, torch.Tensor]] = defaultdict(dict)
    for name in side.saved:
        values = side.rows(name) if not side.width(name) and name not in paired else None
        if values is not None and values.std(correction=0) > _ROUNDED * values.square().mean().sqrt():
            layer = _NUMBER.search(name)
            vectors[layer[0] if layer else "", len(values)][name] = values
    return vectors


def _bias_of(weight: str) -> str:
    return f"{weight.rpartition('.')[0]}.bias"


def ordered(packed: Sequence[Piece]) -> list[str]:
    """Sentences on the pieces whose rows lie in another order."""
    by_order: dict[tuple[object, ...], list[Piece]] = defaultdict(list)
    for piece in packed:
        if piece.is_reordered and not piece.golden.endswith(".bias"):
            by_order[piece.golden.rpartition(".")[0].rpartition(".")[2], piece.words].append(piece)
    return [
        Reason(
            "{} lies in another order of rows in {}: {}", module, listed([p.mine for p in pieces_of]), words
        )
        for (module, words), pieces_of in by_order.items()
    ]


def moved(golden: Side, mine: Side, names: Collection[str]) -> list[Piece]:
    """The weights of these names that are others in mine, and have golden's rows where these lie."""
    changed = [name for name in names if _is_another(golden.saved[name].digest, mine.saved[name].digest)]
    return [piece for name in changed if (piece := _piece(golden, name, mine, name)) is not None]


def tied(golden: Side, mine: Side) -> Iterator[Piece]:
    """The matrices of golden outside of layers that are one of mine, which may be another one's partner."""
    outside = [name for name in mine.saved if not _NUMBER.search(name)]
    for name in golden.saved:
        digest = golden.saved[name].digest if golden.width(name) and not _NUMBER.search(name) else None
        partner = next((m for m in outside if not _is_another(digest, mine.saved[m].digest)), None)
        if partner is not None:
            yield Piece(name, partner, 0, golden.count(name), whole=True)


def _is_another(golden: WeightDigest | None, mine: WeightDigest | None) -> bool:
    try:
        return golden is None or mine is None or golden.differs(mine)
    except ValueError:  # held in different units
        return True


def lost_biases(
    weights: Sequence[tuple[str, str]], golden: Mapping[str, SavedWeight], mine: Collection[str]
) -> list[str]:
    """The biases among those of `golden` that are none of `mine`, beside pairs of weights by their names."""
    biases = [(_bias_of(of_golden), _bias_of(of_mine)) for of_golden, of_mine in weights]
    lost = (of_golden for of_golden, of_mine in biases if of_golden in golden and of_mine not in mine)
    return [name for name in dict.fromkeys(lost) if not _is_zero(golden[name])]


def quantised(mine: Mapping[str, SavedWeight]) -> list[str]:
    """A sentence on the weights of mine that are codes with a scale: their rounding counts as right."""
    codes = [saved.digest for saved in mine.values() if saved.digest is not None and saved.digest.scale]
    kinds = sorted({Reason("{} scaled by {}", digest.dtype, digest.scale) for digest in codes})
    return (
        [Reason("{} of mine are {}: what such codes round is allowed", len(codes), joined(", ", kinds))]
        if codes
        else []
    )


def twins(golden: Mapping[str, SavedWeight], mine: Mapping[str, SavedWeight]) -> list[str]:
    """Weights of mine that are equal, or one, although golden's of the same names are not."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name, saved in mine.items():
        digest = saved.digest
        if digest is not None and digest.min < digest.max and len(digest.shape) > 1:
            groups[digest.crc32, digest.shape, digest.sum].extend((name, *saved.aliases))
    of_golden = {alias: saved.digest for name, saved in golden.items() for alias in (name, *saved.aliases)}
    lines: list[str] = []
    for names in groups.values():
        digests = [of_golden.get(name) for name in names]
        crcs = {digest.crc32 for digest in digests if digest is not None}
        if len(names) > 1 and None not in digests and len(crcs) > 1:
            lines.append(Reason("{} of mine are one weight, golden's are not", joined(" and ", names[:3])))
    return lines


def _is_zero(saved: SavedWeight) -> bool:
    return saved.digest is None or not saved.digest.squares


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:3]) + (Reason(" and {} more", len(names) - 3) if len(names) > 3 else "")


def stretches(rows: Collection[int]) -> str:
    """Row numbers in words: `0-31, 48-63`."""
    ordered_rows = torch.tensor(sorted(rows))
    runs = [(first, first + count - 1) for first, _, count in _runs(ordered_rows)]
    texts = [f"{int(ordered_rows[first])}-{int(ordered_rows[last])}" for first, last in runs]
    return ", ".join(texts[:_RUNS_NAMED]) + (", ..." if len(texts) > _RUNS_NAMED else "")
