"""Views of tensors on disk that the metrics read block by block: columns, rows, sums of rank shards.

Each is a `Source`: a shape, a dtype and `read(start, stop)` over the row-major flattening. None copies
more than the block that is asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ..lazy_torch import torch
from .source import Source

NEARLY = 0.99
"""The share of the least number of a type from which on a value is a mask's: a score was added to it."""


class Columns:
    """Matrices of equal height side by side: `[rows, w0 + w1 + ...]`.

    `tensors` are 2-D tensors `[rows, w]` of one dtype, possibly strided views of mapped files.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._parts = list(tensors)
        self._width = sum(tensor.shape[1] for tensor in tensors)
        self.shape: tuple[int, ...] = (tensors[0].shape[0], self._width)
        self.dtype = tensors[0].dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)` of the flattening; whole rows are gathered, then trimmed."""
        first, last = start // self._width, -(-stop // self._width)
        rows = torch.cat([tensor[first:last] for tensor in self._parts], dim=1).reshape(-1)
        return rows[start - first * self._width : stop - first * self._width]


class ExactSum:
    """Element by element sum that nobody rounds: `read` gives it in float32, or in float64.

    `dtype` is that of the parts, which the rounding of each of them is to be judged by.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._parts = list(sources)
        self.shape: tuple[int, ...] = tuple(sources[0].shape)
        self.dtype = sources[0].dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The sum over parts of elements `[start, stop)`."""
        wide = torch.promote_types(self.dtype, torch.float32)
        total = self._parts[0].read(start, stop).to(wide)
        for source in self._parts[1:]:
            total = total + source.read(start, stop).to(wide)
        return total


class Rows:
    """Tensors one below the other: `[n0 + n1 + ..., width]`, each given as a `Source`."""

    def __init__(self, sources: Sequence[Source], width: int) -> None:
        self._parts = list(sources)
        self._sizes = [math.prod(source.shape) for source in sources]
        self.shape: tuple[int, ...] = (sum(self._sizes) // width, width) if width else (0, 0)
        self.dtype = sources[0].dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)`, taken from as many parts as the range touches."""
        pieces, offset = [], 0
        for source, size in zip(self._parts, self._sizes):
            low, high = max(start - offset, 0), min(stop - offset, size)
            if low < high:
                pieces.append(source.read(low, high))
            offset += size
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


class Sum(ExactSum):
    """Element by element sum of partial results, added in float32 and rounded once to their dtype.

    That is what the collective would have left behind; float64 parts are added in float64.
    """

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The sum over parts of elements `[start, stop)`."""
        return super().read(start, stop).to(self.dtype)


class PlusRow:
    """A tensor with one row added to each of its rows: in float32, rounded once to its dtype."""

    def __init__(self, source: Source, row: torch.Tensor) -> None:
        self._source = source
        self._row = row.reshape(-1)
        self.shape: tuple[int, ...] = tuple(source.shape)
        self.dtype = source.dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)` of the sum."""
        width = self._row.numel()
        columns = torch.arange(start, stop) % width if width else torch.arange(0)
        wide = torch.promote_types(self.dtype, torch.float32)
        total = self._source.read(start, stop).to(wide) + self._row[columns].to(wide)
        return total.to(self.dtype)


class Floored:
    """A source whose values below `floor` are `floor`."""

    def __init__(self, source: Source, floor: float) -> None:
        self._source = source
        self._floor = floor
        self.shape: tuple[int, ...] = tuple(source.shape)
        self.dtype = source.dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)`, none of them below `least`."""
        return self._source.read(start, stop).clamp(min=self._floor)


class Hidden:
    """A source whose values at the least number of its type, as a mask puts them, are -Inf."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.shape: tuple[int, ...] = tuple(source.shape)
        self.dtype = source.dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)`, none of them finite and within 1 % of the least number."""
        block = self._source.read(start, stop)
        return block.masked_fill(block <= NEARLY * torch.finfo(block.dtype).min, -math.inf)


class Exceeding:
    """Truth values: whether each value of a source is more than `bound`."""

    def __init__(self, source: Source, bound: float) -> None:
        self._source = source
        self._bound = bound
        self.dtype = torch.bool
        self.shape: tuple[int, ...] = tuple(source.shape)

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)`."""
        return self._source.read(start, stop) > self._bound


class Reshaped:
    """A source under another shape of the same row-major order."""

    def __init__(self, source: Source, shape: tuple[int, ...]) -> None:
        self._source = source
        self.shape = shape
        self.dtype = source.dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The elements of the source: only the shape differs."""
        return self._source.read(start, stop)


class PickedRows:
    """Some rows of a source, in any order: the leading dimensions are one, of those that were picked."""

    def __init__(self, source: Source, rows: torch.Tensor, row_shape: tuple[int, ...]) -> None:
        """`rows` are their numbers in the source, each of `row_shape`."""
        self._source = source
        self._rows = rows
        self._size = math.prod(row_shape)
        self.shape: tuple[int, ...] = (len(rows), *row_shape)
        self.dtype = source.dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)`; neighbours in the source are read together."""
        if start >= stop:
            return self._source.read(0, 0)
        first, last = start // self._size, -(-stop // self._size)
        rows = self._rows[first:last]
        starts = [0, *((rows.diff() != 1).nonzero().flatten() + 1).tolist(), len(rows)]
        pieces = []
        for low, high in itertools.pairwise(starts):
            begin = int(rows[low]) * self._size
            pieces.append(self._source.read(begin, begin + (high - low) * self._size))
        gathered = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return gathered[start - first * self._size : stop - first * self._size]
