"""Element types and shapes of a graph's tensors, from what lies in the same dump as its report.

First the operation CSVs, then the headers of dumped tensors, then `statistic.csv`. Of several executions
the lowest that knows the operation counts: it is the prefill, or the warm-up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

from ..atb_json import ReportedOperation
from .dumped import DumpedTensors
from .operation_csv import Table, TensorType, Types, csv_files, read_operation_csv

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
