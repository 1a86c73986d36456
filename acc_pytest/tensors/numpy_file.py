"""`.npy` files: header parsed from a bounded prefix, payload mapped; nothing is ever unpickled.

Big-endian arrays and the rare Fortran-ordered ones need no care from callers: the former are copied
with their bytes swapped, the latter come as a transposed view of the mapping.
"""

from __future__ import annotations

import functools
import io
import tokenize
import warnings
from typing import Any

import numpy as np

from ..base.imports import torch
from ..errors import FormatError
from .dtypes import by_numpy
from .file_bytes import byte_count, mapped, opened
from .header import Location, TensorHeader

_MAGIC = b"\x93NUMPY"
_PREFIX = len(_MAGIC) + 4
"""Bytes before the text of a header of version 1: the magic ones, the version, the length of the text."""
# numpy refuses longer header texts itself; its length field alone could ask for 4 GiB.
HEADER_ROOM = 16 * 1024
# Errors that parsing a hostile header text (a Python literal) can raise.
_REFUSALS = (
    ValueError,
    TypeError,
    SyntaxError,
    LookupError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)


class NumpyFile:
    """The format object of `.npy` files."""

    name = "numpy"

    def matches(self, head: bytes) -> bool:
        """Whether these first bytes start a `.npy` file."""
        return head.startswith(_MAGIC)

    def header(self, place: Location) -> TensorHeader:
        """Dtype, shape and place of the payload, checked against the file. Raises `FormatError`."""
        return _parsed(place.path)[0]

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """The tensor, mapped unless big-endian. Raises `FormatError` or `CannotDecode`."""
        _, fortran, swapped = _parsed(place.path)
        return as_read(place.path, header, fortran, swapped)


FORMAT = NumpyFile()


def as_read(
    path: str, header: TensorHeader, fortran: bool, swapped: bool, data: bytes | None = None
) -> torch.Tensor:
    """The tensor at the place that its header names, or of the bytes in `data`, with its order mended."""
    dtype = header.dtype.torch_dtype(path)
    stored = header.shape[::-1] if fortran else header.shape
    if data:
        tensor = torch.frombuffer(bytearray(data), dtype=dtype).view(stored)
    else:
        tensor = mapped(path, dtype, stored, header.offset)
    if swapped:
        # Complex numbers swap within each of their parts, which is what byteswap does.
        array = tensor.numpy() if tensor.dtype != torch.bfloat16 else tensor.view(torch.int16).numpy()
        tensor = torch.from_numpy(array.byteswap()).view(dtype)
    return tensor.permute(*reversed(range(tensor.dim()))) if fortran else tensor


def _parsed(path: str) -> tuple[TensorHeader, bool, bool]:
    with opened(path) as (file, size):
        return described(path, file.read(HEADER_ROOM), size)


def described(path: str, head: bytes, size: int) -> tuple[TensorHeader, bool, bool]:
    """The header, whether the order is Fortran's, and whether the bytes are in the other order than ours.

    `head` are the first bytes of the file's `size`, `path` names it in errors. Raises `FormatError`.
    """
    try:
        shape, fortran, dtype, offset = _declared(head)
    except _REFUSALS as error:
        raise FormatError(
            f"{path}: is not a valid .npy file: {str(error)[:200] or type(error).__name__}"
        ) from error
    if dtype.hasobject:
        raise FormatError(f"{path}: holds Python objects, which are never unpickled; save plain arrays")
    element_type, shape = by_numpy(dtype), tuple(map(int, shape))
    nbytes = byte_count(path, shape, 8 * dtype.itemsize)
    if nbytes != size - offset:
        raise FormatError(
            f"{path}: declares {dtype.str} {list(shape)}, which takes {nbytes} bytes, "
            f"but {size - offset} follow its header"
        )
    transposed, swapped = fortran and len(shape) > 1, not dtype.isnative
    plain = not transposed and not swapped
    return TensorHeader(element_type, shape, offset=offset, nbytes=nbytes, plain=plain), transposed, swapped


def stored_dtype(path: str) -> np.dtype[Any] | None:
    """The dtype in the header, objects and text too; `None` for a bad file."""
    try:
        with opened(path) as (file, _):
            return _declared(file.read(HEADER_ROOM))[2]
    except (OSError, FormatError, *_REFUSALS):
        return None


def _declared(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran's order and type, as the header at the start of `head` says, and its length.

    Raises `_REFUSALS`.
    """
    head = head[:HEADER_ROOM]
    if head[len(_MAGIC) : len(_MAGIC) + 2] != b"\x01\x00":
        return _read(head)
    return _read_once(head[: _PREFIX + int.from_bytes(head[_PREFIX - 2 : _PREFIX], "little")])


def _read(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    stream = io.BytesIO(head)
    version = np.lib.format.read_magic(stream)
    if version > (2, 0):
        raise ValueError(f"it has .npy version {version}, which only structured arrays need")
    read = np.lib.format.read_array_header_2_0 if version == (2, 0) else np.lib.format.read_array_header_1_0
    with warnings.catch_warnings():
        # numpy and the parser of Python literals warn about odd headers; odd is not yet wrong.
        warnings.simplefilter("ignore")
        declaration: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(stream)
    return (*declaration, stream.tell())


# Tensors of one dtype and shape have the same header, which numpy reads as a Python literal.
_read_once = functools.lru_cache(maxsize=256)(_read)
