"""Weights of golden inside those of mine: packed, transposed, sharded, in other rows, or lost.

A port packs q, k and v, gate and up, or all experts into one weight. The rows of golden's weights are packed
in it by a few numbers of each (`tensors.weight_rows`), whatever the two call them. Numbers of columns do the
same for what is transposed, or has a share of the columns. What has no rows in common with golden's is told
by its place: a piece that is wrong lies in the gap that the others leave. Loaders mix up rows and forget
biases more often than kernels compute wrongly, so this is looked at before any activation.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.imports import torch
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
_RUNS_NAMED = 4
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Piece:
    """The weight `golden` as the rows from `start` on of `mine`. `order` says in which runs its rows lie
    there (first row of golden, first row in the piece, number of rows), empty where in golden's order. It is
    `odd` where no more than half of the layers have it, `turned` (golden, mine) where rows are columns,
    and `guessed` by the gap that others leave."""

    golden: str
    mine: str
    start: int
    rows: int
    order: tuple[tuple[int, int, int], ...] = ()
    odd: bool = False
    whole: bool = False
    turned: tuple[bool, bool] = (False, False)
    guessed: bool = False

    @property
    def span(self) -> RowSpan | None:
        """The rows that are golden's, in golden's order if other layers have that order too; `None` for a
        weight that is the `whole` of it under another name."""
        order = () if self.odd else self.order
        return None if self.whole and not order else RowSpan(self.start, self.rows, order)

    @property
    def spans(self) -> tuple[RowSpan | None, RowSpan | None]:
        """The rows of `golden` and of `mine` that are one; `None` for all of them."""
        if not any(self.turned):
            return None, self.span
        span = self.span or RowSpan(self.start, self.rows)
        return RowSpan(0, self.rows, turned=self.turned[0]), replace(span, turned=self.turned[1])

    @property
    def words(self) -> str:
        """The order of the rows, in words: `rows 0-63 lie at 64-127`."""
        moved = [run for run in self.order if run[0] != run[1]]
        texts = [f"rows {g}-{g + n - 1} lie at {m}-{m + n - 1}" for g, m, n in moved[:_RUNS_NAMED]]
        return ", ".join(texts) + (", ..." if len(moved) > _RUNS_NAMED else "")


@dataclass(frozen=True, slots=True)
class Side:
    """The weights of a side without a partner, by listed name, and the folder of their process. Matrices that
    are `turned` have the numbers of their columns as rows. A weight lies in another one with this `share` of
    its rows at least: the others may be wrong."""

    saved: Mapping[str, SavedWeight]
    home: Path
    turned: bool = False
    share: float = 0.5

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
    packed = [piece for piece in packed if not (piece.guessed and piece.golden in located)]
    orders: dict[str, Counter[object]] = defaultdict(Counter)
    for piece in packed:
        orders[_NUMBER.sub("*", piece.golden)][piece.order] += 1
    packed = [
        replace(piece, odd=bool(piece.order) and 1 < of_kind.total() >= 2 * of_kind[piece.order])
        for piece in packed
        for of_kind in (orders[_NUMBER.sub("*", piece.golden)],)
    ]
    packed += list(_biases(packed, golden, mine))
    return [*packed, *(() if golden.turned or mine.turned else _vectors(golden, mine, packed))]


def _packed(golden: Side, mine: Side, name: str) -> Iterator[Piece]:
    if name in golden.saved and golden.width(name) == mine.width(name):
        share = _piece(golden, name, mine, name)  # of one rank
        if share is not None:
            yield share
            return
    layer = _NUMBER.search(name)
    names = [
        g
        for g in golden.saved
        if golden.width(g) == mine.width(name)
        and (layer is None or (m := _NUMBER.search(g)) is None or m[0] == layer[0])
    ]
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


def _piece(golden: Side, name: str, mine: Side, pack: str) -> Piece | None:
    """The rows of a weight of golden in one of mine; `None` where they are not there."""
    if golden.count(name) > mine.count(pack):
        return None
    rows, target = golden.rows(name), mine.rows(pack)
    digests = golden.saved[name].digest, mine.saved[pack].digest
    coarse = any(d is not None and d.scale and by_name(d.dtype).bits < 8 for d in digests)
    if (
        rows is None
        or target is None
        or (place := _located(rows, target, _NEAR * (1 + coarse), golden.share)) is None
    ):
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
    if len(located) < share * len(rows) or len(located.unique()) < 0.9 * len(located):
        return None  # not there, or no order of rows
    if len(located) < len(rows):
        nearest = _nearest(rows, target, math.inf)
        if len(nearest.unique()) == len(rows) == int(nearest.max() - nearest.min()) + 1:
            places = located = nearest
    offsets = Counter((places - torch.arange(len(rows)))[places >= 0].tolist())
    offset, count = offsets.most_common(1)[0]
    if count >= 0.9 * len(located) and 0 <= offset <= len(target) - len(rows):
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
    return bool((off <= near * rows.norm(dim=1)).float().mean() >= 0.9)


def _nearest(rows: torch.Tensor, target: torch.Tensor, near: float) -> torch.Tensor:
    """The nearest row of `target` for each; -1 where none is near."""
    pieces = []
    for block in rows.split(max(1, (1 << 24) // max(len(target), 1))):
        distances, places = torch.cdist(block, target).min(1)
        pieces.append(torch.where(distances <= near * block.norm(dim=1), places, -1))
    return torch.cat(pieces)


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
            if not any(piece.turned) or (digest is not None and digest.shape == (piece.rows,)):
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
        if piece.order and not piece.golden.endswith(".bias"):
            by_order[piece.golden.rpartition(".")[0].rpartition(".")[2], piece.words].append(piece)
    return [
        f"{module} lies in another order of rows in {listed([p.mine for p in pieces_of])}: {words}"
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
    kinds = sorted({f"{digest.dtype} scaled by {digest.scale}" for digest in codes})
    return [f"{len(codes)} of mine are {', '.join(kinds)}: what such codes round is allowed"] if codes else []


def twins(golden: Mapping[str, SavedWeight], mine: Mapping[str, SavedWeight]) -> list[str]:
    """Weights of mine that are equal, or one, although golden's of the same names are not."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name, saved in mine.items():
        digest = saved.digest
        if digest is not None and digest.min < digest.max and len(digest.shape) > 1:
            groups[digest.crc32, digest.shape, digest.sum].extend((name, *saved.aliases))
    of_golden = {alias: saved.digest for name, saved in golden.items() for alias in (name, *saved.aliases)}
    lines = []
    for names in groups.values():
        digests = [of_golden.get(name) for name in names]
        crcs = {digest.crc32 for digest in digests if digest is not None}
        if len(names) > 1 and None not in digests and len(crcs) > 1:
            lines.append(f"{' and '.join(names[:3])} of mine are one weight, golden's are not")
    return lines


def _is_zero(saved: SavedWeight) -> bool:
    return saved.digest is None or not saved.digest.squares


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
