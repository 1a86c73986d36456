"""One walk over a TorchAir dump: which files are records of GE, tensors of FX and graph texts, by name alone.

No file is opened but `mapping.csv`, so that ten thousand records of one step are indexed at the price of one
directory listing. What a directory is (step, graph, rank) is read off its path by `torchair_directories`.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..base.vocabulary import NOISE_PROFILE
from ..errors import FormatError
from ..tensors.ge_record import MAPPING_FILE
from ..tensors.location import opened_text
from .base import Listing

_HASHED = 10
"""Least number of digits of a file name that may be the hash of a longer one."""


@dataclass(slots=True)
class TorchairFiles:
    """The files of a dump by directory, in the order in which directories were met.

    `hashed` are names of digits that no `mapping.csv` explains; `unknown` counts other files.
    """

    ge: dict[str, list[tuple[str, GeFileName]]] = field(default_factory=dict)
    fx: dict[str, list[tuple[str, FxFileName]]] = field(default_factory=dict)
    hashed: dict[str, list[str]] = field(default_factory=dict)
    graphs: list[tuple[str, GraphFileName]] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def walk(root: Path, listing: Listing) -> TorchairFiles:
    """Classify every file below `root` by its name. Raises `DumpError` where a directory cannot be read."""
    files = TorchairFiles()
    waiting = [os.fspath(root)]
    linked = [os.path.realpath(root)]
    while waiting:
        home = waiting.pop()
        names, directories = listing.files(home), _directories(home, listing, linked)
        waiting += [f"{home}/{name}" for name in sorted(directories, reverse=True)]
        long_names = _long_names(home, names, files.notes)
        ge: list[tuple[str, GeFileName]] = []
        fx: list[tuple[str, FxFileName]] = []
        hashed: list[str] = []
        for name in names:
            fields = _parsed_name(name, long_names)
            if isinstance(fields, FxFileName):
                fx.append((name, fields))
            elif isinstance(fields, GeFileName):
                ge.append((name, fields))
            elif isinstance(fields, GraphFileName):
                files.graphs.append((f"{home}/{name}", fields))
            elif name.isdecimal() and len(name) >= _HASHED:
                hashed.append(name)
            elif name not in (MAPPING_FILE, NOISE_PROFILE) and not name.endswith(".swp"):
                kind = os.path.splitext(name)[1] or "no suffix"
                files.unknown[kind] = files.unknown.get(kind, 0) + 1
        if ge:
            files.ge[home] = ge
        if fx:
            files.fx[home] = fx
        if hashed and (ge or MAPPING_FILE in names):
            files.hashed[home] = hashed
    return files


def _directories(home: str, listing: Listing, linked: list[str]) -> Iterator[str]:
    """Directories; a link to one is one, unless it leads to what is walked anyway."""
    for name in listing.directories(home):
        target = os.path.realpath(f"{home}/{name}") if os.path.islink(f"{home}/{name}") else ""
        if any(f"{target}/".startswith(f"{root}/") for root in linked):
            continue
        linked += [target] if target else []
        yield name


def _long_names(home: str, names: Sequence[str], notes: list[str]) -> dict[str, str]:
    """The hashed names in `mapping.csv`; a broken one says nothing, which `notes` are told."""
    if MAPPING_FILE not in names:
        return {}
    try:
        return read_mapping(f"{home}/{MAPPING_FILE}")
    except FormatError as error:
        notes.append(str(error))
        return {}


def _parsed_name(name: str, long_names: dict[str, str]) -> FxFileName | GeFileName | GraphFileName | None:
    """The fields of the name of a file that TorchAir gave."""
    tensor = parse_fx_name(name) if name.endswith(".npy") else None
    if tensor is not None:
        return tensor
    record = parse_ge_name(name, long_names)
    if record is not None:
        return record
    return parse_graph_name(name) if name.startswith("dynamo_") else None


# Names in TorchAir dumps: files of GE and FX, graph texts, `mapping.csv`.
#
# GE names a file `{op_type}.{op_name}.{task}.{stream}.{time}`, with four more numbers for a slice of an
# FFTS+ operator and, on very old devices, without the stream. Characters that no file name may hold became
# `_`, so names are compared as `sanitized` text. FX names a file
# `{node}-{target}.{INPUT|OUTPUT}.{i}[.{j}].{time}.npy`.

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


# The fields of a directory of a TorchAir dump, read off its absolute path from the right.
#
#     GE  [worldsize{W}_global_rank{R}/]{time}/{device}/{model}/{model id}/{step}    the rank since PTA 7.2
#     FX  worldsize{W}_global_rank{R}/graph_{n}/{step}                                     since PTA 7.2
#         data_dump/{step + 1}/gm_{time}_dump  and, before 2024-03,  gm_{time}_dump/{step + 1}
#
# Any level may be missing, and the user may point at any of them: only the levels above a file count.


_RANK = re.compile(r"^worldsize(\d+)_global_rank(\d+)$")
_GM = re.compile(r"^gm_(\d{14,20})_dump$")
_GRAPH_DIRECTORY = re.compile(r"^graph_(\d+)(?:_\d+)*$")
_TIME = re.compile(r"^\d{14}$")
_OLD_ROOT = re.compile(r"^dump_\d{8}_\d{6}$")
_LONGEST_STEP = 12
_LONGEST_DEVICE = 4


@dataclass(frozen=True, slots=True)
class TorchairDirectory:
    """The fields of the path of a directory; `None` and empty for levels that are not there.

    `graph` is the model's directory (`graph_1`, `gm_20261120..._dump`), `number` the graph's number, `step`
    the inference iteration, already without the off-by-one of old FX dumps.
    """

    step: int | None = None
    graph: str = ""
    number: int | None = None
    model_id: int | None = None
    device: int | None = None
    time: str = ""
    rank: int | None = None
    world: int | None = None


def is_level(name: str) -> bool:
    """Whether a directory of this name may lie inside a dump, so that the rest of the dump is above it."""
    patterns = (_RANK, _GM, _GRAPH_DIRECTORY, _TIME, _OLD_ROOT)
    return name.isdecimal() or name == "data_dump" or any(pattern.match(name) for pattern in patterns)


def ge_directory(path: str) -> TorchairDirectory:
    """Read the levels of a directory that holds GE records."""
    levels = path.split("/")
    world, rank = _rank(levels)
    step = _number(levels, _LONGEST_STEP)
    model_id = _number(levels, _LONGEST_STEP)
    time = _time(levels)
    if step is None:
        return TorchairDirectory(time=time, rank=rank, world=world)
    if model_id is None and _is_model(levels):
        # A model without a step counter: the only number below its name is its id.
        step, model_id = None, step
    elif model_id is None and time:
        # Operators that run outside of any model lie directly below the device.
        return TorchairDirectory(None, device=step, time=time, rank=rank, world=world)
    is_model = bool(levels) and (bool(_GRAPH_DIRECTORY.match(levels[-1])) or not is_level(levels[-1]))
    model = levels.pop() if is_model else ""
    if model_id is None and not _GRAPH_DIRECTORY.match(model):
        # A step directory on its own: what is above it is no model.
        return TorchairDirectory(step, rank=rank, world=world)
    device = _number(levels, _LONGEST_DEVICE)
    number = _GRAPH_DIRECTORY.match(model)
    return TorchairDirectory(
        step, model, int(number.group(1)) if number else None, model_id, device, _time(levels), rank, world
    )


def fx_directory(path: str) -> TorchairDirectory:
    """Read the levels of a directory that holds FX tensors."""
    levels = path.split("/")
    world, rank = _rank(levels)
    last, before = levels[-1], levels[-2] if len(levels) > 1 else ""
    if _GM.match(last):
        name, step = last, int(before) - 1 if before.isdecimal() else 0
    elif not last.isdecimal() or len(last) >= _LONGEST_STEP:
        name, step = last, 0
    else:
        name, step = before, int(last) - bool(_GM.match(before))
    graph = _GRAPH_DIRECTORY.match(name)
    number = int(graph.group(1)) if graph else None
    name = name if graph or _GM.match(name) else ""
    return TorchairDirectory(max(step, 0), name, number, rank=rank, world=world)


def rank_of(name: str) -> int | None:
    """The rank that the name of a directory says (`worldsize2_global_rank1`), or `None`."""
    return _rank([name])[1]


def _rank(levels: list[str]) -> tuple[int | None, int | None]:
    for level in reversed(levels):
        if match := _RANK.match(level):
            return int(match.group(1)), int(match.group(2))
    return None, None


def _number(levels: list[str], longest: int) -> int | None:
    """Take the last level off `levels` where it is a number shorter than `longest` digits."""
    if levels and levels[-1].isdecimal() and len(levels[-1]) < longest:
        return int(levels.pop())
    return None


def _time(levels: list[str]) -> str:
    """The last level where it is a time."""
    return levels[-1] if levels and _TIME.match(levels[-1]) else ""


def _is_model(levels: list[str]) -> bool:
    """Whether the last level is the name of a model: one of TorchAir's, or one right below a device."""
    if not levels:
        return False
    if _GRAPH_DIRECTORY.match(levels[-1]):
        return True
    parent = levels[-2] if len(levels) > 1 else ""
    return parent.isdecimal() and len(parent) < _LONGEST_DEVICE and not _TIME.match(levels[-1])
