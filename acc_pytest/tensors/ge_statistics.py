"""Statistics files of GE (`dump_data="stats"`): `{record name}.csv`, a row per input and output of a record.

The first six columns are always there. Then come the values: seven of them from the host, or, from devices
that let choose, `Count` and those that were chosen.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from ..errors import FormatError
from .atb_statistics import number
from .file_bytes import byte_count
from .ge_codes import by_ge_name, ge_layout_code
from .header import Statistics, TensorHeader

GE_COLUMNS = "Input/Output,Index,Data Size,Data Type,Format,Shape"
_SHAPE = re.compile(r"\d{1,19}(x\d{1,19})*")
_KINDS = {"Input": "inputs", "Output": "outputs"}


def ge_headers(path: str, lines: list[str]) -> Iterator[tuple[str, TensorHeader]]:
    """Member and header of every row of a file that was read. Raises `FormatError`."""
    try:
        table = list(csv.reader(lines))
    except csv.Error as error:
        raise FormatError(f"{path}: is not a valid CSV: {error}") from error
    first = [cell.strip() for cell in table[0]] if table else []
    if ",".join(first[:6]) != GE_COLUMNS:
        raise FormatError(
            f"{path}: is not a statistics file of GE: its first line is {','.join(first)[:60]!r}"
        )
    for line, cells in enumerate(table[1:], start=2):
        if not cells:
            continue
        if len(cells) != len(first):
            raise FormatError(
                f"{path}: line {line} has {len(cells)} columns instead of {len(first)}; "
                "was the dump interrupted?"
            )
        yield _row(path, line, cells, dict(zip(first[6:], cells[6:])))


def _row(path: str, line: int, cells: list[str], values: dict[str, str]) -> tuple[str, TensorHeader]:
    kind, index, nbytes, dtype, layout, shape = (cell.strip() for cell in cells[:6])
    are_numbers = all(re.fullmatch(r"\d{1,19}", text) for text in (index, nbytes))
    if kind not in _KINDS or not are_numbers or not (shape in ("", "-") or _SHAPE.fullmatch(shape)):
        raise FormatError(
            f"{path}: line {line} describes neither an input nor an output: {','.join(cells[:6])[:80]!r}"
        )
    element_type = by_ge_name(dtype)
    sizes = tuple(map(int, shape.split("x"))) if shape not in ("", "-") else ()
    byte_count(path, sizes, element_type.bits)
    statistics = Statistics(
        *(number(values.get(item, "")) for item in ("Max Value", "Min Value", "Avg Value", "l2norm"))
    )
    name = layout.lower() if ge_layout_code(layout) >= 0 else f"undefined({layout[:40]})"
    return f"{_KINDS[kind]}/{int(index)}", TensorHeader(
        element_type, sizes, "statistics", layout=name, statistics=statistics
    )
