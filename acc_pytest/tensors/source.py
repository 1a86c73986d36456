"""`Source`: what the kernel reads from: one tensor, block by block, never as a whole."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..base.imports import torch
from .dtypes import DType, by_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Source(Protocol):
    """A tensor whose elements are read in the order of its row-major flattening.

    `read(start, stop)` gives the elements `[start, stop)` of that order as a 1-D tensor in the
    source's own dtype, as a view where possible. The caller does not write to it.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def read(self, start: int, stop: int) -> torch.Tensor: ...


class TensorSource:
    """A `Source` over one dense tensor: any strides, any device, memory-mapped or not.

    A contiguous tensor is read as views. Otherwise the rows that a block touches are copied, and
    nothing else, so that a transposed 10 GB tensor costs a few blocks of memory.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self._numel = math.prod(self.shape)

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)` as a contiguous 1-D CPU tensor.

        Raises `IndexError` when the range does not lie within the tensor.
        """
        if not 0 <= start <= stop <= self._numel:
            raise IndexError(f"elements [{start}, {stop}) of a tensor of shape {list(self.shape)}")
        if self._flat is not None:
            return self._flat if stop - start == self._numel else self._flat[start:stop]
        block = _read(self._tensor, start, stop)
        return block.resolve_conj().resolve_neg().cpu()

    @functools.cached_property
    def _flat(self) -> torch.Tensor | None:
        """A 1-D view, where the elements lie in memory just as they are read."""
        tensor = self._tensor
        lazy = tensor.is_conj() or tensor.is_neg()
        return tensor.reshape(-1) if tensor.is_cpu and tensor.is_contiguous() and not lazy else None

    def blocks(self, size: int) -> Iterator[torch.Tensor]:
        """All elements in contiguous pieces of `size`, the last of what is left."""
        for start in range(0, self._numel, size):
            yield self.read(start, min(start + size, self._numel)).contiguous()


def _read(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor.reshape(-1)[start:stop]
    if start == stop:
        return tensor.new_empty(0)
    row = tensor[0].numel()
    first, last = start // row, (stop - 1) // row
    if first == last:
        return _read(tensor[first], start - first * row, stop - first * row)
    if (last - first + 1) * row <= 2 * (stop - start):
        rows = tensor[first : last + 1].reshape(-1)
        return rows[start - first * row : stop - first * row]
    pieces = (
        _read(tensor[first], start - first * row, row),
        tensor[first + 1 : last].reshape(-1),
        _read(tensor[last], 0, stop - last * row),
    )
    return torch.cat(pieces)


# `InMemory`: neighbouring elements of a source in memory, for who reads them by their address.


class InMemory(NamedTuple):
    """`elements` of one type from `address` on, one behind the other, as long as `holder` is there.

    That is a tensor of them, or a buffer in which they begin at byte `offset`.
    """

    dtype: DType
    elements: int
    address: int
    holder: bytearray | torch.Tensor
    offset: int = 0

    @classmethod
    def of_buffer(cls, dtype: DType, elements: int, buffer: bytearray, offset: int = 0) -> InMemory:
        """Elements that begin at byte `offset` of a buffer that is not empty."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        return cls(dtype, elements, address + offset, buffer, offset)

    @classmethod
    def of_tensor(cls, tensor: torch.Tensor) -> InMemory:
        """The elements of a 1-D tensor. `address` is 0 where they do not lie in memory as they are read."""
        lies_so = tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj())
        return cls(by_torch(tensor.dtype), tensor.numel(), tensor.data_ptr() if lies_so else 0, tensor)

    def array(self) -> NDArray[Any]:
        """The elements of a buffer as a 1-D array, not copied; of types that NumPy calls by the same name."""
        import numpy as np

        return np.frombuffer(self.holder, self.dtype.name, self.elements, self.offset)  # type: ignore[arg-type]

    def tensor(self) -> torch.Tensor:
        """The elements as a 1-D tensor, not copied."""
        if not isinstance(self.holder, bytearray):
            return self.holder
        dtype = self.dtype.torch_dtype()
        return torch.frombuffer(self.holder, dtype=dtype, count=self.elements, offset=self.offset)


# Views of tensors on disk that the metrics read block by block: columns, rows, sums of rank shards.
#
# Each is a `Source`: a shape, a dtype and `read(start, stop)` over the row-major flattening. None copies
# more than the block that is asked for.


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


class Changed:
    """A source with each element changed by itself, or under another shape of the same row-major order."""

    def __init__(
        self,
        source: Source,
        change: Callable[[torch.Tensor], torch.Tensor] = lambda block: block,
        *,
        shape: tuple[int, ...] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`dtype` is that of what `change` gives, where it is another one."""
        self._source = source
        self._change = change
        self.shape: tuple[int, ...] = tuple(source.shape) if shape is None else shape
        self.dtype = dtype or source.dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)`, changed."""
        return self._change(self._source.read(start, stop))


class Hidden(Changed):
    """A source whose values at the least number of its type (within 1 %), as a mask puts them, are -Inf."""

    def __init__(self, source: Source) -> None:
        least = NEARLY * torch.finfo(source.dtype).min
        super().__init__(source, lambda block: block.masked_fill(block <= least, -math.inf))


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


class PickedColumns:
    """Some places of the last dimension of a source, in any order."""

    def __init__(self, source: Source, columns: torch.Tensor) -> None:
        self._source = source
        self._columns = columns
        self.shape: tuple[int, ...] = (*source.shape[:-1], len(columns))
        self.dtype = source.dtype

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)`, of whole rows of the source."""
        count, width = len(self._columns), self._source.shape[-1]
        if start >= stop:
            return self._source.read(0, 0)
        first, last = start // count, -(-stop // count)
        rows = self._source.read(first * width, last * width).reshape(-1, width)
        return rows[:, self._columns].reshape(-1)[start - first * count : stop - first * count]
