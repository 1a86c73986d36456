"""Header of a GE record, as data: types, layouts, shapes and sizes of all tensors of one operator.

`ge_fields.py` reads it from the protobuf message `DumpData`, and writes it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .dtypes import DType
from .ge_codes import by_ge_code

VERSION = "2.0"
DYNAMIC = (1 << 64) - 1
"""The offset that the executor of dynamic shapes writes: the address is that of the tensor itself."""

_FLOAT = by_ge_code(1)

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OriginalOp:
    """The operator of the graph, as it was before fusion, that computes an output of a fused one.

    `output_index` is `None` where the compiler did not know it.
    """

    name: str
    output_index: int | None = 0
    dtype: DType = _FLOAT
    layout: str = "nd"


@dataclass(frozen=True, slots=True)
class GeTensor:
    """One input or output in a record, as its header describes it.

    `shape` is that of the bytes, in the layout of the device; `original_shape` the logical one, `None` where
    the record has none. `nbytes` is what the record declares, padding included. `sub_format` counts the
    groups of a convolution's weights. `place` is where in the file its bytes begin, `None` for a tensor
    whose values are not there.
    """

    dtype: DType
    layout: str
    shape: Shape
    original_shape: Shape | None
    nbytes: int
    address: int = 0
    sub_format: int = 0
    address_offset: int = 0
    original_op: OriginalOp | None = None
    dim_range: tuple[tuple[int, int], ...] = ()
    arg_index: int = 0
    place: int | None = None

    @property
    def address_null(self) -> bool:
        """Whether the device gave no memory to the tensor, so that there was nothing to copy."""
        return self.address == 0

    @property
    def dynamic(self) -> bool:
        """Whether the executor of dynamic shapes wrote the record."""
        return self.address_offset == DYNAMIC


@dataclass(frozen=True)
class GeRecord:
    """One record: an operator that ran once. `dump_time` is in microseconds since 1970.

    `buffers` and `spaces` are the lengths of what lies after the outputs: no tensors. `start` and `end` are
    where in the file the declared values begin and end, `size` is what the file has: less when it is cut.
    """

    op_name: str
    dump_time: int
    version: str
    inputs: tuple[GeTensor, ...]
    outputs: tuple[GeTensor, ...]
    attrs: tuple[tuple[str, str], ...] = ()
    buffers: tuple[int, ...] = ()
    spaces: tuple[int, ...] = ()
    dfx_message: str = ""
    start: int = 0
    end: int = 0
    size: int = 0

    @functools.cached_property
    def tensors(self) -> dict[str, GeTensor]:
        """All tensors by member (`inputs/0`, `outputs/1`), inputs first."""
        sides = (("inputs", self.inputs), ("outputs", self.outputs))
        return {f"{kind}/{index}": tensor for kind, side in sides for index, tensor in enumerate(side)}
