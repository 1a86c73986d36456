"""`Case`: one execution of one operator, with the files that its inputs and outputs are in.

A case is what a row of an operation CSV or an operator's directory becomes once its files are found.
Nothing is opened yet, and nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..base.vocabulary import DEFAULT_SOC
from ..tensors.dtypes import by_name
from ..tensors.header import TensorHeader
from ..tensors.ref import TensorRef

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor as an operation CSV declares it: the names of its dtype and layout, and its sizes."""

    dtype: str
    shape: tuple[int, ...]
    layout: str = "nd"

    @property
    def numel(self) -> int:
        """Number of elements: the product of `shape`, 1 for a scalar."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Case:
    """One operator to be checked.

    `name` is ATB's class name, `full_name` that with the ids of its path (`LinearOperation_2_0_1`),
    `ids` those ids alone (`2_0_1`), `step` the number of the execution (-1: not known). `inputs` are in
    ATB's order, `None` where there is no file: an optional operand, or a tensor without elements. `outputs`
    are what is judged.

    `written` are the inputs as they are after execution, where the dump has them: the results of
    operators that write in place. `clean` says that `inputs` are from before the execution.
    `declared_inputs` and `declared_outputs` are what the CSV says of them, empty without a CSV. `precision`
    says as what float tensors are read (`acc_precision_mode`), whatever the files hold. `ranks`
    are the cases of all ranks in rank order, this one included, where somebody has looked for them.
    `soc` is the chip; `soc_stated` says that the user or the CSV names it.
    """

    name: str
    full_name: str
    ids: str
    param: Mapping[str, Any]
    inputs: tuple[TensorRef | None, ...]
    outputs: tuple[TensorRef | None, ...]
    rank: int = 0
    step: int = -1
    source: str = ""
    directory: str = ""
    written: tuple[TensorRef | None, ...] = ()
    clean: bool = True
    declared_inputs: tuple[Declared, ...] = ()
    declared_outputs: tuple[Declared, ...] = ()
    soc: str = DEFAULT_SOC
    soc_stated: bool = False
    precision: str = "keep"
    ranks: tuple[Case, ...] = field(default=(), repr=False)

    @property
    def tensors(self) -> list[TensorRef]:
        """The files of its inputs and outputs."""
        return [ref for ref in (*self.inputs, *self.outputs) if ref is not None]


# `acc_precision_mode`: float tensors of a case read as another type, inputs and outputs alike.
#
# An operator that goes wrong in float16 only is told from one that is wrong: with `fp32` it is computed, and
# its output judged, as if the tensors had been float32 all along.


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
