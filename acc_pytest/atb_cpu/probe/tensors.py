"""The tensor files of one operation or kernel: names, directories, and what a file holds."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ...errors import DumpError
from ...tensors import atb_bin
from ...tensors.atb_statistics import text_of
from ...tensors.whole_file import make_directory
from .files import check_path
from .selection import Place

Content = Literal["values", "statistics", "description"]
Tensors = Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ProbedTensors:
    """The tensors of one operation or kernel by index, before and after.

    `names` are those that an ATB of 2026 gives inputs and outputs, empty where it gives none.
    """

    before: Tensors
    after: Tensors
    stale: Sequence[torch.Tensor | None]
    outputs: Sequence[torch.Tensor]
    names: tuple[Sequence[str], Sequence[str]] = ((), ())

    def files(self, places: Sequence[Place]) -> list[tuple[str, str, torch.Tensor]]:
        """(directory, file name, tensor) for every tensor to be saved; empty tensors have no file."""
        files: list[tuple[str, str, torch.Tensor]] = []
        for directory, side in places:
            for index, tensor in self._at(directory, side).items():
                if tensor.numel():
                    name = file_name(side, index, self.names[0 if side == "in" else 1])
                    files.append((directory, name, tensor))
        return files

    def _at(self, directory: str, side: str) -> Tensors:
        if side == "in":
            return self.before if directory == "before" else self.after
        if directory == "after":
            return dict(enumerate(self.outputs))
        return {i: memory(old, new) for i, (old, new) in enumerate(zip(self.stale, self.outputs))}


def file_name(side: str, index: int, names: Sequence[str] = ()) -> str:
    """`intensor0.bin`, or `intensor0_x.bin` where the tensor has a name."""
    name = names[index] if index < len(names) else ""
    return f"{side}tensor{index}_{name}.bin" if name else f"{side}tensor{index}.bin"


def memory(old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    """The memory of output `new` before it was written: the bytes of `old`, or zeros.

    A device would show what some other operation left there.
    """
    if old is None or old.numel() * old.element_size() != new.numel() * new.element_size():
        return torch.zeros_like(new)
    return old.detach().contiguous().reshape(-1).view(torch.uint8).view(new.dtype).reshape(new.shape)


class TensorFiles:
    """Writes tensors as values, statistics or descriptions; with `symlink`, each content once."""

    def __init__(self, content: Content, *, symlink: bool = False, any_path: bool = False) -> None:
        self._content = content
        self._first = FirstFiles() if symlink else None
        self._any_path = any_path

    def write(self, path: str, tensor: torch.Tensor) -> None:
        """Write one file. Raises `AccError` naming it where the probe or the system would not write it."""
        if not self._any_path:
            check_path(path)
        if self._first is not None and self._first.link(path, self._key(tensor)):
            return
        if self._content == "statistics":
            atb_bin.write_statistics(path, tensor)
        elif self._content == "description":
            atb_bin.write_description(path, tensor.dtype, tuple(tensor.shape))
        else:
            atb_bin.write(path, tensor)

    def _key(self, tensor: torch.Tensor) -> int:
        header = atb_bin.attributes_of(tensor.dtype, tuple(tensor.shape))
        if self._content == "statistics":
            header |= text_of(tensor)
        if self._content != "values":
            return hash_of(header, None)
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return hash_of(header, flat.numpy().tobytes())


_BASIS = 14695981039346656037
_PRIME = 1099511628211
_MASK = (1 << 64) - 1


def hash_of(attributes: Mapping[str, str], payload: bytes | None) -> int:
    """The probe's key of a file: header attributes (`format`, `dtype`, `dims`, ...) and payload if any."""
    state = _mixed(_BASIS, "".join(name + value for name, value in attributes.items()).encode("ascii"))
    if payload is None:
        return state
    return _mixed(_mixed(state, struct.pack("<QQ", 0, len(payload))), payload)


def _mixed(state: int, data: bytes) -> int:
    padded = data + bytes(-len(data) % 8)
    for word in struct.unpack(f"<{len(padded) // 8}Q", padded):
        state = ((state ^ word) * _PRIME) & _MASK
    return state


class FirstFiles:
    """The first file of every hash in this process."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def link(self, path: str, key: int) -> bool:
        """Make `path` a link to the first file with this key; `False` when it is that file itself.

        The target is the first path as the probe built it, so with a relative output directory the
        link leads nowhere, as the real one does. Raises `DumpError` where the system refuses.
        """
        first = self._paths.setdefault(key, path)
        if first == path:
            return False
        try:
            make_directory(Path(path).parent)
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(first, path)
        except OSError as error:
            raise DumpError(f"{path}: cannot be written: {error.strerror or error}") from error
        return True
