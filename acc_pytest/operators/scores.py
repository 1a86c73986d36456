"""The core of every attention operator: softmax(scale q k^T + bias) v of one sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .layout import integer_matmul, nz_to_nd
from .registry import OperatorCall, rounded

Change = Callable[[torch.Tensor], torch.Tensor]

_SCORES_AT_ONCE = 1 << 22
"""Scores of one sequence that are computed together: 16 MB of float32, beside which copies are small."""


@dataclass(frozen=True, slots=True)
class EightBit:
    """The scales of int8 query, key and value, for each head `[heads]`.

    Scores are the integer products times `score`. The weights exp(s - max) are quantised by 127 over the
    row's largest, or by `weight`; their products with the values are scaled by `value`, and the row is
    divided by the sum of the weights before quantisation. The whole row counts as one block of keys.
    """

    score: torch.Tensor
    value: torch.Tensor
    weight: torch.Tensor | None = None


def attend(
    call: OperatorCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    scale: float | torch.Tensor = 1.0,
    change: Change | None = None,
    before: torch.Tensor | None = None,
    eight_bit: EightBit | None = None,
) -> torch.Tensor:
    """`[n, heads, size]` over `[m, kv_heads, size]` and `[m, kv_heads, v_size]` -> wide `[n, heads, v_size]`.

    Query head i uses key head i * kv_heads div heads. `before` (`[m]`, or anything that broadcasts
    to `[heads, n, m]`) is added to the scores; `scale` multiplies them (a number, or `[n, 1]`), `change` is
    applied next, `bias` (broadcast to `[heads, n, m]`) is added last. Without keys all is 0.
    """
    n, heads, size = query.shape
    groups = key.shape[1]
    call.need(
        groups > 0 and heads % groups == 0 and key.shape[-1] == size,
        f"query {list(query.shape)} and key {list(key.shape)}: heads do not divide or sizes differ",
    )
    if groups > 1 and heads * n * key.shape[0] > _SCORES_AT_ONCE and eight_bit is None:
        return _by_group(call, query, key, value, bias, scale=scale, change=change, before=before)
    if not key.shape[0]:
        return torch.zeros(n, heads, value.shape[-1], dtype=call.accumulate)
    scores = _scores(call, query, key, eight_bit)
    scores = (scores if before is None else scores + before) * scale
    if change is not None:
        scores = change(scores)
    if bias is not None:
        scores = scores + bias
    v = value.transpose(0, 1)[:, None]
    if eight_bit is not None:
        return _quantised(call, scores, v, eight_bit, groups).transpose(0, 1)
    weights = scores.softmax(-1).reshape(groups, heads // groups, n, key.shape[0])
    return (weights @ call.wide(v)).flatten(0, 1).transpose(0, 1)


def _scores(
    call: OperatorCall, query: torch.Tensor, key: torch.Tensor, eight_bit: EightBit | None
) -> torch.Tensor:
    """Products of queries and keys, `[heads, n, m]`."""
    n, heads, size = query.shape
    groups = key.shape[1]
    q = query.reshape(n, groups, heads // groups, size).permute(1, 2, 0, 3)
    k = key.permute(1, 2, 0)[:, None]
    products = call.wide(q) @ call.wide(k) if eight_bit is None else call.wide(integer_matmul(q, k))
    scores = products.flatten(0, 1)
    return scores if eight_bit is None else scores * call.wide(eight_bit.score).reshape(-1, 1, 1)


def _by_group(
    call: OperatorCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    **how: Any,
) -> torch.Tensor:
    """`attend` for one key head after the other, so that the scores of all are never there together."""
    heads, groups = query.shape[1], key.shape[1]
    size = heads // groups
    result = torch.empty(query.shape[0], heads, value.shape[-1], dtype=call.accumulate)
    for group in range(groups):
        mine, key_head = slice(group * size, (group + 1) * size), slice(group, group + 1)
        by_head = bias is not None and bias.ndim == 3 and bias.shape[0] == heads
        group_bias = bias[mine] if bias is not None and by_head else bias
        result[:, mine] = attend(
            call, query[:, mine], key[:, key_head], value[:, key_head], group_bias, **how
        )
    return result


def _quantised(
    call: OperatorCall, scores: torch.Tensor, value: torch.Tensor, scales: EightBit, groups: int
) -> torch.Tensor:
    """Weights in int8, after one rounding to float16 as the kernel does; `[heads, n, v_size]`."""
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    total = powers.sum(-1, keepdim=True)
    step = 127.0 if scales.weight is None else call.wide(scales.weight).reshape(-1, 1, 1)
    small = rounded((powers * step).half(), torch.int8)
    product = integer_matmul(torch.unflatten(small, 0, (groups, -1)), value).flatten(0, 1)
    factor = call.wide(scales.value).reshape(-1, 1, 1)
    # offline the scale of the weights is part of `value`
    return call.wide(product) * (factor / 127 if scales.weight is None else factor) / total


def heads_of(call: OperatorCall, tensor: torch.Tensor, tokens: int, heads: int, name: str) -> torch.Tensor:
    """`[n, heads * size]`, `[n, heads, size]` or `[b, s, heads, size]` as `[n, heads, size]`."""
    call.need(heads > 0, f"{name} needs a number of heads above 0")
    call.need(
        tensor.numel() % max(tokens * heads, 1) == 0,
        f"{name} {list(tensor.shape)} does not hold {tokens} tokens of {heads} heads",
    )
    if not tokens:
        size = tensor.shape[-1] if tensor.ndim > 2 else tensor.shape[-1] // heads
        return tensor.reshape(0, heads, size)
    return tensor.reshape(tokens, heads, tensor.numel() // (tokens * heads))


def output_shape(query: torch.Tensor, heads: int, size: int) -> tuple[int, ...]:
    """The shape of the output: that of `query` with the value's head size."""
    if query.ndim > 2 and query.shape[-2] == heads:
        return (*query.shape[:-1], size)
    return (*query.shape[:-1], heads * size)


def output_type(query: torch.Tensor, code: int) -> torch.dtype:
    """The dtype of the output: that of `query`; of int8 what `outDataType` says, float16 unless told.

    For floats `outDataType` is printed but not read: rows of ATB's tests hold 0 (float32) beside float16.
    """
    if query.is_floating_point():
        return query.dtype
    return torch.bfloat16 if code == 27 else torch.float16


# Attention masks: what is added to the scores of one sequence, for every `maskType`.


MASK_NAMES = (
    "none", "norm", "alibi", "norm compress", "alibi compress", "alibi compress, square root",
    "alibi compress, left aligned", "sliding window", "sliding window compress", "causal",
)  # fmt: skip
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
            i, j = _places(rows, columns)
            blocks = _hide(call, i // _BLOCK < j // _BLOCK)
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


def _hide(call: OperatorCall, hidden: torch.Tensor) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=call.accumulate).masked_fill(hidden, float("-inf"))


def _by_distance(planes: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """`[heads, seq, 128]`: the tile of block distance d lies at rows 128 d and on."""
    i, j = _places(rows, columns)
    distance = (i // _BLOCK - j // _BLOCK).clamp(min=0)
    return planes[..., (_BLOCK * distance + i % _BLOCK).clamp(max=planes.shape[-2] - 1), j % _BLOCK]
