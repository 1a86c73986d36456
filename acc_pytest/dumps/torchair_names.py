"""Names in TorchAir dumps: files of GE and FX, graph texts, `mapping.csv`.

GE names a file `{op_type}.{op_name}.{task}.{stream}.{time}`, with four more numbers for a slice of an FFTS+
operator and, on very old devices, without the stream. Characters that no file name may hold became `_`, so
names are compared as `sanitized` text. FX names a file `{node}-{target}.{INPUT|OUTPUT}.{i}[.{j}].{time}.npy`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import FormatError

MAPPING_FILE = "mapping.csv"
"""Where GE keeps names that were too long for a file name: two columns without a header."""
_INFO = "_min_max"
_FFTS_PLUS = "4"
_MICROSECONDS = 10**14
"""Least time of a name that speaks for itself; a rotated log may end in seconds since 1970 as well."""
_GE = re.compile(
    r"^(?P<type>[^.]+)\.(?P<name>.+?)\.(?P<task>\d+)(?:\.(?P<stream>\d+))?\.(?P<time>\d{10,20})"
    r"(?:\.(?P<tasktype>\d+)\.(?P<context>\d+)\.(?P<thread>\d+)\.(?P<device>\d+))?"
    r"(?P<suffix>_min_max\.npz|\.csv)?$"
)
_FX = re.compile(
    r"^(?P<node>\w+)-(?P<target>.+)\.(?P<io>INPUT|OUTPUT)\.(?P<i>\d+)(?:\.(?P<j>\d+))?\.(?P<time>\d{20})"
    r"(?P<info>_min_max)?\.npy$"
)
_FX_KEYWORDS = re.compile(
    r"^(?P<node>\w+)-(?P<target>.+)\.KWARG\.(?P<key>[^.]+)(?:\.(?P<j>\d+))?\.(?P<time>\d{20})"
    r"(?P<info>_min_max)?\.npy$"
)
_GRAPH = re.compile(
    r"^dynamo_(?P<form>original|optimized)_(?P<model>.+)_rank_(?P<rank>\d+)_pid_(?P<pid>\d+)"
    r"_ts_(?P<time>\d{14,20})\.(?:txt|pbtxt)$"
)
_OLD_GRAPH = re.compile(r"^dynamo_(?P<form>original|optimized)_graph_(?P<time>\d{14,20})\.(?:txt|pbtxt)$")
_SOURCE = re.compile(r"^dynamo_(?:original|optimized)_.+\.py$")
_TRAILING = re.compile(r"(\d+)$")
_FORBIDDEN = str.maketrans(" ./\\", "____")


@dataclass(frozen=True, slots=True)
class GeName:
    """What the name of a GE file says. `thread` is the slice of an FFTS+ operator, -1 for a whole one.

    `form` is what the file holds: `record` (tensors), `info` (a list of numbers per tensor, `.npz`) or
    `statistics` (a CSV). `op_name` is sanitized; the record itself has the real one.
    """

    op_type: str
    op_name: str
    time: int
    thread: int = -1
    form: str = "record"


@dataclass(frozen=True, slots=True)
class FxName:
    """What the name of an FX file says. `index` has a second number for a tensor in a list of arguments.

    `info` says that the file holds the numbers of a converted dump instead of the tensor.
    """

    node: str
    target: str
    kind: str
    index: tuple[int | str, ...]
    time: int
    info: bool = False


@dataclass(frozen=True, slots=True)
class GraphName:
    """What the name of a graph text says; `graph` and `rank` are `None` in names before PTA 7.1.0."""

    form: str
    graph: int | None
    rank: int | None
    time: int


def sanitized(name: str) -> str:
    """An operator's name as the device writes it into file names."""
    return name.translate(_FORBIDDEN)


def ge_name(name: str, long_names: Mapping[str, str]) -> GeName | None:
    """The fields of a GE file's name, `None` for another file.

    `long_names` is the `mapping.csv` of its directory.
    """
    stem, dot, suffix = name.partition(".")
    if not dot or suffix == "csv" or suffix == "npz":
        hashed = stem.removesuffix(_INFO)
        known = long_names.get(hashed)
        return ge_name(known + name[len(hashed) :], {}) if known is not None else None
    found = _GE.match(name)
    if found is None:
        return None
    forms = {None: "record", ".csv": "statistics"}
    sliced = found["tasktype"] == _FFTS_PLUS
    return GeName(
        found["type"],
        found["name"],
        int(found["time"]),
        int(found["thread"]) if sliced else -1,
        forms.get(found["suffix"], "info"),
    )


def fx_name(name: str) -> FxName | None:
    """The fields of an FX file's name, `None` for another file."""
    found = _FX.match(name)
    if found is not None:
        numbers: tuple[int | str, ...] = (int(found["i"]),)
        kind = "input" if found["io"] == "INPUT" else "output"
    elif found := _FX_KEYWORDS.match(name):
        numbers, kind = (found["key"],), "input"
    else:
        return None
    if found["j"] is not None:
        numbers = (*numbers, int(found["j"]))
    return FxName(found["node"], found["target"], kind, numbers, int(found["time"]), bool(found["info"]))


def graph_name(name: str) -> GraphName | None:
    """The fields of a graph text's name, `None` for another file (and for graphs written as Python)."""
    found = _GRAPH.match(name)
    if found is not None:
        number = _TRAILING.search(found["model"])
        graph = int(number.group(1)) if number else None
        return GraphName(found["form"], graph, int(found["rank"]), int(found["time"]))
    found = _OLD_GRAPH.match(name)
    return GraphName(found["form"], None, None, int(found["time"])) if found else None


def is_torchair(name: str) -> bool:
    """Whether a file of this name says by itself that a directory is a TorchAir dump."""
    if name.startswith("dynamo_"):
        return graph_name(name) is not None or _SOURCE.match(name) is not None
    if name.endswith(".npy"):
        return fx_name(name) is not None
    record = ge_name(name, {})
    return record is not None and record.time >= _MICROSECONDS


def read_mapping(path: str) -> dict[str, str]:
    """`mapping.csv`: real names by hash; the last line of a hash counts. Raises `FormatError`."""
    found: dict[str, str] = {}
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            for row in csv.reader(file):
                if len(row) >= 2 and row[0].strip().isdecimal():
                    # A name may hold commas; the writer does not quote.
                    found[row[0].strip()] = ",".join(row[1:]).strip()
    except (OSError, csv.Error) as error:
        raise FormatError(f"{path}: is not a readable list of long names ({error})") from error
    return found
