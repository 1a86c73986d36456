"""What lies in the process directories of an ATB dump: executions, and the tensors of an operation.

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

_TENSOR = re.compile(r"^(in|out)tensor(\d+)(?:_(.+))?\.bin$")


@dataclass(frozen=True, slots=True)
class AtbLayout:
    """Where an ATB dump lies: `data` holds the process directories, `info` has `model` and `layer` in it.

    `worker`, `pid` and `token` are what the user's path named of it, empty where it stopped above.
    """

    root: Path
    data: Path
    info: Path
    worker: str = ""
    pid: str = ""
    token: str = ""


class AtbFiles:
    """The process directories below `data`, listed when asked for and remembered."""

    def __init__(self, data: Path, listing: Listing) -> None:
        self.data = data
        self.listing = listing
        self._rows: dict[Path, AtbRows] = {}
        self._executions: dict[str, dict[str, frozenset[TopLevel]]] = {}

    def workers(self) -> tuple[list[Worker], list[str]]:
        """Process directories in numeric order, and the names of directories that are none."""
        names = self.listing.directories(self.data)
        workers = sorted(worker for name in names if (worker := atb_worker(name)))
        return workers, [name for name in names if atb_worker(name) is None]

    def executions(self, worker: str) -> Mapping[str, frozenset[TopLevel]]:
        """Token directories of a process in numeric order, each with the top-level operations in it."""
        if worker not in self._executions:
            home = self.data / worker
            tokens = [name for name in self.listing.directories(home) if name.isdecimal()]
            self._executions[worker] = {token: self._top_level(home / token) for token in tokens}
        return self._executions[worker]

    def _top_level(self, execution: Path) -> frozenset[TopLevel]:
        names = self.listing.directories(execution)
        tops = frozenset(top for name in names if (top := top_level(name)))
        # Statistics without tensors leave directories only where parameters were written.
        if any(self.listing.directories(execution / name) for name in names):
            return tops
        return tops | self._statistics(execution).top_level

    def names(self, execution: Path, path: str) -> frozenset[str]:
        """Everything in the directory of the operation at `path`; empty where there is none."""
        home = execution / path
        return frozenset((*self.listing.directories(home), *self.listing.files(home)))

    def slots(self, worker: str, token: str, path: str) -> Mapping[Slot, TensorRef]:
        """Tensors of the operation at `path`: outputs as after it ran, inputs as before it, else as after.

        An output saved before the run (`-time 0` and `2`) holds whatever the memory held and is no tensor
        of the operation. An operation without files of its own may have rows in `statistic.csv`.
        """
        # Plain strings: this runs once per operation, step and rank, and `Path` costs more than the listing.
        execution = f"{self.data}/{worker}/{token}"
        slots: dict[Slot, TensorRef] = {}
        for directory, kinds in (("after", "in out"), ("before", "in")):
            home = f"{execution}/{path}/{directory}"
            for name in self.listing.files(home):
                tensor = _TENSOR.match(name)
                if tensor is not None and tensor.group(1) in kinds:
                    slot = Slot("input" if tensor.group(1) == "in" else "output", (int(tensor.group(2)),))
                    slots[slot] = TensorRef(f"{home}/{name}", root=execution)
        if not slots:
            return self._statistics(Path(execution)).slots.get(operation_ids(path), {})
        return dict(sorted(slots.items()))

    def stale_outputs(self, worker: str, token: str, path: str) -> bool:
        """Whether an operation's outputs were saved before it ran and not after."""
        home = f"{self.data}/{worker}/{token}/{path}"
        after, before = self.listing.files(f"{home}/after"), self.listing.files(f"{home}/before")
        return not after and any(name.startswith("out") and _TENSOR.match(name) for name in before)

    def _statistics(self, execution: Path) -> AtbRows:
        if execution not in self._rows:
            known = ATB_FILE in self.listing.files(execution)
            self._rows[execution] = atb_rows(execution / ATB_FILE) if known else AtbRows({}, frozenset())
        return self._rows[execution]
