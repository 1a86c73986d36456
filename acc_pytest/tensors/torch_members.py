"""The tensors of a `.pt` file that holds several, or one with something beside it. Its pickle is not run.

A member is the way to a tensor through dicts, lists and tuples: `value`, `model.norm/1` for an entry of a
list; it is empty where the file is one tensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO

from ..errors import FormatError
from ..lazy_torch import torch
from .file_bytes import byte_count, opened
from .header import Location, TensorHeader, member_of, version_of
from .mapped import mapped
from .torch_entries import ZIP, ArchiveEntry, bytes_of, entries_in, is_foreign, start_of
from .torch_pickle import DeclaredTensor, content, storages_in

_DEEPEST = 16
_MOST = 100_000
"""Values of a file that are looked at on the way to its tensors: lists may hold each other."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file: what the pickle says of it, and where its storage starts.

    `start` is -1 where the storage is not there. `crc32` is that of the whole storage, 0 where the file does
    not say.
    """

    declared: DeclaredTensor
    start: int
    crc32: int

    @property
    def offset(self) -> int:
        """The offset of the first element."""
        return self.start + self.declared.first * self.declared.itemsize

    @property
    def fills_storage(self) -> bool:
        """Whether the tensor is its storage from the first element to the last, in row-major order."""
        declared = self.declared
        nbytes = math.prod(declared.shape) * declared.itemsize
        return declared.row_major and not declared.first and declared.stored == nbytes


@dataclass(frozen=True, slots=True)
class TorchContent:
    """Content of a file: its value, with a `DeclaredTensor` for each tensor, and the tensors by member."""

    value: object
    tensors: Mapping[str, StoredTensor]


def content_of(path: str) -> TorchContent:
    """Content of a file of `torch.save`. Raises `FormatError` for one that is damaged, or older than 1.6."""
    return _content_as_of(path, version_of(path))


def header_of_member(place: Location) -> TensorHeader:
    """Dtype, shape and place of one tensor; of the only one where `place.member` is empty."""
    stored = _stored(place)
    declared = stored.declared
    nbytes = byte_count(place.path, declared.shape, declared.itemsize * 8)
    if stored.start < 0 or _last(declared) * declared.itemsize > declared.stored:
        raise FormatError(f"{place}: lies outside of the file; was it truncated?")
    plain = declared.row_major
    offset = stored.offset if plain else 0
    return TensorHeader(declared.dtype, declared.shape, offset=offset, nbytes=nbytes, plain=plain)


def strided_member(place: Location) -> torch.Tensor:
    """A tensor that `header` has checked, whose elements do not lie one behind the other."""
    stored = _stored(place)
    declared = stored.declared
    elements = declared.stored // declared.itemsize
    storage = mapped(place.path, declared.dtype.torch_dtype(place), (elements,), stored.start)
    return storage.as_strided(declared.shape, declared.strides, declared.first)


def _stored(place: Location) -> StoredTensor:
    return member_of(place, content_of(place.path).tensors, "tensor")


def _last(declared: DeclaredTensor) -> int:
    """The number of elements that the storage must have at least."""
    if 0 in declared.shape:
        return declared.first
    return declared.first + 1 + sum((n - 1) * step for n, step in zip(declared.shape, declared.strides))


def check_storages(path: str) -> None:
    """Raise `FormatError` for an archive with a storage that has more or fewer bytes than its pickle says:
    torch would fill it from whatever follows in the file."""
    with opened(path) as (file, size):
        by_name = _entries(path, file, size)
        try:
            storages = storages_in(bytes_of(file, by_name["data.pkl"]))
        except ValueError as error:
            raise _damaged(path, error) from error
    for key, nbytes in storages.items():
        entry = by_name.get(f"data/{key}")
        if entry is not None and nbytes not in (None, entry.nbytes):
            raise FormatError(
                f"{path}: has {entry.nbytes} bytes of the storage {key!r:.100} and declares {nbytes}; "
                "the file is damaged or cut"
            )


def _damaged(path: str, error: ValueError) -> FormatError:
    return FormatError(f"{path}: its pickle is damaged, or of another writer ({error})")


def _entries(path: str, file: BinaryIO, size: int) -> dict[str, ArchiveEntry]:
    """The entries of an archive by their names without its own. Raises `FormatError` where two have one."""
    entries = entries_in(path, file, size)
    by_name = {entry.name.partition("/")[2]: entry for entry in entries}
    if "data.pkl" not in by_name or len(by_name) != len(entries):
        raise FormatError(f"{path}: is a zip archive, but not one of torch.save")
    return by_name


# Files of one tensor are small; a forward pass is a file of some thousand.
@functools.lru_cache(maxsize=256)
def _content_as_of(path: str, _version: tuple[int, ...]) -> TorchContent:
    with opened(path) as (file, size):
        if file.read(len(ZIP)) != ZIP:
            raise FormatError(
                f"{path}: its tensors have no names: it is older than torch 1.6, or not of torch.save"
            )
        by_name = _entries(path, file, size)
        if is_foreign(file, by_name):
            raise FormatError(f"{path}: was written on a machine with another byte order")
        try:
            value = content(bytes_of(file, by_name["data.pkl"])).value
        except ValueError as error:
            raise _damaged(path, error) from error
        tensors: dict[str, StoredTensor] = {}
        for member, tensor in _tensors(path, value):
            entry = by_name.get(f"data/{tensor.key}")
            start = start_of(file, entry) if entry is not None else size
            is_complete = (
                entry is not None and entry.nbytes == tensor.stored and start + tensor.stored <= size
            )
            crc = entry.crc32 if entry is not None else 0
            tensors.setdefault(member, StoredTensor(tensor, start if is_complete else -1, crc))
    return TorchContent(value, MappingProxyType(tensors))


def _tensors(path: str, value: object) -> Iterator[tuple[str, DeclaredTensor]]:
    """Each tensor below a value with its member, in the order in which it stands there."""
    waiting: list[tuple[str, object, int]] = [("", value, 0)]
    count = 0
    while waiting:
        member, node, depth = waiting.pop()
        count += 1
        if count > _MOST or depth > _DEEPEST:
            raise FormatError(f"{path}: holds more than {_MOST} values, or values {_DEEPEST} deep")
        if isinstance(node, DeclaredTensor):
            yield member, node
        inside: list[tuple[object, object]] = []
        if isinstance(node, dict):
            inside = [(key, entry) for key, entry in node.items() if isinstance(key, (str, int))]
        elif isinstance(node, (list, tuple)):
            inside = list(enumerate(node))
        if len(inside) > _MOST:
            raise FormatError(f"{path}: holds more than {_MOST} values")
        for key, entry in reversed(inside):
            if isinstance(entry, (DeclaredTensor, dict, list, tuple)):
                waiting.append((f"{member}/{key}" if member else str(key), entry, depth + 1))
