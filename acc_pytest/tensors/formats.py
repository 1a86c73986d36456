"""The file formats a tensor can lie in, and how a path finds its own."""

from __future__ import annotations

import functools
import os
import re
from typing import Protocol

from ..base.imports import torch
from ..errors import FormatError
from . import (
    atb_bin,
    debug_log,
    debug_tree,
    ge_file,
    info_file,
    msprobe_records,
    npz_file,
    numpy_file,
    safetensors_file,
    statistics,
    torch_file,
)
from .file_bytes import opened
from .header import Location, TensorHeader, version_of

_HEAD = 64


class TensorFormat(Protocol):
    """One file format. `name` is what people call it, `suffixes` are lower case with their dot."""

    name: str
    suffixes: tuple[str, ...]

    def matches(self, head: bytes) -> bool:
        """Whether a file whose first bytes are `head` is of this format."""

    def header(self, place: Location) -> TensorHeader:
        """The header of the tensor, at the cost of one small read. Raises `FormatError`."""

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """The tensor, mapped. Raises `FormatError`, `CannotDecode` or `NoPayload`."""


FORMATS: tuple[TensorFormat, ...] = (
    atb_bin.FORMAT,
    torch_file.FORMAT,
    numpy_file.FORMAT,
    npz_file.FORMAT,
    safetensors_file.FORMAT,
    statistics.FORMAT,
    ge_file.FORMAT,
    info_file.FORMAT,
    debug_tree.FORMAT,
    msprobe_records.FORMAT,
    debug_log.FORMAT,
)

_SAVED_BY_TORCH = re.compile(r"_device_\d+(?:_\d+)?$", re.ASCII)
"""The end of a name that `torch_npu.save_npugraph_tensor` gives, whatever suffix it was asked for."""
_BY_SUFFIX = {suffix: format_ for format_ in FORMATS for suffix in format_.suffixes}


def format_of(path: str) -> TensorFormat:
    """The format of a file: by its suffix, or by its first bytes where the suffix says nothing.

    Raises `FormatError`, listing the supported formats, where neither does.
    """
    stem, suffix = os.path.splitext(path.lower())
    if suffix == ".bin" and _SAVED_BY_TORCH.search(stem):
        return torch_file.FORMAT
    # An info file has a suffix and, before it, the end of its name.
    tensor_format = _BY_SUFFIX.get(stem[-len(info_file.SUFFIX) :] + suffix) or _BY_SUFFIX.get(suffix)
    if tensor_format is not None:
        return tensor_format
    return _sniffed(path, version_of(path))


# GE records have no suffix, and several tensors each.
@functools.lru_cache(maxsize=32768)
def _sniffed(path: str, _version: tuple[int, ...]) -> TensorFormat:
    with opened(path) as (file, _):
        head = file.read(_HEAD)
    for format_ in FORMATS:
        if format_.matches(head):
            return format_
    supported = ", ".join(
        f"{format_.name} ({' '.join(format_.suffixes) or 'no suffix'})" for format_ in FORMATS
    )
    raise FormatError(f"{path}: is not in a known tensor format; supported: {supported}")
