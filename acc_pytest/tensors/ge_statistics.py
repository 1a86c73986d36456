"""Statistics files of GE (`dump_data="stats"`): `{record name}.csv`, a row per input and output of a record.

The first six columns are always there. Then come the values: seven of them from the host, or, from devices
that let choose, `Count` and those that were chosen.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence

import torch

from ..errors import FormatError
from .atb_statistics import number
from .dtypes import by_torch
from .ge_codes import by_ge_name, ge_layout_code, ge_name
from .header import Statistics, TensorHeader
from .mapped import byte_count
from .whole_file import whole_file

COLUMNS = "Input/Output,Index,Data Size,Data Type,Format,Shape"
ITEMS = (
    "Max Value",
    "Min Value",
    "Avg Value",
    "Nan Count",
    "Negative Inf Count",
    "Positive Inf Count",
    "l2norm",
)
"""What a device can be asked for, in the order of its columns; `Count` comes before them."""

_HOST = ("Max Value", "Min Value", "Avg Value", "Count", *ITEMS[3:6])
_SHAPE = re.compile(r"\d{1,19}(x\d{1,19})*")
_KINDS = {"Input": "inputs", "Output": "outputs"}


def headers(path: str, lines: list[str]) -> Iterator[tuple[str, TensorHeader]]:
    """Member and header of every row of a file that was read. Raises `FormatError`."""
    try:
        table = list(csv.reader(lines))
    except csv.Error as error:
        raise FormatError(f"{path}: is not a valid CSV: {error}") from error
    first = [cell.strip() for cell in table[0]] if table else []
    if ",".join(first[:6]) != COLUMNS:
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
    whole = all(re.fullmatch(r"\d{1,19}", text) for text in (index, nbytes))
    if kind not in _KINDS or not whole or not (shape in ("", "-") or _SHAPE.fullmatch(shape)):
        raise FormatError(
            f"{path}: line {line} describes neither an input nor an output: {','.join(cells[:6])[:80]!r}"
        )
    known = by_ge_name(dtype)
    sizes = tuple(map(int, shape.split("x"))) if shape not in ("", "-") else ()
    byte_count(path, sizes, known.bits)
    found = Statistics(
        *(number(values.get(item, "")) for item in ("Max Value", "Min Value", "Avg Value", "l2norm"))
    )
    name = layout.lower() if ge_layout_code(layout) >= 0 else f"undefined({layout[:40]})"
    return f"{_KINDS[kind]}/{int(index)}", TensorHeader(
        known, sizes, "statistics", layout=name, statistics=found
    )


def write_statistics_csv(
    path: str | os.PathLike[str],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    *,
    items: Sequence[str] | None = None,
) -> None:
    """Write what statistics mode leaves of a record; `items` of `ITEMS` as from devices that let choose.

    How many digits a device prints is not known; here they are those that give back the number.
    """
    chosen = _HOST if items is None else ("Count", *(item for item in ITEMS if item in items))
    lines = [",".join((COLUMNS, *chosen))]
    for kind, tensors in (("Input", inputs), ("Output", outputs)):
        for index, tensor in enumerate(tensors):
            known = by_torch(tensor.dtype)
            shape = "x".join(map(str, tensor.shape)) or "-"
            values = _values(tensor)
            cells = (values[name] for name in chosen)
            lines.append(
                ",".join((kind, str(index), str(tensor.nbytes), ge_name(known), "ND", shape, *cells))
            )
    with whole_file(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode("ascii"))


def _values(tensor: torch.Tensor) -> dict[str, str]:
    """All values of a tensor as text, empty for types that have none; NaN and infinity count apart."""
    names = (*ITEMS, "Count")
    if tensor.is_complex() or not tensor.numel():
        return dict.fromkeys(names, "")
    wide = tensor.detach().reshape(-1).to(torch.float64)
    ordered = wide[~wide.isnan()]
    numbers = {
        "Max Value": float(ordered.max()) if ordered.numel() else float("nan"),
        "Min Value": float(ordered.min()) if ordered.numel() else float("nan"),
        "Avg Value": float(wide.mean()),
        "l2norm": float(wide.square().sum().sqrt()),
    }
    counts = {
        "Count": wide.numel(),
        "Nan Count": int(wide.isnan().sum()),
        "Negative Inf Count": int(wide.isneginf().sum()),
        "Positive Inf Count": int(wide.isposinf().sum()),
    }
    return {
        **{name: f"{value:.17g}" for name, value in numbers.items()},
        **{n: str(c) for n, c in counts.items()},
    }
