"""The file formats a tensor can lie in, and how a path finds its own."""

from __future__ import annotations

import functools
import os
import re
from importlib import import_module
from typing import Protocol

from ..base.imports import added, torch
from ..errors import FormatError
from .file_bytes import opened
from .header import Location, TensorHeader, until_changed

GROUP = "acc_pytest.tensor_formats"
"""Entry points of formats that other packages add. They are asked first, about files that no suffix tells."""
_HEAD = 64
LOGS, HEAD_OF_LOG = (".txt", ".log"), 1 << 20
"""Suffixes of texts, and the bytes of one that a format may look at: a program prints other things first."""


class TensorFormat(Protocol):
    """One file format. `name` is what people call it."""

    name: str

    def matches(self, head: bytes) -> bool:
        """Whether a file whose first bytes are `head` is of this format."""

    def header(self, place: Location) -> TensorHeader:
        """The header of the tensor, at the cost of one small read. Raises `FormatError`."""

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """The tensor, mapped. Raises `FormatError`, `CannotDecode` or `NoPayload`."""


FORMATS: dict[str, tuple[str, ...]] = {
    "atb_bin": (".bin",),
    "torch_file": (".pth", ".pt"),
    "numpy_file": (".npy",),
    "npz_file": (".npz",),
    "safetensors_file": (".safetensors",),
    "statistics": (".csv",),
    "ge_file": (),
    "info_file": ("_min_max.npy", "_min_max.npz"),
    "debug_tree": (),
    "msprobe_records": (),
    "debug_log": (),
    "eval_log": (),
}
"""Modules, each with its `FORMAT`, and what names of their files end with, in lower case."""

_SAVED_BY_TORCH = re.compile(r"_device_\d+(?:_\d+)?$|(?:^|/)pytorch_model[^/]*$", re.ASCII)
"""The end of a name that `torch_npu.save_npugraph_tensor` gives, whatever suffix it was asked for; and names
of checkpoints of Hugging Face."""
_BY_SUFFIX = {suffix: module for module, suffixes in FORMATS.items() for suffix in suffixes}


def format_of(path: str) -> TensorFormat:
    """The format of a file: by its suffix, or by its first bytes where the suffix says nothing.

    Raises `FormatError`, listing the supported formats, where neither does.
    """
    stem, suffix = os.path.splitext(path.lower())
    # An info file has a suffix and, before it, the end of its name.
    module = _BY_SUFFIX.get(stem[-len("_min_max") :] + suffix) or _BY_SUFFIX.get(suffix)
    if suffix == ".bin" and _SAVED_BY_TORCH.search(stem):
        module = "torch_file"
    return _format(module) if module is not None else _sniffed(path)


@functools.cache
def _format(module: str) -> TensorFormat:
    loaded: TensorFormat = import_module(f".{module}", __package__).FORMAT
    return loaded


# GE records have no suffix, and several tensors each.
@until_changed(maxsize=32768)
def _sniffed(path: str) -> TensorFormat:
    with opened(path) as (file, _):
        head = file.read(HEAD_OF_LOG if path.lower().endswith(LOGS) else _HEAD)
    others: tuple[TensorFormat, ...] = added(GROUP, "name", "matches", "header", "open")
    for tensor_format in (*others, *map(_format, FORMATS)):
        if tensor_format.matches(head):
            return tensor_format
    supported = ", ".join(
        f"{_format(module).name} ({' '.join(suffixes) or 'no suffix'})"
        for module, suffixes in FORMATS.items()
    )
    raise FormatError(f"{path}: is not in a known tensor format; supported: {supported}")
