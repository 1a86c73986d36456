"""`.pth` and `.pt` files: tensors saved with `torch.save`, loaded without running its pickle.

A file that is no single tensor has members (`torch_members`). Only `weights_only=True`, never a fallback to
full pickle. That restriction is sound from torch 2.6 on (CVE-2025-32434) and has a memory bug up to 2.9
(CVE-2026-24747); see `pickle_advice` and SECURITY.md.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import pickle
import pickletools
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO

from ..base.imports import installed_version, torch
from ..errors import FormatError, NoPayload
from .dtypes import by_torch
from .file_bytes import byte_count, mapped, opened, opened_on_disk, watch
from .header import Location, TensorHeader, member_of, until_changed, version_of
from .location import on_disk
from .torch_archive import LARGEST_PICKLE, ZIP, ArchiveEntry, bytes_of, entries_in, is_foreign, start_of
from .torch_pickle import DeclaredTensor, content, storages_in

# Both older ways of torch.save start with the magic number, pickled with protocol 2.
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_MOST_SPREAD = 4096
"""Times that a tensor may show each element of its storage: heads times sequences of a batch."""
_SPREAD_FREELY = 1 << 24
"""Elements that a tensor of any storage may have, such as one number spread to a mask."""
_SAFE_SINCE = (2, 10)
_NEWER_DTYPE = re.compile(r"Unsupported.*(?:_rebuild_tensor_v3|torch[ .](?:uint\d|float\d_))")
"""Pattern of the error of torch for a dtype that it does not have yet."""
# All that torch.load has been seen to raise for damaged files; it documents none.
_REFUSALS = (
    pickle.UnpicklingError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    EOFError,
    struct.error,
    OSError,
    ImportError,
    MemoryError,
)


class TorchFile:
    """The format object of `.pth` and `.pt` files."""

    name = "torch"

    def matches(self, head: bytes) -> bool:
        """Whether these first bytes start a file of `torch.save`, of any age."""
        return head.startswith((ZIP, _LEGACY))

    def header(self, place: Location) -> TensorHeader:
        """Dtype and shape; where the values lie too, but of files that only `torch.load` understands.

        Those are mapped for it, or read whole where they are older than torch 1.6.
        """
        if place.member or is_read_here(place.path):
            return header_of_member(place)
        tensor = self._tensor(place.path)
        nbytes = tensor.numel() * tensor.element_size()
        return TensorHeader(by_torch(tensor.dtype), tuple(tensor.shape), nbytes=nbytes)

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """The tensor on the CPU, detached, in its own dtype and strides.

        Raises `FormatError` for a damaged file, for anything but one dense tensor, and for a pickle
        that wants more than tensors; `NoPayload` for a tensor saved on the meta device.
        """
        if header.offset:
            return mapped(place.path, header.dtype.torch_dtype(place.path), header.shape, header.offset)
        if place.member or is_read_here(place.path):
            # A tensor that `header` has checked, whose elements do not lie one behind the other.
            stored = _stored(place)
            declared = stored.declared
            elements = declared.stored // declared.itemsize
            storage = mapped(place.path, declared.dtype.torch_dtype(place), (elements,), stored.start)
            tensor = storage.as_strided(declared.shape, declared.strides, declared.first)
            _check_spread(place.path, tensor)
            return tensor
        return watch(self._tensor(place.path), on_disk(place.path))

    def _tensor(self, path: str) -> torch.Tensor:
        is_archive = _examined(path)
        if is_archive:
            check_storages(path)
        loaded = _load(path, as_map=is_archive)
        if not isinstance(loaded, torch.Tensor):
            raise FormatError(
                f"{path}: holds {_described(loaded)}, not one tensor; save each tensor to its own file"
            )
        if loaded.layout != torch.strided or loaded.is_quantized:
            raise FormatError(
                f"{path}: holds a sparse or quantized tensor; save tensor.to_dense() or dequantize()"
            )
        if loaded.device.type != "cpu":
            raise NoPayload(f"{path}: was saved on device {loaded.device} and has no values")
        _check_spread(path, loaded)
        return loaded.detach().resolve_conj().resolve_neg()


FORMAT = TorchFile()


def is_read_here(path: str) -> bool:
    """Whether a file is one row-major tensor, or a dict or list with one tensor in it.

    What is beside that tensor is not loaded. Other files are left to `torch.load`, which takes several times
    as long for each.
    """
    try:
        saved = content_of(path)
    except FormatError:
        return False
    if not isinstance(saved.value, DeclaredTensor):
        return len(saved.tensors) == 1 and "" not in saved.tensors
    return saved.tensors[""].is_complete and saved.value.row_major


def _check_spread(path: str, tensor: torch.Tensor) -> None:
    """Raise `FormatError` for a tensor that shows a few elements so many times that they take all day.

    Strides of 0 (`expand`) make any number of elements of one. Masks and positions are saved so; a mask of
    one sequence may stand for each head of each sequence of a batch.
    """
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() > max(_SPREAD_FREELY, _MOST_SPREAD * elements):
        raise FormatError(
            f"{path}: is a view of {tensor.numel()} elements over {elements}; save tensor.contiguous()"
        )


def _check_legacy(path: str) -> None:
    """Raise `FormatError` for a file older than torch 1.6 that asks for more memory than it fills.

    It is five pickles (a mark, a version, the machine, the tensor, the keys of its storages) and the bytes of
    the storages in the order of these keys. torch takes memory for each storage of the tensor before it looks
    whether its bytes are there, and leaves one that has no key as the memory was.
    """
    with opened(path) as (file, size):
        start = io.BytesIO(file.read(LARGEST_PICKLE))
    pickles = []
    limit = max(_SPREAD_FREELY, _MOST_SPREAD * size)
    try:
        with warnings.catch_warnings():
            # The warnings are about odd texts in the pickles.
            warnings.simplefilter("ignore")
            for number in range(5):
                begin = start.tell()
                for _, argument, _ in pickletools.genops(start):
                    if number == 3 and type(argument) is int and abs(argument) > limit:
                        raise FormatError(f"{path}: declares {argument} elements, but has {size} bytes")
                pickles.append(start.getbuffer()[begin : start.tell()].tobytes())
        storages, keys = storages_in(pickles[3]), content(pickles[4]).value
        if not isinstance(keys, list) or sorted(map(repr, keys)) != sorted(map(repr, storages)):
            raise FormatError(
                f"{path}: has the bytes of the storages {keys!r:.100}, but its tensors lie in "
                f"{[*storages]!r:.100}; the file is damaged: save it again"
            )
    except ValueError as error:
        raise FormatError(f"{path}: is a damaged torch file ({error!s:.200}); was it truncated?") from error


def pickle_advice(version: str = "") -> str:
    """A sentence for the report where this torch (or `version`) cannot safely load files of strangers.

    Empty from torch 2.10 on.
    """
    version = version or installed_version("torch") or torch.__version__
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is not None and (int(match[1]), int(match[2])) >= _SAFE_SINCE:
        return ""
    return (
        f"torch {version} loads .pth files unsafely even with weights_only (CVE-2025-32434, CVE-2026-24747): "
        "compare only dumps you trust, or install torch 2.10 or newer"
    )


def _examined(path: str) -> bool:
    """Whether torch can map the file.

    It can map zip archives; older files are checked for what they ask for. Raises `FormatError` for a file
    that lies.
    """
    with opened(path) as (file, _):
        head = file.read(len(_LEGACY))
    if head.startswith(ZIP):
        return True
    if not head.startswith(_LEGACY):
        raise FormatError(f"{path}: was not written by torch.save: it starts with {head!r}")
    _check_legacy(path)
    return False


@contextlib.contextmanager
def _named_for_torch(path: str) -> Iterator[str]:
    """A name of the file that is UTF-8, which is all that torch takes: a path of other bytes gets one by its
    descriptor."""
    path = on_disk(path)
    try:
        path.encode()
    except UnicodeEncodeError:
        with opened_on_disk(path) as (file, _):
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        yield path


def _load(path: str, *, as_map: bool) -> object:
    try:
        with warnings.catch_warnings():
            # torch warns about its own older formats, and a warning may be an error in the user's run.
            warnings.simplefilter("ignore")
            with _named_for_torch(path) as name:
                return torch.load(name, map_location="cpu", weights_only=True, mmap=as_map or None)
    except _REFUSALS as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if _NEWER_DTYPE.search(str(error)):
            advice = (
                f"its dtype is newer than torch {torch.__version__}: compare with a newer torch, "
                "or cast the tensor before it is saved"
            )
        elif "Unsupported" in reason or "weights_only" in reason or "WeightsUnpickler" in reason:
            advice = (
                "it is never unpickled in full; save plain tensors: torch.save(tensor.detach().cpu(), path)"
            )
        else:
            advice = "the file is damaged or cut"
        raise FormatError(f"{path}: torch cannot load it: {reason}; {advice}") from error


def _described(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a dict with keys {', '.join(map(repr, list(value)[:5]))}"[:200]
    return f"a {type(value).__name__}"


# The tensors of a `.pt` file that holds several, or one with something beside it. Its pickle is not run.
#
# A member is the way to a tensor through dicts, lists and tuples: `value`, `model.norm/1` for an entry of a
# list; it is empty where the file is one tensor.


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
    def is_complete(self) -> bool:
        """Whether the storage is there, with all elements in it."""
        declared = self.declared
        last = declared.first
        if 0 not in declared.shape:
            last += 1 + sum((n - 1) * step for n, step in zip(declared.shape, declared.strides))
        return self.start >= 0 and last * declared.itemsize <= declared.stored

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


def header_of_member(place: Location) -> TensorHeader:
    """Dtype, shape and place of one tensor; of the only one where `place.member` is empty."""
    stored = _stored(place)
    declared = stored.declared
    nbytes = byte_count(place.path, declared.shape, declared.itemsize * 8)
    if not stored.is_complete:
        raise FormatError(f"{place}: lies outside of the file; was it truncated?")
    plain = declared.row_major
    offset = stored.offset if plain else 0
    return TensorHeader(declared.dtype, declared.shape, offset=offset, nbytes=nbytes, plain=plain)


def _stored(place: Location) -> StoredTensor:
    return _stored_as_of(place.path, place.member, version_of(place.path))


# Headers are read of all files of a dump, and then their check sums: more files than contents are remembered.
@functools.lru_cache(maxsize=65536)
def _stored_as_of(path: str, member: str, _version: tuple[int, ...]) -> StoredTensor:
    return member_of(Location(path, member), content_of(path).tensors, "tensor")


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
@until_changed(maxsize=256)
def content_of(path: str) -> TorchContent:
    """Content of a file of `torch.save`. Raises `FormatError` for one that is damaged, or older than 1.6."""
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


# The CRC-32 of a tensor that `torch.save` wrote, without reading its values.
#
# A zip archive lists a check sum of each entry, so two files can be told to hold the same bytes by a few
# hundred bytes of each. The sum is that of a whole storage; it is given only where the tensor is all of it in
# row-major order, so that equal sums of one dtype and shape mean equal tensors.


def stored_crc(path: str, member: str = "") -> tuple[int, int] | None:
    """CRC-32 and bytes of a file's tensor in row-major order, as the directory of its zip archive has them.

    `None` for files without such a number: of another format or older than torch 1.6, damaged, with more than
    one tensor where no member is named, or with a tensor that shows only a part of its storage or in another
    order.
    """
    if member and not path.lower().endswith((".pt", ".pth")):
        return None
    try:
        if not member and not isinstance(content_of(path).value, DeclaredTensor):
            return None
        stored = _stored(Location(path, member))
    except (FormatError, OSError):
        return None
    # torch can be told to leave the sums out, and then writes 0.
    if not stored.fills_storage or not stored.crc32:
        return None
    return stored.crc32, stored.declared.stored
