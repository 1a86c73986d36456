"""The operation and kernel CSV: one row per execution of a leaf or kernel, with paths that opcheck reads.

Rows are appended; a file's first row is its header. The paths are computed, not looked up: for outputs
they name the directory of the inputs, and for kernels that of their operation, as the probe has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...tensors.dtypes import by_torch
from .files import append_text

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
            self._lines[path] = _count(path)
        text = "" if self._lines[path] else "|".join(COLUMNS) + "\n"
        number = self._lines[path] or 1
        append_text(path, text + row(number, name, param, inputs, outputs, home))
        self._lines[path] = number + 1


def _count(path: str) -> int:
    file = Path(path)
    return file.read_bytes().count(b"\n") if file.is_file() else 0
