"""`statistic.csv` of the msprobe era: one row per tensor, in the order in which operations start and end."""

from __future__ import annotations

import os
import re

import torch

from ....tensors.atb_bin import KEYS, text_of
from ....tensors.dtypes import by_torch
from .files import append_text, is_safe

STATISTIC_COLUMNS = (
    *("Device and PID", "Execution Count", "Op Name", "Op Type", "Op Id", "Input/Output", "Index"),
    *("Dtype", "Format", "Shape", "Max", "Min", "Mean", "Norm", "Tensor Path"),
)
_FILE = re.compile(r"(in|out)tensor(.*)\.bin")
Path = tuple[str, ...]


def statistic_row(
    worker: str, count: int, path: Path, file: str, tensor: torch.Tensor, tensor_path: str, measured: bool
) -> str:
    """One line, or nothing where a cell is not safe (`-inf`), as the probe has it.

    `path` are the directories from the top-level operation down, `file` is the tensor file's name,
    `tensor_path` its path or empty, and with `measured` the row holds statistics.
    """
    components = [directory.partition("_") for directory in path]
    match = _FILE.fullmatch(file)
    side, index = (match[1], match[2]) if match else ("in", file)
    values = text_of(tensor, wide_squares=True) if measured else dict.fromkeys(KEYS, "N/A")
    cells = [
        *(worker, str(count), "/".join(name for _, _, name in components), components[-1][2]),
        *("_".join(number for number, _, _ in components), f"{side}put", index),
        *(by_torch(tensor.dtype).atb_name, "nd", "x".join(map(str, tensor.shape))),
        *(values[key] for key in KEYS),
        tensor_path or "N/A",
    ]
    return ",".join(cells) + "\n" if all(map(is_safe, cells)) else ""


class StatisticRows:
    """Rows of operations that are still running: an operation's inputs come before its children's rows.

    Operations are reported when they end, children first, so rows wait for their top-level operation.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Path, str]] = []

    def add(self, path: Path, before: str, after: str, file: str) -> None:
        """Take the rows of one operation; those of a top-level one go to `file` with all below it.

        Raises `DumpError` naming the file when it cannot be written.
        """
        entries = [entry for entry in self._waiting if entry[0][: len(path)] == path]
        self._waiting = [entry for entry in self._waiting if entry[0][: len(path)] != path]
        text = before + "".join(rows for _, rows in entries) + after
        if len(path) > 1:
            self._waiting.append((path, text))
        elif text:
            header = "" if os.path.exists(file) else ",".join(STATISTIC_COLUMNS) + "\n"
            append_text(file, header + text)
