"""From an entry to a `Case`: parameters read, files found, dtypes and shapes as the CSV declares them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.reason import Reason
from ..base.texts import NotJson, parsed
from ..base.vocabulary import DEFAULT_SOC
from ..errors import AccError, DumpError, FormatError
from ..tensors.kept_dump import modified, names_in
from ..tensors.location import is_directory, is_file, is_there, names_at, opened_text
from ..tensors.ref import TensorRef
from .case import Case, Declared
from .sources import PARAM_FILE, STATES, Entry, entries_of_csv

_SIZE = re.compile(r"\d{1,18}")
_CSV_HOME = "operation_io_tensors"

WITHOUT_PARAMETERS = frozenset(f"{name}Operation" for name in (
    "KvCache", "Pad", "Unpad", "Where", "Nonzero", "BlockCopy", "PagedCacheLoad", "ReshapeAndCacheOmni",
    "ReshapeAndCache", "Gating", "RopeQConcat", "PadWithHiddenState", "UnpadWithHiddenState",
    "RmsNormBackward", "GenAttentionMask", "Transdata",
))  # fmt: skip
"""Classes of which some release of ATB writes no parameters, so that their absence says nothing."""


def prepare(entry: Entry, input_directory: str = "", soc: str = "") -> Case:
    """The case of `entry`; `input_directory` is that of `--acc-opcheck-input`, `soc` the chip if it is known.

    Raises `AccError` for files that are not there and parameters that are no JSON.
    """
    directory, base = locate(entry, input_directory)
    if entry.base and not entry.cells:
        entry = replace(entry, cells=_row_of_dump(entry))
    declared_in = _declared(entry, "In")
    declared_out = _declared(entry, "Out")
    case = _from_directory(entry, directory, base) if directory else _from_files(entry, input_directory)
    stated = soc or _soc(entry)
    case = replace(
        case,
        inputs=case.inputs + (None,) * (len(declared_in) - len(case.inputs)),
        outputs=case.outputs + (None,) * (len(declared_out) - len(case.outputs)),
        declared_inputs=declared_in,
        declared_outputs=declared_out,
        soc=stated or DEFAULT_SOC,
        soc_stated=bool(stated),
    )
    for number, (ref, declared) in enumerate(zip(case.inputs, declared_in)):
        if ref is None and declared.numel:
            raise DumpError(
                Reason(
                    "input {} of {} ({} {}) has no file in {}; was the dump cut, or filtered with -er or "
                    "-child?",
                    *(number, case.full_name, declared.dtype, list(declared.shape)),
                    case.directory or case.source,
                )
            )
    return case


def all_ranks(case: Case, size: int) -> tuple[Case, ...]:
    """The cases of all ranks of an operator between ranks, in rank order, `case` with its rank among them.

    Raises `DumpError` when the dump has not all `size` ranks, naming those that it has.
    """
    if not case.directory:
        raise DumpError(
            Reason(
                "{}: computes on {} ranks, but its files are not in a dump of all ranks", case.full_name, size
            )
        )
    refs = (*case.inputs, *case.outputs, *case.written)
    base = next((ref.root for ref in refs if ref is not None), "")
    places = siblings(case.directory, base)
    cases: dict[int, Case] = {}
    for order, place in enumerate(places):
        worker_base = place[: len(place) - len(case.directory) + len(base)] if base else ""
        param = param_of(place) or {**case.param, "rank": order}
        number = param.get("rank")
        rank = number if isinstance(number, int) else order
        inputs, outputs, in_place, clean = _tensors(place, worker_base)
        cases[rank] = replace(
            case, param=param, rank=rank, directory=place, inputs=inputs, outputs=outputs,
            written=in_place, clean=clean,
        )  # fmt: skip
    if len(places) != size or cases.keys() != set(range(len(places))):
        raise DumpError(
            f"{case.full_name}: computes on {size} ranks, but the dump has {len(places)} "
            f"(rank {', '.join(map(str, sorted(cases)))}); dump all ranks into one directory"
        )
    return tuple(cases[rank] for rank in range(size))


def _row_of_dump(entry: Entry) -> Mapping[str, str]:
    """The row of an operator's directory in the CSV of its dump; empty where there is none.

    It has what a directory lacks: parameters that some release does not write, tensors without elements.
    """
    execution = Path(entry.base)
    worker = execution.parent.name
    for name in (worker.partition("_")[2], worker):
        csv = execution.parents[2] / _CSV_HOME / name / f"operation_tensors_{execution.name}.csv"
        if is_file(csv):
            return _rows_by_name(str(csv), modified(str(csv))).get(entry.full_name, {})
    return {}


@functools.lru_cache(maxsize=64)
def _rows_by_name(csv: str, _version: int) -> Mapping[str, Mapping[str, str]]:
    try:
        return {entry.full_name: entry.cells for entry in entries_of_csv(Path(csv), "") if not entry.problem}
    except FormatError:
        return {}


def _from_directory(entry: Entry, directory: str, base: str) -> Case:
    inputs, outputs, in_place, clean = _tensors(directory, base)
    if not any((*inputs, *outputs, *in_place)):
        raise DumpError(
            Reason(
                "{}: holds no tensors of {} (before, after); dump it with --type tensor",
                *(directory, entry.full_name),
            )
        )
    if (param := param_of(directory)) is None and (param := _param_of_row(entry)) is None:
        if entry.name not in WITHOUT_PARAMETERS:
            raise FormatError(
                f"{directory}: has no {PARAM_FILE}, so the parameters of {entry.full_name} are unknown; "
                "give the operation CSV of the dump"
            )
        param = {}
    rank = param.get("rank", 0)
    return replace(
        case_of(entry, param, inputs, outputs),
        rank=rank if isinstance(rank, int) else 0,
        directory=directory,
        written=in_place,
        clean=clean,
    )


def case_of(
    entry: Entry,
    param: Mapping[str, Any],
    inputs: tuple[TensorRef | None, ...] = (),
    outputs: tuple[TensorRef | None, ...] = (),
) -> Case:
    """The case of an entry with nothing but parameters and tensors."""
    ids, source, step = entry.ids, entry.source, entry.step
    return Case(entry.name, entry.full_name, ids, param, inputs, outputs, source=source, step=step)


def _tensors(directory: str, base: str) -> tuple[Any, Any, Any, bool]:
    before, _ = tensors_in(os.path.join(directory, "before"), base)
    after, outputs = tensors_in(os.path.join(directory, "after"), base)
    return _sequence(before or after), _sequence(outputs), _sequence(after), bool(before) or not after


def _sequence(by_number: Mapping[int, TensorRef]) -> tuple[TensorRef | None, ...]:
    return tuple(by_number.get(number) for number in range(max(by_number, default=-1) + 1))


def _from_files(entry: Entry, input_directory: str) -> Case:
    """A case whose files the row names, anywhere: ATB's own tests, and cases that stand alone."""
    inputs = _named(entry, "InTensorFile", input_directory)
    outputs = _named(entry, "OutTensorFile", input_directory)
    if not any((*inputs, *outputs)):
        raise DumpError(
            f"{entry.source}: {entry.full_name} names neither files nor a place in a dump (ids), so there is "
            "nothing to check; a row of ATB's tests needs InTensorFile to have tensors"
        )
    return case_of(entry, _param_of_row(entry) or {}, inputs, outputs)


