"""Types of an operation's tensors from what was dumped of it: headers of `.bin` files, `statistic.csv`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import AccError
from ...tensors.header import TensorHeader
from ...tensors.ref import TensorRef, readable
from ...tensors.statistics import statistics_in
from ...tensors.stores.place import names_at
from ..atb_json import ReportedOperation
from .operation_csv import TensorType, Types

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
