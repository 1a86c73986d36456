"""The process directories of an ATB dump: executions, and the tensors of an operation.

`{device}_{pid}/{N}/{id}_{Op}/{index}_{Op}/…/{before,after}/{in,out}tensor{i}[_{name}].bin`, and since
2025-11 `{device}_{pid}/{N}/statistic.csv`. Directories of kernels lie among those of operations; nobody
asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..tensors.ref import TensorRef
from ..topology.atb_tree import TopLevel, operation_ids, top_level
from .base import Slot
from .listing import Listing
from .ranks import Worker, atb_worker
from .statistics_rows import ATB_FILE, AtbRows, atb_rows

Executions = Mapping[str, frozenset[TopLevel]]
"""Token directories of a process in numeric order, each with the top-level operations in it."""

_TENSOR = re.compile(r"^(in|out)tensor(\d+)(?:_(.+))?\.bin$")


@dataclass(frozen=True, slots=True)
class AtbLayout:
    """The place of an ATB dump: `data` holds the process directories, `info` has `model` and `layer` in it.

    `worker`, `pid` and `token` are what the user's path named of it, empty where it stopped above.
    """

    root: Path
    data: Path
    info: Path
    worker: str = ""
    pid: str = ""
    token: str = ""


def operations_in(executions: Executions) -> frozenset[TopLevel]:
    """The top-level operations of all executions together."""
    return frozenset(top for tops in executions.values() for top in tops)


class AtbFiles:
    """The process directories below `data`, listed when asked for and remembered."""

    def __init__(self, data: Path, listing: Listing) -> None:
        self._data = data
        self._listing = listing
        self._rows: dict[str, AtbRows] = {}

    def processes(self) -> dict[Worker, Executions]:
        """Process directories in numeric order, and what ran in each."""
        names = self._listing.directories(self._data)
        workers = sorted(worker for name in names if (worker := atb_worker(name)))
        return {worker: self._executions(f"{self._data}/{worker.name}") for worker in workers}

    def _executions(self, home: str) -> Executions:
        tokens = [name for name in self._listing.directories(home) if name.isdecimal()]
        return {token: self._top_level(f"{home}/{token}") for token in tokens}

    def _top_level(self, execution: str) -> frozenset[TopLevel]:
        names = self._listing.directories(execution)
        tops = frozenset(top for name in names if (top := top_level(name)))
        # Statistics without tensors leave directories only where parameters were written.
        if any(self._listing.directories(f"{execution}/{name}") for name in names):
            return tops
        return tops | self._statistics(execution).top_level

    def names(self, worker: str, token: str, path: str) -> frozenset[str]:
        """Everything in the directory of the operation at `path`; empty where there is none."""
        home = f"{self._data}/{worker}/{token}/{path}"
        return frozenset((*self._listing.directories(home), *self._listing.files(home)))

    def slots(self, worker: str, token: str, path: str) -> Mapping[Slot, TensorRef]:
        """Tensors of the operation at `path`: outputs as after it ran, inputs as before it, else as after.

        The root of a model (an empty path) has none.
        An output saved before the run (`-time 0` and `2`) holds whatever the memory held and is no tensor
        of the operation. An operation without files of its own may have rows in `statistic.csv`.
        """
        if not path:
            return {}
        # Plain strings: this runs once per operation, step and rank, and `Path` costs more than the listing.
        execution = f"{self._data}/{worker}/{token}"
        slots: dict[Slot, TensorRef] = {}
        for directory, kinds in (("after", "in out"), ("before", "in")):
            home = f"{execution}/{path}/{directory}"
            for name in self._listing.files(home):
                tensor = _TENSOR.match(name)
                if tensor is not None and tensor.group(1) in kinds:
                    slot = Slot("input" if tensor.group(1) == "in" else "output", (int(tensor.group(2)),))
                    slots[slot] = TensorRef(f"{home}/{name}", root=execution)
        if not slots:
            return self._statistics(execution).slots.get(operation_ids(path), {})
        return {slot: slots[slot] for slot in sorted(slots, key=Slot.place)}

    def stale_outputs(self, worker: str, token: str, path: str) -> bool:
        """Whether an operation's outputs were saved before it ran and not after."""
        home = f"{self._data}/{worker}/{token}/{path}"
        after, before = self._listing.files(f"{home}/after"), self._listing.files(f"{home}/before")
        return not after and any(name.startswith("out") and _TENSOR.match(name) for name in before)

    def _statistics(self, execution: str) -> AtbRows:
        if execution not in self._rows:
            is_listed = ATB_FILE in self._listing.files(execution)
            self._rows[execution] = (
                atb_rows(Path(execution, ATB_FILE)) if is_listed else AtbRows({}, frozenset())
            )
        return self._rows[execution]
