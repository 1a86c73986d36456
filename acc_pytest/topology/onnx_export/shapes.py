"""Element types and shapes of a graph's tensors, from what lies in the same dump as its report.

First the operation CSVs, then the headers of dumped tensors, then `statistic.csv`. Of several executions
the lowest that knows the operation counts: it is the prefill, or the warm-up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import AccError, FormatError
from ...tensors.dtypes import DType, by_name
from ...tensors.file_bytes import opened
from ...tensors.header import TensorHeader
from ...tensors.location import names_at
from ...tensors.ref import TensorRef, readable
from ...tensors.statistics import statistics_in
from ..atb import ReportedOperation

REPORTS = frozenset({"model", "layer", "operation_graph"})
"""Directories that hold a directory of reports per process."""


class Shapes:
    """Types of the tensors of operations, by full operation name."""

    def __init__(self, tables: Sequence[Table], dumped: DumpedTensors | None) -> None:
        self._tables = tables
        self._dumped = dumped

    def of(self, op: ReportedOperation) -> tuple[Types, Types]:
        """Types of the operation's inputs and outputs, as long as its lists of names.

        An operation that runs others tells as its tensors what they read first and wrote last.
        """
        inputs, outputs = self.direct(op)
        if op.children and None in (*inputs, *outputs):
            reads, writes = self._inner(op)
            inputs = tuple(have or reads.get(name) for have, name in zip(inputs, op.inputs))
            outputs = tuple(have or writes.get(name) for have, name in zip(outputs, op.outputs))
        return inputs, outputs

    def direct(self, op: ReportedOperation) -> tuple[Types, Types]:
        """Types of an operation's inputs and outputs, without those that the operations inside have."""
        inputs: Types = (None,) * len(op.inputs)
        outputs: Types = (None,) * len(op.outputs)
        for source_inputs, source_outputs in self._sources(op):
            inputs, outputs = _filled(inputs, source_inputs), _filled(outputs, source_outputs)
            if None not in (*inputs, *outputs):
                break
        return inputs, outputs

    def _inner(self, op: ReportedOperation) -> tuple[dict[str, TensorType], dict[str, TensorType]]:
        reads: dict[str, TensorType] = {}
        writes: dict[str, TensorType] = {}
        for child in op.children:
            inputs, outputs = self.of(child)
            for name, kind in zip(child.inputs, inputs):
                if kind is not None and name not in writes:
                    reads.setdefault(name, kind)
            writes.update((name, kind) for name, kind in zip(child.outputs, outputs) if kind is not None)
        return reads, writes

    def _sources(self, op: ReportedOperation) -> Iterator[tuple[Types, Types]]:
        for table in self._tables:
            if op.name in table:
                yield table[op.name]
                break
        if self._dumped is not None:
            yield from self._dumped.of(op)


def shapes_of_dump(report: Path, csv_file: Path | None, cache: MutableMapping[str, Table]) -> Shapes:
    """The types in the dump that holds `report`; of CSVs only `csv_file` where that is given.

    A report that lies alone, outside a dump, has nothing beside it. `cache` keeps what was read of CSVs,
    by path. Raises `FormatError` for a CSV that is none.
    """
    report = Path(os.path.abspath(report))
    process, reports = report.parent, report.parent.parent
    pid = process.name.rpartition("_")[2]
    inside = reports.name in REPORTS
    files = csv_files(reports.parent / "operation_io_tensors" / pid) if inside else []
    tables = []
    for path in files if csv_file is None else [csv_file]:
        if str(path) not in cache:
            cache[str(path)] = read_operation_csv(path)
        tables.append(cache[str(path)])
    return Shapes(tables, DumpedTensors(reports.parent, pid) if inside else None)


def _filled(have: Types, source: Types) -> Types:
    """`have` with its gaps filled; a longer list is one of another graph."""
    if len(source) > len(have):
        return have
    padded = (*source, *(None,) * (len(have) - len(source)))
    return tuple(kind or fallback for kind, fallback in zip(have, padded))


# Types of an operation's tensors from what was dumped of it: headers of `.bin` files, `statistic.csv`.


_WORKER = re.compile(r"-?\d+_(\d+)")
_IDS = re.compile(r"(?:_\d{1,9})+$")
_TENSOR = re.compile(r"(in|out)tensor(\d{1,4})(?:_.+)?\.bin")
_PLACES = (("before", "in"), ("after", "out"), ("after", "in"), ("before", "out"))
_STATISTICS = "statistic.csv"