def _named(entry: Entry, column: str, input_directory: str) -> tuple[TensorRef | None, ...]:
    roots = [*filter(None, [input_directory]), os.path.dirname(entry.origin)]
    refs: list[TensorRef | None] = []
    for name in _items(entry.cells.get(column, "")):
        places = [os.path.join(root, relative) for root in roots for relative in (name, _after(name))]
        path = next((place for place in places if is_there(place)), places[0])
        refs.append(TensorRef(path) if name else None)
    return tuple(refs)


def _after(name: str) -> str:
    """The path of an output of which the CSV says `before/outtensor0.bin`."""
    head, tail = os.path.split(name)
    return os.path.join(os.path.dirname(head), "after", tail) if tail.startswith("out") else name


def _items(text: str) -> list[str]:
    items = [item.strip() for item in text.split(";")] if text.strip() else []
    return items[:-1] if items and not items[-1] else items


def param_of(directory: str) -> dict[str, Any] | None:
    """The parameters of the operator in a directory; `None` without a file. Raises `FormatError`."""
    path = os.path.join(directory, PARAM_FILE)
    if not is_file(path):
        return None
    try:
        with opened_text(path) as file:
            text = file.read()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    return _json(text, path)


def _param_of_row(entry: Entry) -> dict[str, Any] | None:
    text = entry.cells.get("OpParam")
    return None if text is None else _json(text, f"{entry.source}, column OpParam")


