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
from ..tensors.texts import opened_text

MAPPING_FILE = "mapping.csv"
"""The file of names that were too long for a file name: two columns without a header."""
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
class GeFileName:
    """The fields of the name of a GE file. `thread` is the slice of an FFTS+ operator, -1 for a whole one.

    `form` is what the file holds: `record` (tensors), `info` (a list of numbers per tensor, `.npz`) or
    `statistics` (a CSV). `op_name` is sanitized; the record itself has the real one.
    """

    op_type: str
    op_name: str
    time: int
    thread: int = -1
    form: str = "record"


@dataclass(frozen=True, slots=True)
class FxFileName:
    """The fields of the name of an FX file. `index` has a second number for a tensor in a list of arguments.

    `info` says that the file holds the numbers of a converted dump instead of the tensor.
    """

    node: str
    target: str
    kind: str
    index: tuple[int | str, ...]
    time: int
    info: bool = False


@dataclass(frozen=True, slots=True)
class GraphFileName:
    """The fields of the name of a graph text; `graph` and `rank` are `None` in names before PTA 7.1.0."""

    form: str
    graph: int | None
    rank: int | None
    time: int


def sanitized(name: str) -> str:
    """An operator's name as the device writes it into file names."""
    return name.translate(_FORBIDDEN)


def parse_ge_name(name: str, long_names: Mapping[str, str]) -> GeFileName | None:
    """The fields of a GE file's name, `None` for another file.

    `long_names` is the `mapping.csv` of its directory.
    """
    stem, dot, suffix = name.partition(".")
    if not dot or suffix == "csv" or suffix == "npz":
        hashed = stem.removesuffix(_INFO)
        long_name = long_names.get(hashed)
        return parse_ge_name(long_name + name[len(hashed) :], {}) if long_name is not None else None
    match = _GE.match(name)
    if match is None:
        return None
    forms = {None: "record", ".csv": "statistics"}
    sliced = match["tasktype"] == _FFTS_PLUS
    return GeFileName(
        match["type"],
        match["name"],
        int(match["time"]),
        int(match["thread"]) if sliced else -1,
        forms.get(match["suffix"], "info"),
    )


def parse_fx_name(name: str) -> FxFileName | None:
    """The fields of an FX file's name, `None` for another file."""
    match = _FX.match(name)
    if match is not None:
        numbers: tuple[int | str, ...] = (int(match["i"]),)
        kind = "input" if match["io"] == "INPUT" else "output"
    elif match := _FX_KEYWORDS.match(name):
        numbers, kind = (match["key"],), "input"
    else:
        return None
    if match["j"] is not None:
        numbers = (*numbers, int(match["j"]))
    return FxFileName(match["node"], match["target"], kind, numbers, int(match["time"]), bool(match["info"]))


def parse_graph_name(name: str) -> GraphFileName | None:
    """The fields of a graph text's name, `None` for another file (and for graphs written as Python)."""
    match = _GRAPH.match(name)
    if match is not None:
        number = _TRAILING.search(match["model"])
        graph = int(number.group(1)) if number else None
        return GraphFileName(match["form"], graph, int(match["rank"]), int(match["time"]))
    match = _OLD_GRAPH.match(name)
    return GraphFileName(match["form"], None, None, int(match["time"])) if match else None


def is_torchair(name: str) -> bool:
    """Whether a file of this name says by itself that a directory is a TorchAir dump."""
    if name.startswith("dynamo_"):
        return parse_graph_name(name) is not None or _SOURCE.match(name) is not None
    if name.endswith(".npy"):
        return parse_fx_name(name) is not None
    record = parse_ge_name(name, {})
    return record is not None and record.time >= _MICROSECONDS


def read_mapping(path: str) -> dict[str, str]:
    """`mapping.csv`: real names by hash; the last line of a hash counts. Raises `FormatError`."""
    names: dict[str, str] = {}
    try:
        with opened_text(path, newline="") as file:
            for row in csv.reader(file):
                if len(row) >= 2 and row[0].strip().isdecimal():
                    # A name may hold commas; the writer does not quote.
                    names[row[0].strip()] = ",".join(row[1:]).strip()
    except (OSError, csv.Error) as error:
        raise FormatError(f"{path}: is not a readable list of long names ({error})") from error
    return names