class DumpedTensors:
    """The executions `{device}_{pid}/{N}` of one process, lowest N first; directories are read once.

    `info` is the directory that holds the reports: since 2025-11 the tensors lie beside it, in `data`.
    """

    def __init__(self, info: Path, pid: str) -> None:
        self._listed: dict[Path, Sequence[str]] = {}
        self._types: dict[Path, tuple[Types, Types]] = {}
        self._statistics: dict[Path, dict[str, tuple[Types, Types]]] = {}
        data = info.parent / "data" if info.name == "info" else info / "tensors"
        workers = [
            name for name in self._names(data) if (match := _WORKER.fullmatch(name)) and match[1] == pid
        ]
        runs = [data / worker / name for worker in workers for name in self._names(data / worker)]
        self._executions = sorted(
            (run for run in runs if run.name.isdecimal()), key=lambda run: (int(run.name), run.parent.name)
        )

    def of(self, op: ReportedOperation) -> Iterator[tuple[Types, Types]]:
        """The types in the lowest execution that has any of the operation, source by source."""
        match = _IDS.search(op.name)
        if match is None:
            return
        ids = match[0].strip("_").split("_")
        for execution in self._executions:
            has_types = False
            for inputs, outputs in self._sources(execution, ids, op.op_type):
                has_types = has_types or any((*inputs, *outputs))
                yield inputs, outputs
            if has_types:
                return

    def _sources(self, execution: Path, ids: Sequence[str], op_type: str) -> Iterator[tuple[Types, Types]]:
        directory = self._directory(execution, ids, op_type)
        if directory is not None:
            if directory not in self._types:
                self._types[directory] = self._headers(directory, execution)
            yield self._types[directory]
        if _STATISTICS in self._names(execution):
            if execution not in self._statistics:
                self._statistics[execution] = _statistics(execution / _STATISTICS)
            yield self._statistics[execution].get("_".join(ids), ((), ()))

    def _directory(self, execution: Path, ids: Sequence[str], op_type: str) -> Path | None:
        """`{id}_{name}/{id}_{name}/...` of an operation.

        Wrappers lie under another name than they report, so the ids decide. Those of top-level operations
        may be off by a stray one, so there the name must agree as well.
        """
        folder = execution
        for number in ids:
            names = [name for name in self._names(folder) if name.partition("_")[0] == number]
            exact = f"{number}_{op_type}"
            if not names or (len(ids) == 1 and exact not in names):
                return None
            folder /= exact if exact in names else names[0]
        return folder

    def _headers(self, directory: Path, execution: Path) -> tuple[Types, Types]:
        types: dict[str, dict[int, TensorType]] = {"in": {}, "out": {}}
        for place, kind in _PLACES:
            for name in self._names(directory / place):
                tensor = _TENSOR.fullmatch(name)
                if tensor is not None and tensor[1] == kind and int(tensor[2]) not in types[kind]:
                    ref = TensorRef(str(directory / place / name), root=str(execution))
                    header = readable(ref)  # a broken file tells no shape; another place or execution may
                    if header is not None:
                        types[kind][int(tensor[2])] = _type(header)
        return _in_order(types["in"]), _in_order(types["out"])

    def _names(self, directory: Path) -> Sequence[str]:
        """The names in a directory, sorted; none for one that is absent or may not be read."""
        if directory not in self._listed:
            try:
                self._listed[directory] = sorted(names_at(str(directory)))
            except OSError:
                self._listed[directory] = ()
        return self._listed[directory]


def _statistics(path: Path) -> dict[str, tuple[Types, Types]]:
    """Inputs and outputs by the ids of an operation; nothing for a broken file."""
    by_operation: dict[str, dict[str, dict[int, TensorType]]] = {}
    try:
        members = statistics_in(str(path))
    except AccError:
        return {}
    for member, header in members.items():
        op, kind, index = member.partition("#")[0].split("/", 2)
        number = index.partition("_")[0]
        if kind in ("input", "output") and number.isdecimal() and len(number) < 5:
            slots = by_operation.setdefault(op, {"input": {}, "output": {}})[kind]
            slots.setdefault(int(number), _type(header))
    return {op: (_in_order(slots["input"]), _in_order(slots["output"])) for op, slots in by_operation.items()}


