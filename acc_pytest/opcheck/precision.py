"""`acc_precision_mode`: float tensors of a case read as another type, inputs and outputs alike.

An operator that goes wrong in float16 only is told from one that is wrong: with `fp32` it is computed, and
its output judged, as if the tensors had been float32 all along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..tensors.dtypes import by_name
from ..tensors.header import TensorHeader
from ..tensors.ref import TensorRef
from .case import Case

if TYPE_CHECKING:
    import torch

KEEP = "keep"
_TYPES = {"fp16": "float16", "fp32": "float32"}
_CAST = ("float16", "bfloat16", "float32")
"""The dtypes that are cast: float64 and eight bits stay as they are."""


@dataclass(frozen=True, slots=True)
class CastRef(TensorRef):
    """A tensor on disk that is read as `dtype` (a name) where it is one of the three float types."""

    dtype: str = "float32"

    def header(self) -> TensorHeader:
        """The header of the file with the dtype of the values. Raises `FormatError`."""
        header = self._plain().header()
        return replace(header, dtype=by_name(self.dtype)) if header.dtype.name in _CAST else header

    def open(self) -> torch.Tensor:
        """The values cast, in memory. Raises as `TensorRef.open` does."""
        tensor = self._plain().open()
        name = str(tensor.dtype).removeprefix("torch.")
        return tensor.to(by_name(self.dtype).torch_dtype()) if name in _CAST else tensor

    def _plain(self) -> TensorRef:
        """The file as it is."""
        return TensorRef(self.path, self.member, self.root)


def in_precision(case: Case) -> Case:
    """`case` with its tensors read as its `precision` says."""
    if case.precision == KEEP:
        return case
    dtype = _TYPES[case.precision]
    return replace(
        case,
        inputs=_cast(case.inputs, dtype),
        outputs=_cast(case.outputs, dtype),
        written=_cast(case.written, dtype),
    )


def _cast(refs: tuple[TensorRef | None, ...], dtype: str) -> tuple[TensorRef | None, ...]:
    return tuple(
        None if ref is None else CastRef(ref.path, ref.member, ref.root, dtype=dtype) for ref in refs
    )
