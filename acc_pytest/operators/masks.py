"""Attention masks: what is added to the scores of one sequence, for every `maskType`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .layout import nz_to_nd
from .registry import OperatorCall

MASK_NAMES = (
    "none",
    "norm",
    "alibi",
    "norm compress",
    "alibi compress",
    "alibi compress, square root",
    "alibi compress, left aligned",
    "sliding window",
    "sliding window compress",
    "causal",
)
NONE, NORM, ALIBI, NORM_COMPRESS, ALIBI_COMPRESS, ALIBI_SQRT, ALIBI_LEFT, WINDOW, WINDOW_COMPRESS, CAUSAL = (
    range(10)
)
SLOPED = (ALIBI_COMPRESS, ALIBI_SQRT, ALIBI_LEFT)
HIDDEN = -3e38
"""The addend of a masked score in the kernels that take a mask of zeros and ones."""

_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of one attention call.

    `kind` is a `maskType`. `planes` is the mask operand (`[S, S]`, `[batch or heads, S, S]`, `[batch,
    heads, S, S]`; none for kinds that need none). `slopes` are those of the compressed alibi kinds.
    `triangular` is `isTriuMask`: blocks of 128 keys above the diagonal are not computed at all.
    `indicator` says that entries are 0 and 1 and not numbers to add. `by_position` is whether the plane's
    rows are positions, so that the first query's row is not the plane's first.
    """

    kind: int
    planes: torch.Tensor | None = None
    slopes: torch.Tensor | None = None
    triangular: bool = False
    window: int = 0
    indicator: bool = False
    by_position: bool = False

    def bias(
        self, call: OperatorCall, sequence: int, batch: int, heads: int, rows: int, columns: int
    ) -> torch.Tensor | None:
        """The addend of the scores `[heads, rows, columns]` of one sequence, broadcastable to them.

        Rows are query tokens, columns keys; the last query token is the last key where both are
        counted from the same start (`rows` < `columns` while decoding).
        """
        if self.kind == WINDOW_COMPRESS:
            return _hide(call, _ahead(rows, columns) | (_distance(rows, columns) >= self.window))
        if self.kind == CAUSAL:
            return _hide(call, _ahead(rows, columns))
        if self.kind in SLOPED and self.slopes is not None:
            return self._sloped(call, rows, columns)
        bias = None
        if self.planes is not None:
            bias = self._plane(call, sequence, batch, heads, rows, columns)
        if self.triangular:
            blocks = _hide(call, _ahead_by_block(rows, columns, _BLOCK))
            bias = blocks if bias is None else bias + blocks
        return bias

    def _sloped(self, call: OperatorCall, rows: int, columns: int) -> torch.Tensor:
        slopes = call.wide(self.slopes.flatten()) if self.slopes is not None else torch.zeros(0)
        distance = call.wide(_distance(rows, columns))
        if self.kind == ALIBI_SQRT:
            distance = distance.clamp(min=0).sqrt()
        elif self.kind == ALIBI_LEFT:
            distance = call.wide(torch.arange(columns)).expand(rows, columns)
        return slopes[:, None, None] * distance + _hide(call, _ahead(rows, columns))

    def _plane(
        self, call: OperatorCall, sequence: int, batch: int, heads: int, rows: int, columns: int
    ) -> torch.Tensor:
        planes = self.planes
        assert planes is not None
        if planes.ndim == 4:
            planes = planes[sequence if planes.shape[0] > 1 else 0]
        elif planes.ndim == 3:
            # where both numbers are the same, only alibi differs from head to head
            by_head = self.kind in (ALIBI, *SLOPED) or planes.shape[0] != batch
            by_head = by_head and planes.shape[0] == heads
            planes = planes if by_head else planes[sequence if planes.shape[0] > 1 else 0][None]
        else:
            planes = planes[None]
        if self.kind in SLOPED:
            return call.wide(_by_distance(planes, rows, columns)) + _hide(call, _ahead(rows, columns))
        if planes.shape[-1] < columns and (self.kind == NORM_COMPRESS or self.triangular):
            return self._tiled(call, planes, rows, columns)
        call.need(
            planes.shape[-2] >= min(rows, columns) and planes.shape[-1] >= columns,
            f"mask {list(planes.shape)} is too small for {rows} queries and {columns} keys",
        )
        first = self._first_row(planes, rows, columns)
        return self._added(call, planes[..., first : first + rows, :columns])

    def _first_row(self, planes: torch.Tensor, rows: int, columns: int) -> int:
        """The row of the plane that belongs to the first query: 0, as in ATB's kernels.

        Callers that keep one causal plane for all positions mean the row of the token's position. A
        token that may not see itself gives that away.
        """
        start = columns - rows
        if self.by_position and planes.shape[-2] >= columns:
            return start
        if start <= 0 or planes.shape[-2] < columns:
            return 0
        index = torch.arange(rows)
        top = self._hides(planes[..., index, start + index])
        low = self._hides(planes[..., start + index, start + index])
        return start if bool(top.all()) and not bool(low.any()) else 0

    def _hides(self, entries: torch.Tensor) -> torch.Tensor:
        return entries != 0 if self.indicator else entries < -1000

    def _added(self, call: OperatorCall, plane: torch.Tensor) -> torch.Tensor:
        return call.wide(plane) * HIDDEN if self.indicator else call.wide(plane)

    def _tiled(self, call: OperatorCall, planes: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """A small triangle on every diagonal block: nothing hidden below it, everything above."""
        size = planes.shape[-1]
        i, j = _places(rows, columns)
        tile = self._added(call, planes[..., i % size, j % size])
        tile = tile.masked_fill(i // size != j // size, 0.0)
        return tile + _hide(call, i // size < j // size)


def mask_of(
    call: OperatorCall,
    kind: int,
    planes: torch.Tensor | None,
    *,
    slopes: torch.Tensor | None = None,
    triangular: bool = False,
    window: int = 0,
    scaled: bool = False,
    by_position: bool = False,
) -> Mask:
    """A `Mask`; NZ planes are unpacked, and it is found out whether its entries are indicators.

    `scaled` is whether this kernel multiplies masks by -3e38; the entries decide where they can:
    anything below -1 must be there to be added, and a mask of zeros and ones that hides nothing would
    be no mask.
    """
    if planes is not None and planes.ndim == 4:
        columns, rows, group = planes.shape[-3:]
        if group == 16 and columns * 16 == rows:
            planes = nz_to_nd(planes)
    indicator = False
    if planes is not None and planes.numel() and kind not in (ALIBI, *SLOPED):
        low, high = float(planes.amin()), float(planes.amax())
        if low >= 0:
            binary = bool(((planes == 0) | (planes == 1)).all())
            indicator = high > 0 and (binary or (scaled and planes.ndim < 4))
    return Mask(kind, planes, slopes, triangular, window, indicator, by_position)


def _places(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Position of each query `[rows, 1]` and key `[1, columns]`; the last of both are the same token."""
    return torch.arange(columns - rows, columns)[:, None], torch.arange(columns)[None]


def _distance(rows: int, columns: int) -> torch.Tensor:
    i, j = _places(rows, columns)
    return i - j


def _ahead(rows: int, columns: int) -> torch.Tensor:
    return _distance(rows, columns) < 0


def _ahead_by_block(rows: int, columns: int, size: int) -> torch.Tensor:
    i, j = _places(rows, columns)
    return i // size < j // size


def _hide(call: OperatorCall, hidden: torch.Tensor) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=call.accumulate).masked_fill(hidden, float("-inf"))


def _by_distance(planes: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """`[heads, seq, 128]`: the tile of block distance d lies at rows 128 d and on."""
    i, j = _places(rows, columns)
    distance = (i // _BLOCK - j // _BLOCK).clamp(min=0)
    return planes[..., (_BLOCK * distance + i % _BLOCK).clamp(max=planes.shape[-2] - 1), j % _BLOCK]