def _type(header: TensorHeader) -> TensorType:
    return TensorType(header.dtype, header.shape)


def _in_order(types: dict[int, TensorType]) -> Types:
    return tuple(types.get(index) for index in range(max(types, default=-1) + 1))


# The operation CSV of a dump: element types and shapes of what every operation read and wrote.
#
# `operation_io_tensors/{pid}/operation_tensors_{N}.csv`, columns separated by `|`, the tensors in a column
# by `;`, the sizes of a tensor by `,`. Nothing is quoted. The first builds (January 2024) end each list with
# a `;` of its own and fill the rest of the row with tabs; until March 2024 the file paths are missing. Only
# the columns up to `OutShape` are used, which all builds have.


_NUMBER = re.compile(r"(\d+)\.csv$")
_NEEDED = ("OpName", "OpParam", "InNum", "InDType", "InShape", "OutNum", "OutDType", "OutShape")
_SIZE = re.compile(r"\d{1,18}")
_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a tensor."""

    dtype: DType
    shape: tuple[int, ...]


Types = tuple["TensorType | None", ...]
"""Types of the inputs or the outputs of an operation, in order; `None` where nothing is known."""
Table = Mapping[str, tuple[Types, Types]]
"""Inputs and outputs by full operation name."""


def csv_files(directory: Path) -> list[Path]:
    """The operation CSVs of a process, lowest execution first; empty where there is no such directory."""
    try:
        names = [name for name in names_at(str(directory)) if name.startswith("operation")]
    except OSError:
        return []
    files = [directory / name for name in names if name.endswith(".csv") and _NUMBER.search(name)]
    return sorted(files, key=lambda path: (int(_NUMBER.findall(path.name)[0]), path.name))


def read_operation_csv(path: Path) -> Table:
    """The first row of every operation. Raises `FormatError` for a file without the columns.

    A row that is cut (the run was killed) or holds something else than sizes tells nothing; the row
    of another execution may.
    """
    with opened(str(path)) as (file, size):
        lines = file.read(size).decode("utf-8", "surrogateescape").split("\n")
    columns = [name.strip() for name in lines[0].split("|")]
    missing = [name for name in _NEEDED if name not in columns]
    if missing and lines != [""]:
        raise FormatError(
            f"{path}: is not an operation CSV of an ATB dump: its first line has no {', '.join(missing)}"
        )
    table: dict[str, tuple[Types, Types]] = {}
    for line in lines[1:]:
        row = _row(line, columns)
        if row and row["OpName"] not in table:
            inputs = _types(row["InNum"], row["InDType"], row["InShape"])
            outputs = _types(row["OutNum"], row["OutDType"], row["OutShape"])
            if inputs is not None and outputs is not None:
                table[row["OpName"]] = inputs, outputs
    return table


def _row(line: str, columns: list[str]) -> dict[str, str]:
    """The needed cells by name; empty for a row that lacks some."""
    at = columns.index("OpParam")
    *cells, tail = line.split("|", at)
    if len(cells) == at and tail.startswith("{"):
        # JSON may hold the separator: only its own grammar says where it ends.
        with contextlib.suppress(ValueError, RecursionError):
            _, end = _JSON.raw_decode(tail)
            cells, tail = [*cells, tail[:end]], tail[end + 1 :]
    named = dict(zip(columns, [*cells, *tail.split("|")]))
    if any(name not in named for name in _NEEDED):
        return {}
    return {name: named[name].strip() for name in _NEEDED}


def _types(number: str, dtypes: str, shapes: str) -> Types | None:
    if not _SIZE.fullmatch(number):
        return None
    count = int(number)
    names, dims = _items(dtypes, count), _items(shapes, count)
    if len(names) != count or len(dims) != count:
        return None
    types = [
        TensorType(by_name(name), shape)
        for name, text in zip(names, dims)
        if (shape := _shape(text)) is not None
    ]
    return tuple(types) if len(types) == count else None


def _items(text: str, count: int) -> list[str]:
    items = text.split(";") if text or count else []
    return items[:-1] if len(items) == count + 1 and not items[-1] else items


def _shape(text: str) -> tuple[int, ...] | None:
    """Sizes from `7,32`; nothing at all is a scalar."""
    sizes = [size.strip() for size in text.split(",")] if text.strip() else []
    return tuple(map(int, sizes)) if all(_SIZE.fullmatch(size) for size in sizes) else None
