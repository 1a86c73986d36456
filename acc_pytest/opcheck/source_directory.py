"""Entries from a dump directory: every operator's directory in it, as far down as it goes.

An operator's directory is named `{id}_{Class}` and holds `op_param.json`, or, for the few classes that
have no parameters, `before` or `after` alone. Graphs and kernels have such directories too; a class name of
ATB ends with `Operation`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import DumpError
from ..tensors.stores.place import is_directory, walked_at
from .entry import Entry

PARAM_FILE = "op_param.json"
STATES = ("before", "after")
"""Directories that hold the tensors of what they lie in."""

_WORKER = re.compile(r"^-?\d+_\d+$")
_NODE = re.compile(r"^(\d+)_(.+)$")
_DATA = frozenset({"tensors", "data"})


def entries_of_directory(directory: Path, first: int = 0) -> Iterator[Entry]:
    """Every operator's directory below (or at) `directory`, in order of ranks, steps and ids.

    Raises `DumpError` for what is no directory.
    """
    home = Path(os.path.abspath(directory))
    if not is_directory(home):
        raise DumpError(f"{directory}: no such file or directory; give an operation CSV or a dump")
    paths = sorted(_operators(str(home)), key=_order)
    bases = {path: _base(Path(path), home) for path in paths}
    workers = list(dict.fromkeys(base.parent.name for base in bases.values() if _is_execution(base)))
    for number, path in enumerate(paths, start=first):
        base = bases[path]
        ids, kind = _identity(Path(path), base)
        step = int(base.name) if _is_execution(base) else -1
        group = f"step{step}" if step >= 0 else home.name
        if len(workers) > 1 and step >= 0:
            group = f"rank{workers.index(base.parent.name)}.{group}"
        name = f"{kind}_{ids}" if ids else kind
        yield Entry(number, name, path, str(home), group, step, directory=path, base=str(base))


def _operators(home: str) -> Iterator[str]:
    for path, directories, files in walked_at(home):
        directories[:] = [name for name in directories if name not in STATES or _NODE.match(name)]
        kind = os.path.basename(path).partition("_")[2]
        if PARAM_FILE in files or (kind.endswith("Operation") and _has_state(path)):
            yield path


def _has_state(path: str) -> bool:
    return any(is_directory(os.path.join(path, state)) for state in STATES)


def _order(path: str) -> list[tuple[int, str]]:
    """By the numbers that the components of a path begin with."""
    components = path.split(os.sep)
    return [
        (int(match.group()) if (match := re.match(r"\d+", component)) else -1, component)
        for component in components
    ]


def _is_execution(base: Path) -> bool:
    return base.name.isdecimal() and bool(_WORKER.match(base.parent.name))


def _base(path: Path, home: Path) -> Path:
    """The directory of the execution that `path` lies in, else what was given (or is above it)."""
    for parent in path.parents:
        if _is_execution(parent) and parent.parent.parent.name in _DATA:
            return parent
    if path == home:
        while _NODE.match(home.name) and home.parent != home:
            home = home.parent
    return home


def _identity(path: Path, base: Path) -> tuple[str, str]:
    """Ids joined by `_`, and the class name."""
    components = path.relative_to(base).parts
    matches = [_NODE.match(component) for component in components]
    ids = "_".join(match.group(1) for match in matches if match)
    last = components[-1] if components else path.name
    return ids, last.rpartition("_")[2] or last
