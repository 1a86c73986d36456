"""Element types and shapes of a graph's tensors, from what lies in the same dump as its report.

First the operation CSVs, then the headers of dumped tensors, then `statistic.csv`. Of several executions
the lowest that knows the operation counts: it is the prefill, or the warm-up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

from ...errors import AccError
from ...tensors.ref import TensorHeader, TensorRef
from ...tensors.statistics import statistics_in
from ..atb_json import Operation
from .operation_csv import Table, TensorType, Types, csv_files, read_operation_csv

REPORTS = frozenset({"model", "layer", "operation_graph"})
"""Directories that hold a directory of reports per process."""

_WORKER = re.compile(r"-?\d+_(\d+)")
_IDS = re.compile(r"(?:_\d{1,9})+$")
_TENSOR = re.compile(r"(in|out)tensor(\d{1,4})(?:_.+)?\.bin")
_PLACES = (("before", "in"), ("after", "out"), ("after", "in"), ("before", "out"))
_STATISTICS = "statistic.csv"


class Shapes:
    """What is known of the tensors of operations, found by full operation name."""

    def __init__(self, tables: Sequence[Table], executions: Sequence[Path]) -> None:
        self._tables = tables
        self._executions = executions

    def of(self, op: Operation) -> tuple[Types, Types]:
        """Types of the operation's inputs and outputs, as long as its lists of names.

        An operation that runs others tells as its tensors what they read first and wrote last.
        """
        inputs, outputs = self.own(op)
        if op.children and None in (*inputs, *outputs):
            read, written = self._below(op)
            inputs = tuple(have or read.get(name) for have, name in zip(inputs, op.inputs))
            outputs = tuple(have or written.get(name) for have, name in zip(outputs, op.outputs))
        return inputs, outputs

    def _below(self, op: Operation) -> tuple[dict[str, TensorType], dict[str, TensorType]]:
        read: dict[str, TensorType] = {}
        written: dict[str, TensorType] = {}
        for child in op.children:
            inputs, outputs = self.of(child)
            for name, found in zip(child.inputs, inputs):
                if found is not None and name not in written:
                    read.setdefault(name, found)
            written.update((name, found) for name, found in zip(child.outputs, outputs) if found is not None)
        return read, written

    def own(self, op: Operation) -> tuple[Types, Types]:
        """As `of`, without what the operations inside know."""
        inputs: Types = (None,) * len(op.inputs)
        outputs: Types = (None,) * len(op.outputs)
        for more_inputs, more_outputs in self._sources(op):
            inputs, outputs = _filled(inputs, more_inputs), _filled(outputs, more_outputs)
            if None not in (*inputs, *outputs):
                break
        return inputs, outputs

    def _sources(self, op: Operation) -> Iterator[tuple[Types, Types]]:
        for table in self._tables:
            if op.name in table:
                yield table[op.name]
                break
        for execution in self._executions:
            yield from _dumped(execution, op)


def shapes_beside(report: Path, csv_file: Path | None, cache: MutableMapping[str, Table]) -> Shapes:
    """What the dump that holds `report` tells; of CSVs only `csv_file` where that is given.

    A report that lies alone, outside a dump, has nothing beside it. `cache` keeps what was read of CSVs,
    by path. Raises `FormatError` for a CSV that is none.
    """
    report = Path(os.path.abspath(report))
    process, part = report.parent, report.parent.parent
    pid = process.name.rpartition("_")[2]
    inside = part.name in REPORTS
    files = csv_files(part.parent / "operation_io_tensors" / pid) if inside else []
    tables = []
    for path in files if csv_file is None else [csv_file]:
        if str(path) not in cache:
            cache[str(path)] = read_operation_csv(path)
        tables.append(cache[str(path)])
    return Shapes(tables, _executions(part.parent, pid) if inside else [])


def _executions(info: Path, pid: str) -> list[Path]:
    """Directories `{device}_{pid}/{N}` with tensors, lowest N first."""
    data = info.parent / "data" if info.name == "info" else info / "tensors"
    workers = [name for name in _names(data) if (found := _WORKER.fullmatch(name)) and found[1] == pid]
    runs = [data / worker / name for worker in workers for name in _names(data / worker) if name.isdecimal()]
    return sorted(runs, key=lambda run: (int(run.name), run.parent.name))


def _dumped(execution: Path, op: Operation) -> Iterator[tuple[Types, Types]]:
    """What one execution holds of an operation: its tensors' headers, its statistics."""
    found = _IDS.search(op.name)
    if found is None:
        return
    ids = found[0].strip("_").split("_")
    directory = _directory(execution, ids, op.op_type)
    if directory is not None:
        yield _headers(directory, execution)
    if _STATISTICS in _names(execution):
        yield _statistics(execution / _STATISTICS, "_".join(ids))


def _directory(execution: Path, ids: Sequence[str], op_type: str) -> Path | None:
    """`{id}_{name}/{id}_{name}/...` of an operation. Wrappers lie under another name than they report, but
    ids of top-level operations may be off by a stray one, so there the name must agree."""
    here = execution
    for number in ids:
        names = [name for name in _names(here) if name.partition("_")[0] == number]
        exact = f"{number}_{op_type}"
        if not names or (len(ids) == 1 and exact not in names):
            return None
        here /= exact if exact in names else names[0]
    return here


def _headers(directory: Path, execution: Path) -> tuple[Types, Types]:
    found: dict[str, dict[int, TensorType]] = {"in": {}, "out": {}}
    for place, kind in _PLACES:
        for name in _names(directory / place):
            tensor = _TENSOR.fullmatch(name)
            if tensor is not None and tensor[1] == kind and int(tensor[2]) not in found[kind]:
                ref = TensorRef(str(directory / place / name), root=str(execution))
                try:
                    found[kind][int(tensor[2])] = _type(ref.header())
                except AccError:
                    continue  # a broken file tells no shape; another execution may
    return _in_order(found["in"]), _in_order(found["out"])


def _statistics(path: Path, ids: str) -> tuple[Types, Types]:
    found: dict[str, dict[int, TensorType]] = {"input": {}, "output": {}}
    try:
        members = statistics_in(str(path))
    except AccError:
        return (), ()
    for member, header in members.items():
        op, kind, index = member.partition("#")[0].split("/", 2)
        number = index.partition("_")[0]
        if op == ids and kind in found and number.isdecimal() and len(number) < 5:
            found[kind].setdefault(int(number), _type(header))
    return _in_order(found["input"]), _in_order(found["output"])


def _type(header: TensorHeader) -> TensorType:
    return TensorType(header.dtype, header.shape)


def _in_order(found: dict[int, TensorType]) -> Types:
    return tuple(found.get(index) for index in range(max(found, default=-1) + 1))


def _filled(have: Types, more: Types) -> Types:
    """`have` with its gaps filled; a list of another length (of CSVs) may be of another graph."""
    if len(more) > len(have):
        return have
    padded = (*more, *(None,) * (len(have) - len(more)))
    return tuple(mine or other for mine, other in zip(have, padded))


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
