"""`.pth` and `.pt` files: tensors saved with `torch.save`, loaded without running its pickle.

A file that is no single tensor has members (`torch_members`). Only `weights_only=True`, never a fallback to
full pickle. That restriction is sound from torch 2.6 on (CVE-2025-32434) and has a memory bug up to 2.9
(CVE-2026-24747); see `pickle_advice` and SECURITY.md.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
import re
import struct
import warnings
from collections.abc import Iterator

from ..errors import FormatError, NoPayload
from ..installed import installed_version
from ..lazy_torch import torch
from .dtypes import by_torch
from .file_bytes import opened, opened_on_disk
from .header import Location, TensorHeader
from .mapped import mapped, watch
from .plain_tensor import PlainTensor, plain_tensor_in
from .stores.place import on_disk
from .torch_entries import LARGEST_PICKLE, ZIP, entries_in
from .torch_members import check_storages, content_of, header_of_member, strided_member
from .torch_pickle import content, storages_in

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
    suffixes: tuple[str, ...] = (".pth", ".pt")

    def matches(self, head: bytes) -> bool:
        """Whether these first bytes start a file of `torch.save`, of any age."""
        return head.startswith((ZIP, _LEGACY))

    def header(self, place: Location) -> TensorHeader:
        """Dtype and shape; where the values lie too, but of files that only `torch.load` understands.

        Those are mapped for it, or read whole where they are older than torch 1.6.
        """
        if place.member:
            return header_of_member(place)
        plain, is_archive = _examined(place.path)
        if plain is not None:
            return TensorHeader(
                plain.dtype, plain.shape, offset=plain.offset, nbytes=plain.nbytes, plain=True
            )
        if is_archive and _is_archive_of_tensor(place.path):
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
        if place.member or _is_archive_of_tensor(place.path):
            tensor = strided_member(place)
            _check_spread(place.path, tensor)
            return tensor
        return watch(self._tensor(place.path), on_disk(place.path))

    def _tensor(self, path: str) -> torch.Tensor:
        is_archive = _examined(path)[1]
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


def _is_archive_of_tensor(path: str) -> bool:
    """Whether a file is a dict or list with one tensor in it: what is beside that tensor is not loaded."""
    try:
        members = content_of(path).tensors
    except FormatError:
        return False
    return len(members) == 1 and "" not in members


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


def _examined(path: str) -> tuple[PlainTensor | None, bool]:
    """The location of the values, if they are those of one plain tensor, and whether torch can map the file.

    It can map zip archives; older files are checked for what they ask for. Raises `FormatError` for a file
    that lies.
    """
    with opened(path) as (file, size):
        head = file.read(len(_LEGACY))
        if not head.startswith(ZIP):
            if not head.startswith(_LEGACY):
                raise FormatError(f"{path}: was not written by torch.save: it starts with {head!r}")
            _check_legacy(path)
            return None, False
        entries = entries_in(path, file, size)
        return plain_tensor_in(file, size, entries), True


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
