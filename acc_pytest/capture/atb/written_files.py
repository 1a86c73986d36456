"""The files that a run has written, by kind. Only files of this run count.

A directory whose name carries the run's own timestamp is this run's. Where older and newer probes write
directories without one, files older than the run belong to another run (process ids are reused).
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import AccError, FormatError
from ...tensors.whole_file import whole_file

MSPROBE_ROOT = "atb_dump_data"
_SHARED = ("msit_dump", "ait_dump", "atb_temp", MSPROBE_ROOT)
_DIRECTORIES = {
    "tensors": "tensors",
    "data": "tensors",
    "tiling": "tiling",
    "layer": "layer",
    "model": "model",
    "operation_io_tensors": "op",
    "kernel_io_tensors": "kernel",
    "cpu_profiling": "cpu_profiling",
}
"""First directory below the root -> kind, which is the word of `--type` where there is one."""
KINDS = tuple(
    dict.fromkeys(("tensors", "parameters", "statistic.csv", *_DIRECTORIES.values(), "onnx", "other"))
)


@dataclass(frozen=True, slots=True)
class FilesOfKind:
    """Files of one kind, and the directory that holds them all."""

    name: str
    files: tuple[Path, ...]
    bytes: int
    place: Path


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The kinds of files of one run; `root` is the dump's directory, `None` where nothing was written."""

    root: Path | None
    kinds: tuple[FilesOfKind, ...] = ()

    def files(self, *names: str) -> tuple[Path, ...]:
        """Files of the named kinds."""
        return tuple(path for kind in self.kinds if kind.name in names for path in kind.files)

    @property
    def bytes(self) -> int:
        return sum(kind.bytes for kind in self.kinds)


def written_files(output: Path, timestamp: str, since: int) -> WrittenFiles:
    """Everything below `output` that the run of this `timestamp`, begun at `since` (ns), has written.

    Probes of one program write one root; were there several, the first one that holds tensors is it.
    """
    stamped = [(f"{name}_{timestamp}", 0) for name in ("msit_dump", "ait_dump")]
    roots = [*stamped, *((name, since) for name in _SHARED)]
    dumps = [_read(output / name, after) for name, after in roots]
    dumps = [dump for dump in dumps if dump.kinds]
    dumps.sort(key=lambda written: not written.files("tensors", "statistic.csv"))
    return dumps[0] if dumps else WrittenFiles(None)


def _read(root: Path, since: int) -> WrittenFiles:
    files: dict[str, list[Path]] = {}
    sizes: dict[str, int] = {}
    for path, status in _files(root):
        if status.st_mtime_ns < since:
            continue
        kind = _kind(path.relative_to(root))
        files.setdefault(kind, []).append(path)
        sizes[kind] = sizes.get(kind, 0) + status.st_size
    kinds = [
        FilesOfKind(
            name,
            tuple(sorted(files[name])),
            sizes[name],
            Path(os.path.commonpath([path.parent for path in files[name]])),
        )
        for name in KINDS
        if name in files
    ]
    return WrittenFiles(root if kinds else None, tuple(kinds))


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file below, links not followed; without hidden ones, which are unfinished."""
    for parent, _, names in os.walk(directory):
        for name in names:
            if name.startswith("."):
                continue
            path = Path(parent, name)
            try:
                yield path, path.lstat()
            except OSError:
                continue  # it vanished meanwhile


def _kind(path: Path) -> str:
    levels = path.parts[1:] if path.parts[0] == "info" else path.parts
    if path.suffix == ".onnx":
        return "onnx"
    kind = _DIRECTORIES.get(levels[0], "other") if len(levels) > 1 else "other"
    if kind != "tensors" or path.suffix == ".bin":
        return kind
    return {"op_param.json": "parameters", "statistic.csv": "statistic.csv"}.get(path.name, "other")


# Conversions when the program has ended: graphs as ONNX, profiling texts as CSV.
#
# A file that cannot be converted costs itself only; the sentence about it goes to the user.


def convert_profiles(run_files: WrittenFiles) -> list[str]:
    """Turn every profiling text of this run into a CSV file; returns what went wrong."""
    problems = []
    for path in run_files.files("cpu_profiling"):
        if TEXT_NAME.fullmatch(path.name):
            try:
                profile_to_csv(path)
            except AccError as error:
                problems.append(str(error))
    return problems


def convert_graphs(run_files: WrittenFiles, graph_list: Path, output: Path) -> list[str]:
    """Write an ONNX file beside every topology file of this run; returns what went wrong.

    `graph_list` is the list that the program's processes wrote; without one (msprobe's probe writes none)
    every topology file of the run counts. Paths in it are followed only below `output`.
    """
    paths, problems = (
        _listed(graph_list, output) if graph_list.is_file() else (run_files.files("layer", "model"), [])
    )
    if not paths:
        return problems
    from ...topology.onnx_export import atb_json_to_onnx

    cache: dict[str, object] = {}
    for path in paths:
        try:
            atb_json_to_onnx(path, cache_csv_file=cache)
        except (AccError, OSError) as error:
            problems.append(str(error))
    return problems


def _listed(graph_list: Path, output: Path) -> tuple[Sequence[Path], list[str]]:
    """The existing files named in `graph_list`, each once; and sentences about names that lead elsewhere."""
    inside: list[Path] = []
    outside: list[str] = []
    text = graph_list.read_text(encoding="utf-8", errors="surrogateescape")
    for path in dict.fromkeys(Path(line.strip()) for line in text.splitlines() if line.strip()):
        if not path.is_file():
            continue
        if path.resolve().is_relative_to(output):
            inside.append(path)
        else:
            outside.append(f"{graph_list}: {path} is not below {output} and was not converted")
    return inside, outside


TEXT_NAME = re.compile(r"operation_statistic_\d+\.txt", re.ASCII)
_LINE = re.compile(r"\[([a-zA-Z0-9_]*)\]:(.*)")
_PAIR = re.compile(r"(\w+):(-?\d+)", re.ASCII)
_MARKS = (("execute", re.compile(r"kernelExecuteTime:\d")), ("setup", re.compile(r"runnerSetupTime:\d")))
"""Marks of a kind of line; a line that holds both is about the execution."""


def profile_to_csv(text: Path) -> Path:
    """Write `operation_statistic_{N}.csv` beside the text and remove the text; returns the new path.

    Columns: `opname`, then `execute_*` and `setup_*` keys in alphabetical order; operations in the order in
    which they first appear; empty where an operation lacks a key. Raises `FormatError` for a text without a
    single such line, which then stays, and `AccError` where nothing can be written.
    """
    try:
        lines = text.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{text}: cannot be read: {error}") from error
    latest: dict[str, dict[str, str]] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        name, statistics = match.groups()
        kinds = latest.setdefault(name, {})
        kind = next((kind for kind, mark in _MARKS if mark.search(statistics)), None)
        if kind is not None:
            kinds[kind] = statistics
    rows = {
        name: {
            f"{kind}_{key}": number
            for kind, statistics in kinds.items()
            for key, number in _PAIR.findall(statistics)
        }
        for name, kinds in latest.items()
    }
    if not rows:
        raise FormatError(f"{text}: no line of the form [operation]:key:number, ...")
    columns = sorted({column for row in rows.values() for column in row})
    table = text.with_suffix(".csv")
    content = io.StringIO(newline="")
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(["opname", *columns])
    writer.writerows([name, *(row.get(column, "") for column in columns)] for name, row in rows.items())
    with whole_file(table) as file:
        file.write(content.getvalue().encode())
    text.unlink()
    return table
