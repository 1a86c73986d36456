"""`Source`: what the kernel reads from: one tensor, block by block, never as a whole."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Protocol

from ..lazy_torch import torch


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
