"""Files of a dump: what may be written where, texts that are replaced, and texts that grow line by line."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ....errors import DumpError
from ....tensors import atb_bin
from ....tensors.atb_bin import text_of
from ....tensors.dtypes import by_torch
from ....tensors.whole_file import make_directory, whole_file
from .settings import Place

_LONGEST_PATH = 4096
_LONGEST_NAME = 255
_MAX_SLASHES = 32
_PATH = re.compile(r"[a-zA-Z0-9_./-]+")
_NAME = re.compile(r"""[_A-Za-z0-9"'><=\[\])(,}{: /.~-]+""")


def check_path(path: str) -> None:
    """Raises `DumpError` for a path to which the real probe writes nothing, without a word."""
    absolute = os.path.abspath(path)
    reason = ""
    if not _PATH.fullmatch(absolute):
        reason = "holds other characters than letters, digits and _ . / -"
    elif len(absolute) > _LONGEST_PATH or any(len(p) > _LONGEST_NAME for p in absolute.split("/")):
        reason = f"is longer than {_LONGEST_PATH} characters, or a part of it than {_LONGEST_NAME}"
    elif absolute.count("/") > _MAX_SLASHES:
        reason = f"has more than {_MAX_SLASHES} slashes"
    if reason:
        raise DumpError(f"{absolute}: the probe refuses this path because it {reason}; dump elsewhere")


def check_name(name: str) -> None:
    """Raises `DumpError` for a name of an operation or model under which the real probe writes no JSON."""
    if len(name) > _LONGEST_PATH or not _NAME.fullmatch(name):
        raise DumpError(
            f"{name[:80]!r}: the probe writes no topology under this name; use letters and digits"
        )


def replace_text(path: str, text: str) -> None:
    """Write a whole file. Raises `AccError` naming it where the system refuses."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def append_text(path: str, text: str) -> None:
    """Add whole lines to a file, in one write. Raises `AccError` naming it where the system refuses.

    The file appears with its first lines. A write that the system cuts short is taken back, so that no half
    line stays.
    """
    if not os.path.exists(path):
        replace_text(path, text)
        return
    data = text.encode("utf-8")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            count = os.write(descriptor, data)
            if count != len(data):
                os.ftruncate(descriptor, size)
                raise OSError(f"{count} of {len(data)} bytes fit")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DumpError(f"{path}: cannot be written: {error.strerror or error}") from error


# The tensor files of one operation or kernel: names, directories, and what a file holds.


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

    def _key(self, tensor: torch.Tensor) -> bytes:
        """A key of what the file holds: header attributes, and values if any."""
        header = atb_bin.attributes_of(tensor.dtype, tuple(tensor.shape))
        if self._content == "statistics":
            header |= text_of(tensor)
        key = hashlib.blake2b(repr(header).encode())
        if self._content == "values":
            key.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return key.digest()


class FirstFiles:
    """The first file of every content in this process."""

    def __init__(self) -> None:
        self._paths: dict[bytes, str] = {}

    def link(self, path: str, key: bytes) -> bool:
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


# The operation and kernel CSV: one row per execution of a leaf or kernel, with paths that opcheck reads.
#
# Rows are appended; a file's first row is its header. The paths are computed, not looked up: for outputs
# they name the directory of the inputs, and for kernels that of their operation, as the probe has it.


COLUMNS = (
    *("CaseNum", "CaseName", "OpName", "OpParam", "InNum", "InDType", "InFormat", "InShape"),
    *("OutNum", "OutDType", "OutFormat", "OutShape", "DataGenType", "DataGenRange"),
    *("InTensorFile", "OutTensorFile", "TestType", "TestLevel", "FromModel", "SocVersion", "ExpectedError"),
)
_CHECKED = 12
"""Cells that are looked at before a row is written."""
_LAST_NUMBER = 10000
_NUMBERS = re.compile(r"[0-9,-;]*")
"""The probe's own pattern; the range from comma to semicolon holds the point, minus and colon too."""
Slots = Sequence["torch.Tensor | None"]
"""Tensors by index; `None` is a null tensor."""


def compact(param: Any) -> str:
    """A parameter JSON as ATB prints it, `{}` where there is none."""
    return json.dumps(param, separators=(",", ":"), ensure_ascii=False) if param else "{}"


def is_safe(cell: str) -> bool:
    """Whether no spreadsheet would take the cell for a formula; the probe drops rows with others."""
    if cell.startswith("-"):
        return _NUMBERS.fullmatch(cell) is not None
    return not cell.startswith(("+", "=", "@", "%"))


def row(number: int, name: str, param: Any, inputs: Slots, outputs: Slots, directory: str) -> str:
    """One line: the cells joined by `|`, or an empty line where one of them is not safe."""
    number = min(number, _LAST_NUMBER)
    cells = [str(number), f"{name}{number}", name, compact(param), *_described(inputs), *_described(outputs)]
    if not all(is_safe(cell) for cell in cells[:_CHECKED]):
        return "\n"
    cells += [";".join(["customize"] * len(inputs)), " "]
    cells += [_files(directory, "intensor", inputs), _files(directory, "outtensor", outputs)]
    return "|".join([*cells, " ", " ", " ", " ", "NO_ERROR"]) + "\n"


def _described(tensors: Slots) -> list[str]:
    names = ["undefined" if t is None else by_torch(t.dtype).atb_name for t in tensors]
    layouts = ["undefined" if t is None else "nd" for t in tensors]
    shapes = ["" if t is None else ",".join(map(str, t.shape)) for t in tensors]
    return [str(len(tensors)), *(";".join(cells) for cells in (names, layouts, shapes))]


def _files(directory: str, stem: str, tensors: Slots) -> str:
    return ";".join(f"{directory}/{stem}{index}.bin" for index in range(len(tensors)))


class CsvFiles:
    """Growing CSV files; a case's number is the number of lines before it, the header's included."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def add(
        self, path: str, name: str, param: Mapping[str, Any] | None, inputs: Slots, outputs: Slots, home: str
    ) -> None:
        """Append the row of one execution. Raises `DumpError` naming the file that cannot be written."""
        if path not in self._lines:
            file = Path(path)
            self._lines[path] = file.read_bytes().count(b"\n") if file.is_file() else 0
        text = "" if self._lines[path] else "|".join(COLUMNS) + "\n"
        number = self._lines[path] or 1
        append_text(path, text + row(number, name, param, inputs, outputs, home))
        self._lines[path] = number + 1
