"""From an entry to the directory that holds its tensors.

The paths in an operation CSV are those of the machine that wrote it, and say `before/` of outputs that are
in `after/`. An operation is found by the ids of its path instead: below `--acc-opcheck-input`, else where
the CSV says, else in the dump that the CSV lies in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import AccError, DumpError
from ..tensors.stores.place import is_directory, names_at
from .entry import Entry
from .listing import directories_by_id
from .source_directory import STATES

_WORKER = re.compile(r"^(-?\d+)_(\d+)$")
_DATA = ("tensors", "data")
_STATE = re.compile(r"^(.*)/(?:before|after)/(?:in|out)tensor\d+[^/]*$")


def locate(entry: Entry, input_directory: str = "") -> tuple[str, str]:
    """The operator's directory and that of its execution; two empty texts where the entry names none.

    `input_directory` is that of `--acc-opcheck-input`. Raises `DumpError` that names the places of the search
    when the operation is not there, or is there more than once.
    """
    if entry.directory:
        return entry.directory, entry.base
    csv_directory = _directory_of_row(entry)
    if not input_directory and csv_directory and is_directory(csv_directory):
        return csv_directory, _execution_of(csv_directory)
    if not entry.ids:
        return "", ""
    bases = list(_bases(entry, input_directory))
    for base in bases:
        directories = _operator_directories(base, entry)
        if len(directories) == 1:
            return directories[0], base
        if directories:
            names = ", ".join(map(os.path.basename, directories))
            raise DumpError(
                f"{entry.full_name} is in {base} {len(directories)} times ({names}); "
                "give the directory of one execution with --acc-opcheck-input"
            )
    home = input_directory or (os.path.dirname(csv_directory) if csv_directory else "")
    where = ", ".join(bases[:3]) or home or os.path.dirname(entry.origin)
    raise DumpError(
        f"{entry.full_name} has no directory in {where}; give the directory of its "
        "execution (tensors/DEVICE_PID/N) with --acc-opcheck-input"
    )


def siblings(directory: str, base: str) -> list[str]:
    """The directories of the same operation and execution on all ranks of the run, by device and process.

    Only `directory` where it lies in no `tensors/{device}_{pid}/{N}`.
    """
    execution = Path(base)
    if not execution.name.isdecimal() or not _WORKER.match(execution.parent.name):
        return [directory]
    inside = Path(directory).relative_to(execution)
    home = execution.parent.parent
    workers = sorted(
        (int(match.group(1)), int(match.group(2)), name)
        for name in names_at(str(home))
        if (match := _WORKER.match(name))
    )
    places = [home / name / execution.name / inside for _, _, name in workers]
    return [str(place) for place in places if is_directory(place)]


def _directory_of_row(entry: Entry) -> str:
    """The operator's directory as the CSV has it, empty where it has none."""
    for column in ("InTensorFile", "OutTensorFile"):
        for name in entry.cells.get(column, "").split(";"):
            if match := _STATE.match(name.strip()):
                return os.path.join(os.path.dirname(entry.origin), match.group(1))
    return ""


def _execution_of(path: str) -> str:
    for parent in Path(path).parents:
        if parent.name.isdecimal() and _WORKER.match(parent.parent.name):
            return str(parent)
    return os.path.dirname(path)


def _bases(entry: Entry, input_directory: str) -> Iterator[str]:
    """Directories of executions that the entry's may be, the likeliest first."""
    if input_directory:
        home = os.path.abspath(input_directory)
        yield home
        yield from _executions(home, entry)
        return
    csv = Path(os.path.abspath(entry.origin))
    # ROOT/operation_io_tensors/PID/operation_tensors_N.csv
    for root in csv.parents[1:3]:
        yield from _executions(str(root), entry)
    yield from _executions(str(csv.parent), entry)


def _executions(home: str, entry: Entry) -> Iterator[str]:
    """`tensors/{device}_{pid}/{N}` and parts of that below `home`, of the entry's process if known."""
    pid = os.path.basename(os.path.dirname(os.path.abspath(entry.origin)))
    step = str(entry.step) if entry.step >= 0 else ""
    if _WORKER.match(os.path.basename(home)):
        yield from _steps(home, step)
        return
    for data in (home, *(os.path.join(home, name) for name in _DATA)):
        workers = [name for name in _listed(data) if _WORKER.match(name)]
        process_names = [name for name in workers if name.partition("_")[2] == pid or name == pid]
        for name in process_names or (workers if len(workers) == 1 else ()):
            yield from _steps(os.path.join(data, name), step)


def _steps(worker: str, step: str) -> Iterator[str]:
    numbers = sorted((name for name in _listed(worker) if name.isdecimal()), key=int)
    if step in numbers:
        yield os.path.join(worker, step)
    elif not step and len(numbers) == 1:
        yield os.path.join(worker, numbers[0])


def _listed(path: str) -> list[str]:
    try:
        return names_at(path)
    except OSError:
        return []


def _operator_directories(base: str, entry: Entry) -> list[str]:
    """The directories below `base` along the entry's ids whose last is of its class."""
    *ids, last = entry.ids.split("_")
    places = [base]
    for number in ids:
        places = [
            os.path.join(place, name) for place in places for name in directories_by_id(place).get(number, ())
        ]
    named = f"{last}_{entry.name}"
    return [os.path.join(place, named) for place in places if named in directories_by_id(place).get(last, ())]


def files_of(entry: Entry, input_directory: str = "") -> list[str]:
    """The tensor files of an operation; none where they cannot be found, which its check will say."""
    try:
        directory, _ = locate(entry, input_directory)
        homes = [os.path.join(directory, state) for state in STATES] if directory else []
        return [f"{home}/{name}" for home in homes if is_directory(home) for name in names_at(home)]
    except (AccError, OSError):
        return []
