"""The CRC-32 of a tensor that `torch.save` wrote, without reading its values.

A zip archive lists a check sum of each entry, so two files can be told to hold the same bytes by a few
hundred bytes of each. The sum is that of a whole storage; it is given only where the tensor is all of it in
row-major order, so that equal sums of one dtype and shape mean equal tensors.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import zipfile
from typing import Any

import torch

from .mapped import opened

_LARGEST_PICKLE = 1 << 20
_MOST_ENTRIES = 64
_DATA = re.compile(r"[^/]+/data/[^/]+")
_PICKLE = re.compile(r"[^/]+/data\.pkl")
_REBUILT = {"_rebuild_tensor_v2", "_rebuild_tensor_v3"}
_PROGRAM = """
    PROTO GLOBAL BINPUT BINGET MARK BINUNICODE BINPERSID BININT BININT1 BININT2 LONG1 NEWTRUE NEWFALSE
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 REDUCE STOP
"""
_OPCODES = frozenset(_PROGRAM.split())
"""What the pickle of one tensor is made of. Others could ask for memory that the file does not have."""


def stored_crc(path: str) -> tuple[int, int] | None:
    """CRC-32 and bytes of a file's tensor in row-major order, as the directory of its zip archive has them.

    `None` for files without such a number: of another format or older than torch 1.6, damaged, with more than
    one tensor, or with a tensor that shows only a part of its storage or in another order.
    """
    try:
        with opened(path) as (file, _size), zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            data = [entry for entry in entries if _DATA.fullmatch(entry.filename)]
            pickles = [entry for entry in entries if _PICKLE.fullmatch(entry.filename)]
            if len(entries) > _MOST_ENTRIES or len(data) != 1 or len(pickles) != 1:
                return None
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in (*data, *pickles)):
                return None
            if pickles[0].file_size > _LARGEST_PICKLE:
                return None
            whole = _is_whole_storage(archive.read(pickles[0]))
    except Exception:  # noqa: BLE001 - zipfile and pickle raise nearly anything for damaged files
        return None
    # torch can be told to leave the sums out, and then writes 0.
    return (data[0].CRC, data[0].file_size) if whole and data[0].CRC else None


class _Outline(pickle.Unpickler):
    """Reads the pickle of one tensor for its shape and strides. It can call nothing but `_outlined`."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in _REBUILT:
            return _outlined
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _first
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module in ("torch", "torch.storage"):
            return name
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a tensor")

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _first(tensor: Any, *_options: object) -> Any:
    return tensor


def _outlined(
    storage: Any,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    _requires_grad: bool,
    _hooks: object,
    dtype: str = "",
    *_others: object,
) -> bool:
    """Whether a tensor is its storage from the first element to the last, in row-major order."""
    unit = getattr(torch, dtype).itemsize if dtype else 1  # a storage without a dtype counts bytes
    step = 1
    for size, apart in zip(reversed(shape), reversed(stride)):
        if size != 1 and apart != step:
            return False
        step *= size
    return bool(offset == 0 and len(shape) == len(stride) and storage[4] == math.prod(shape) * unit)


def _is_whole_storage(content: bytes) -> bool:
    if any(opcode.name not in _OPCODES for opcode, _, _ in pickletools.genops(content)):
        return False
    return _Outline(io.BytesIO(content)).load() is True
