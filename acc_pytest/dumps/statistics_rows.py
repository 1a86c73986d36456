"""Tensors known only from the rows of a statistics CSV: `statistic.csv` (ATB) and `statistics.csv` (torch).

Only the columns that say which tensor a row is about are looked at here; the numbers are read by
`tensors.statistics` when a reference is opened.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import FormatError
from ..tensors.location import opened_text
from ..tensors.ref import TensorRef
from .base import Slot
from .torch_manifest import key_of_name

ATB_FILE = "statistic.csv"
TORCH_FILE = "statistics.csv"

_NUMBER = re.compile(r"^(\d{1,9})(?:_|$)")


@dataclass(frozen=True, slots=True)
class AtbRows:
    """The rows of one step: references by operation ids (`2_0_1`), and top-level operations (id, type)."""

    slots: Mapping[str, Mapping[Slot, TensorRef]]
    top_level: frozenset[tuple[int, str]]


def atb_rows(path: Path) -> AtbRows:
    """Read `statistic.csv` of a token directory. Raises `FormatError` when the columns are not there.

    Complex values print with commas and widen their rows, but only behind the columns used here. A tensor
    that has several rows was dumped again into the same directory; the last counts.
    """
    slots_by_ids: dict[str, dict[Slot, TensorRef]] = {}
    tops: set[tuple[int, str]] = set()
    repeats: dict[str, int] = {}
    for row in _rows(path, ("Op Name", "Op Id", "Input/Output", "Index")):
        ids, kind, index = row["Op Id"], row["Input/Output"], row["Index"]
        number, first = _NUMBER.match(index), _NUMBER.match(ids)
        if number is None or first is None or kind.lower() not in ("input", "output"):
            continue
        slot = Slot("input" if kind.lower() == "input" else "output", (int(number.group(1)),))
        tops.add((int(first.group(1)), row["Op Name"].partition("/")[0]))
        member = f"{ids}/{kind}/{index}"
        again = repeats[member] = repeats.get(member, -1) + 1
        ref = TensorRef(str(path), f"{member}#{again}" if again else member, str(path.parent))
        slots_by_ids.setdefault(ids, {})[slot] = ref
    return AtbRows({ids: dict(sorted(slots.items())) for ids, slots in slots_by_ids.items()}, frozenset(tops))


def torch_rows(path: Path) -> dict[Slot, TensorRef]:
    """References of one module's folder. Raises `FormatError` when the columns are not there.

    The old tool's file numbers a tensor inside a nested tuple like one outside it (`output_1_0` is 0 again).
    Of several rows with one number the plain member name means the first, which is the outer one. Ours has
    the whole key: `1_0`, `past_key_values_key`.
    """
    refs: dict[Slot, TensorRef] = {}
    for row in _rows(path, ("InputOutput", "Index")):
        kind, index = row["InputOutput"], row["Index"]
        if index and kind in ("Input", "Output"):
            slot = Slot("input" if kind == "Input" else "output", key_of_name(index))
            refs[slot] = TensorRef(str(path), f"{kind}/{index}")
    return dict(sorted(refs.items()))


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        with opened_text(path, newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            missing = [name for name in needed if name not in header]
            if missing:
                raise FormatError(
                    f"{path}: has no column {missing[0]!r}; is this the statistics file of a dump?"
                )
            for row in reader:
                cells = dict(zip(header, row))
                if all(name in cells for name in needed):
                    yield cells
    except (OSError, csv.Error) as error:
        raise FormatError(f"{path}: is not a readable CSV ({error})") from error
