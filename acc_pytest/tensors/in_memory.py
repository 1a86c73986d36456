"""`InMemory`: neighbouring elements of a source in memory, for who reads them by their address."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

from ..lazy_torch import torch
from .dtypes import DType, by_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