def _json(text: str, where: str) -> dict[str, Any]:
    if text.strip() in ("", "null"):
        return {}
    try:
        value = parsed(text)
    except NotJson as error:
        raise FormatError(
            f"{where}: the parameters are not JSON ({error.reason}): {text.strip()[:80]!r}"
        ) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FormatError(f"{where}: the parameters must be a JSON object, got {text.strip()[:80]!r}")
    return value


def _declared(entry: Entry, side: str) -> tuple[Declared, ...]:
    """The inputs (`In`) or outputs (`Out`) as the CSV declares them; empty where its columns contradict."""
    dtypes = _items(entry.cells.get(f"{side}DType", ""))
    shapes = entry.cells.get(f"{side}Shape", "").split(";")
    layouts = _items(entry.cells.get(f"{side}Format", ""))
    if len(shapes) == len(dtypes) + 1 and not shapes[-1].strip():
        shapes = shapes[:-1]
    if len(shapes) != len(dtypes):
        return ()
    tensors = []
    for number, (dtype, text) in enumerate(zip(dtypes, shapes)):
        sizes = [size.strip() for size in text.split(",") if size.strip()]
        if not all(_SIZE.fullmatch(size) for size in sizes):
            return ()
        layout = layouts[number] if number < len(layouts) else "nd"
        tensors.append(Declared(dtype, tuple(map(int, sizes)), layout.lower()))
    return tuple(tensors)


def _soc(entry: Entry) -> str:
    """The chip that the row is for; of several the one whose rules are the default."""
    socs = [name.strip() for name in entry.cells.get("SocVersion", "").split(",") if name.strip()]
    return DEFAULT_SOC if DEFAULT_SOC in socs else (socs[0] if socs else "")


# From an entry to the directory that holds its tensors.
#
# The paths in an operation CSV are those of the machine that wrote it, and say `before/` of outputs that are
# in `after/`. An operation is found by the ids of its path instead: below `--acc-opcheck-input`, else where
# the CSV says, else in the dump that the CSV lies in.


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
        executions = (
            str(parent)
            for parent in Path(csv_directory).parents
            if parent.name.isdecimal() and _WORKER.match(parent.parent.name)
        )
        return csv_directory, next(executions, os.path.dirname(csv_directory))
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


# The names in a directory of a dump, remembered: many cases look into the same directories.


_TENSOR = re.compile(r"^(in|out)tensor(\d{1,4})(_.*)?\.bin$", re.ASCII | re.DOTALL)
"""Tensors of an operator are numbered without gaps, so that no number is large."""
_NODE = re.compile(r"^(\d+)_(.+)$")


def directories_by_id(path: str) -> Mapping[str, tuple[str, ...]]:
    """The directories `{id}_{name}` in `path` by their id; empty where there is no such directory."""
    return _by_id(path, _changed(path))


def tensors_in(path: str, root: str) -> tuple[dict[int, TensorRef], dict[int, TensorRef]]:
    """Input and output files in `path` by number; `root` is the execution's directory."""
    sides: tuple[dict[int, TensorRef], dict[int, TensorRef]] = ({}, {})
    for name in sorted(_names(path, _changed(path))):
        tensor = _TENSOR.match(name)
        if tensor is not None:
            side = sides[0] if tensor.group(1) == "in" else sides[1]
            side.setdefault(int(tensor.group(2)), TensorRef(os.path.join(path, name), root=root))
    return sides


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return 0


@functools.lru_cache(maxsize=4096)
def _names(path: str, _version: int) -> tuple[str, ...]:
    try:
        return (*names_at(path), *names_in(path))
    except (OSError, ValueError):
        return ()


@functools.lru_cache(maxsize=4096)
def _by_id(path: str, version: int) -> Mapping[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for name in sorted(_names(path, version)):
        node = _NODE.match(name)
        if node is not None and is_directory(os.path.join(path, name)):
            names[node.group(1)] = (*names.get(node.group(1), ()), name)
    return names
