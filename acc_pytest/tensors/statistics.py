"""Statistics instead of tensors: the CSV files of statistics dumps, and the same numbers of a tensor.

Three files are read. `statistics.csv` of a torch dump lies in each module's folder; its members are
`Input/0`, `Output/1`. `statistic.csv` of an ATB dump (since 2025-11) lies in each execution directory and
has one row per tensor of the whole step; its members are `{op id}/{input|output}/{index}`: `1_0_0/output/0`.
GE writes a file per record (`ge_statistics`), with the members of the record: `inputs/0`, `outputs/1`.
A member that occurs again (a module called twice, a dump appended to) gets `#1`, `#2`, ... in file order.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ..base.imports import torch
from ..errors import FormatError
from .atb_bin import number
from .dtypes import by_name
from .file_bytes import byte_count, content_within
from .ge_file import GE_COLUMNS, ge_headers
from .header import Location, Statistics, TensorHeader, WithoutValues, member_of, until_changed
from .source import TensorSource

TORCH_COLUMNS = "NodeName,NodeType,InputOutput,Index,DataType,Shape,Max,Min,Mean,L2Norm"
_ATB_COLUMNS = (
    "Device and PID,Execution Count,Op Name,Op Type,Op Id,Input/Output,Index,Dtype,Format,Shape,"
    "Max,Min,Mean,Norm,Tensor Path"
)
_LONGEST_FILE = 1 << 28
_OUTSIDE_PARENTHESES = re.compile(r",(?![^()]*\))")
_BLOCK = 1 << 16

_Row = tuple[str, TensorHeader]


class StatisticsFile(WithoutValues):
    """The format object of statistics CSV files."""

    name = "statistics"
    lacking = "holds only the statistics of its tensor; dump again with its data"

    def matches(self, head: bytes) -> bool:
        """Whether these first bytes start the header line of either file."""
        return head.startswith(
            (TORCH_COLUMNS[:24].encode(), _ATB_COLUMNS[:24].encode(), GE_COLUMNS[:24].encode())
        )

    def header(self, place: Location) -> TensorHeader:
        """Dtype, shape and statistics of one member. Raises `FormatError`."""
        return member_of(place, statistics_in(place.path), "row")


FORMAT = StatisticsFile()


# A dump has a small file per torch module and step, or a large one per ATB step.
@until_changed(maxsize=64)
def statistics_in(path: str) -> Mapping[str, TensorHeader]:
    """All members of a statistics file, in file order. Raises `FormatError`."""
    content = content_within(path, _LONGEST_FILE, "statistics")
    lines = content.decode("utf-8", "surrogateescape").splitlines()
    readers: dict[str, Callable[[str, list[str]], Iterator[_Row]]] = {
        TORCH_COLUMNS: _torch_rows,
        _ATB_COLUMNS: _atb_rows,
    }
    first = lines[0].strip() if lines else ""
    if first.startswith(GE_COLUMNS):
        readers[first] = ge_headers
    if first not in readers:
        raise FormatError(f"{path}: is not a statistics file: its first line is {first[:60]!r}")
    headers: dict[str, TensorHeader] = {}
    counts: dict[str, int] = {}
    for member, header in readers[first](path, lines):
        again = counts[member] = counts.get(member, -1) + 1
        headers[f"{member}#{again}" if again else member] = header
    return MappingProxyType(headers)


def _torch_rows(path: str, lines: list[str]) -> Iterator[_Row]:
    try:
        rows = list(csv.reader(lines))
    except csv.Error as error:
        raise FormatError(f"{path}: is not a valid CSV: {error}") from error
    for line, row in enumerate(rows[1:], start=2):
        if row == rows[0] or not row:
            continue  # processes that append to one file each write the header when they find it empty
        if len(row) != 10:
            raise FormatError(f"{path}: line {line} has {len(row)} columns instead of 10")
        yield f"{row[2]}/{row[3]}", _header(path, line, row[4], row[5], row[6:10])


def _atb_rows(path: str, lines: list[str]) -> Iterator[_Row]:
    for line, text in enumerate(lines[1:], start=2):
        if not text or text == lines[0]:
            continue
        # Complex statistics are written (re,im) without quotes.
        row = _OUTSIDE_PARENTHESES.split(text)
        if len(row) != 15:
            raise FormatError(
                f"{path}: line {line} has {len(row)} columns instead of 15; was the dump interrupted?"
            )
        member = f"{row[4]}/{row[5]}/{row[6]}"
        yield member, _header(path, line, row[7], row[9], row[10:14], row[8])


def _header(
    path: str, line: int, dtype: str, shape: str, values: list[str], layout: str = "nd"
) -> TensorHeader:
    # torch writes (1, 4, 8), ATB writes 1x4x8.
    sizes = [
        text.strip() for text in re.split(r"[,x]", shape.strip().removeprefix("torch.Size").strip("()[]"))
    ]
    sizes = [size for size in sizes if size]
    if not all(re.fullmatch(r"\d{1,19}", size) for size in sizes):
        raise FormatError(f"{path}: line {line} has shape {shape[:80]!r}")
    element_type, dims = by_name(dtype), tuple(map(int, sizes))
    byte_count(path, dims, element_type.bits)
    statistics = Statistics(*map(number, values))
    return TensorHeader(element_type, dims, "statistics", layout=layout, statistics=statistics)


def statistics_of(tensor: torch.Tensor) -> Statistics:
    """The statistics of a tensor, for comparing values with statistics: one pass, constant memory.

    All sums in float64. NaN never becomes the maximum or minimum but makes mean and norm NaN, as the ATB
    probe has it; of complex tensors all four are moduli (the mean's modulus, not the mean modulus), as in
    `atb_statistics.number`. An empty tensor has no statistics: all four are `None`.
    """
    if tensor.numel() == 0:
        return Statistics(None, None, None, None)
    largest, smallest, total, norm = -math.inf, math.inf, complex(0), 0.0
    ordered = False
    # Order does not matter, so a transposed tensor is read in the order of its memory.
    in_memory = tensor.detach().permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    for block in TensorSource(in_memory).blocks(_BLOCK):
        wide = block.to(torch.complex128 if block.is_complex() else torch.float64)
        part = wide.sum().item()
        total += part
        values = wide.abs() if wide.is_complex() else wide
        norm = math.hypot(norm, _norm(values))
        if part != part:  # it has NaN, or infinities of both signs
            values = values[~torch.isnan(values)]
        if values.numel():
            ordered = True
            low, high = torch.aminmax(values)
            largest, smallest = max(largest, float(high)), min(smallest, float(low))
    mean = total / tensor.numel()
    average = abs(mean) if tensor.is_complex() else mean.real
    return Statistics(largest if ordered else None, smallest if ordered else None, average, norm)


def _norm(values: torch.Tensor) -> float:
    norm = float(torch.linalg.vector_norm(values))
    if math.isinf(norm):  # squares of values above 1e154 overflow, the norm itself need not
        scale = float(values.abs().max())
        norm = norm if math.isinf(scale) else scale * math.sqrt(float((values / scale).square().sum()))
    return norm
