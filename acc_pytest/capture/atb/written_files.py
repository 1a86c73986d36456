"""The files that a run has written, by kind. Only files of this run count.

A directory whose name carries the run's own timestamp is this run's. Where older and newer probes write
directories without one, files older than the run belong to another run (process ids are reused).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
