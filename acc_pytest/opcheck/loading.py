"""The tensors of a case, opened in the form in which the operators take them."""

from __future__ import annotations

import torch

from ..errors import CannotDecode
from ..operators.layout import nz_in_logical_dims
from ..tensors.device_layouts import conversion, is_tiled
from ..tensors.dtypes import by_name
from ..tensors.mapped import mapped
from ..tensors.ref import TensorRef
from .case import Case, Declared

_LOGICAL_NZ = frozenset(
    f"{name}Operation"
    for name in (
        "Linear",
        "LinearParallel",
        "GroupedMatmulWithRouting",
        "MmDeqSwigluQuantMmDeq",
        "GmmDeqSwigluQuantGmmDeq",
    )
)
"""Operators whose NZ weights may be given with the sizes of the matrix instead of those of its tiles."""
_HIFLOAT8 = "hifloat8"


def open_inputs(case: Case) -> list[torch.Tensor | None]:
    """The inputs in ATB's order; a declared one without a file and without elements is empty.

    Raises `AccError` for a file that is no tensor.
    """
    tensors: list[torch.Tensor | None] = []
    for number, ref in enumerate(case.inputs):
        if ref is None:
            declared = _at(case.declared_inputs, number)
            tensors.append(_empty(declared) if declared is not None else None)
            continue
        tensor = open_tensor(ref)
        tiled = ref.header().layout == "fractal_nz"
        if tiled and case.name in _LOGICAL_NZ and 2 <= tensor.ndim < 4:
            tensor = nz_in_logical_dims(tensor)
        tensors.append(tensor)
    return tensors


def open_output(case: Case, number: int, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The dump's output `number`, tiles undone where `shape` is that of the logical tensor.

    `None` where it has no such file. The probe writes none for a tensor without elements.
    """
    ref = _at(case.outputs, number)
    if ref is None:
        declared = _at(case.declared_outputs, number)
        return _empty(declared) if declared is not None and not declared.numel else None
    return in_shape(ref, shape)


def in_shape(ref: TensorRef, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor of `ref`; stored in tiles, it becomes the logical one if that has `shape`."""
    tensor, layout = open_tensor(ref), ref.header().layout
    if is_tiled(layout) and tuple(tensor.shape) != shape:
        undo = conversion(layout, tuple(tensor.shape), shape)
        if undo is not None:
            return undo.to_logical(tensor)
    return tensor


def open_tensor(ref: TensorRef) -> torch.Tensor:
    """The tensor of a file; hifloat8, which torch has not, as its bytes."""
    try:
        return ref.open()
    except CannotDecode:
        header = ref.header()
        if header.dtype.name != _HIFLOAT8:
            raise
        return mapped(ref.path, torch.uint8, header.shape, header.offset)


def _at(items: tuple[Declared | None, ...] | tuple[TensorRef | None, ...], number: int):  # type: ignore[no-untyped-def]
    return items[number] if number < len(items) else None


def _empty(declared: Declared) -> torch.Tensor | None:
    """A tensor without elements as declared; `None` where it has some, or is of no type torch has."""
    if declared.numel:
        return None
    try:
        return torch.empty(declared.shape, dtype=by_name(declared.dtype).torch_dtype())
    except (CannotDecode, RuntimeError):  # torch has no tensor of no elements but 2^63 rows either
        return None
