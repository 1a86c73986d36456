"""The topology reports of an ATB dump: which process's are used, and the trees made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import DumpError
from ..tensors.ref import TensorRef
from ..topology.atb_json import ModelFile, ReportedOperation, read_layer, read_model
from ..topology.atb_tree import KnownOperations, TopLevel, build_tree, settle_ids
from ..topology.tree import Tree
from .atb_files import AtbFiles, AtbLayout
from .atb_layers import models_of, wired
from .base import Slot
from .listing import Listing
from .ranks import Worker


class AtbReports:
    """`model/{pid}/*.json` and `layer/{pid}/*.json` of one process; all ranks run the same model.

    `files` are the model reports by first id: prefill, decode, further models that are not compared. Where a
    probe wrote none, they are made of the layer reports. Raises `DumpError` where there is no report,
    `FormatError` for a broken one.
    """

    def __init__(self, layout: AtbLayout, listing: Listing, workers: Sequence[Worker], named: str) -> None:
        self._listing = listing
        self.notes: list[str] = []
        self._directory = self._choose(layout, workers, named)
        self._layers = layout.info / "layer" / self._directory.name
        if self._directory.parent.name != "model":
            self._layers = self._directory
        self._reported = {name.removesuffix(".json") for name in _json(listing, self._layers)}
        self.files = self._made() if self._layers == self._directory else self._read()

    def op_types(self) -> Iterator[str]:
        """Types of all operations at every depth."""
        pending = [op for file in self.files for op in file.operations]
        while pending:
            op = pending.pop()
            yield op.op_type
            pending += op.children

    def ran_in(self, executions: Mapping[str, frozenset[TopLevel]]) -> bool:
        """Whether any operation of the models ran in these token directories."""
        known = {op.op_type for file in self.files for op in file.operations}
        return any(kind in known for tops in executions.values() for _, kind in tops)

    def trees(self, tensors: AtbFiles, worker: str) -> tuple[Tree, ...]:
        """Trees of the first two models; ids and what no report mentions come from the files of `worker`."""
        ran = tensors.executions(worker) if worker else {}
        self.files = self._wired(tensors, worker, ran)
        evidence = KnownOperations(
            frozenset(top for name in self._reported if (top := _top(name))),
            frozenset(top for tops in ran.values() for top in tops),
        )
        ids = [settle_ids(file, evidence) for file in self.files]
        taken = {number for numbers in ids for number in numbers}
        strays = [top for top in evidence.reports | evidence.directories if top[0] not in taken]
        starts = [min(numbers, default=0) for numbers in ids[:2]]
        where: dict[str, Path] = {}
        for token, tops in ran.items():
            for number, kind in tops:
                where.setdefault(f"{number}_{kind}", tensors.data / worker / token)

        def owner(top: TopLevel) -> int:
            return max((index for index, start in enumerate(starts) if start <= top[0]), default=0)

        def entries(path: str) -> Collection[str]:
            execution = where.get(path.partition("/")[0])
            return tensors.names(execution, path) if execution else ()

        return tuple(
            build_tree(file, numbers, [top for top in strays if owner(top) == index], self._layer, entries)
            for index, (file, numbers) in enumerate(zip(self.files[:2], ids))
        )

    def _wired(
        self, tensors: AtbFiles, worker: str, ran: Mapping[str, frozenset[TopLevel]]
    ) -> list[ModelFile]:
        """The models; those made of layer reports with the names of the tensors that operations hand on."""
        if self._layers != self._directory:
            return self.files

        def slots_of(op: ReportedOperation) -> Mapping[Slot, TensorRef]:
            top = (op.last_id or 0, op.op_type)
            token = next((token for token, tops in ran.items() if top in tops), "")
            return tensors.slots(worker, token, f"{top[0]}_{top[1]}") if token else {}

        return [wired(file, slots_of) for file in self.files]

    def _made(self) -> list[ModelFile]:
        layers = [report for name in sorted(self._reported) if (report := self._layer(name)) is not None]
        files = models_of(layers)
        self.notes.append(
            f"no model report: {len(files)} model{'s' * (len(files) > 1)} made of {len(layers)} layer reports"
        )
        return files

    def _layer(self, name: str) -> ReportedOperation | None:
        return read_layer(self._layers / f"{name}.json") if name in self._reported else None

    def _choose(self, layout: AtbLayout, workers: Sequence[Worker], named: str) -> Path:
        """The reports of the named process, else of the first that has any."""
        for part in ("model", "layer", "operation_graph"):
            home = layout.info / part
            held = [name for name in self._listing.directories(home) if _json(self._listing, home / name)]
            if held:
                break
        else:
            raise DumpError(
                f"{layout.root}: is an ATB dump without topology; dump again with --type model tensor"
            )
        by_pid = {name.rpartition("_")[2]: name for name in held}
        wanted = sorted(workers, key=lambda worker: (worker.name != named, worker))
        for worker in wanted:
            if chosen := by_pid.get(str(worker.pid)):
                break
        else:
            chosen = layout.pid if layout.pid in held else held[0]
        if wanted and by_pid.get(str(wanted[0].pid)) != chosen:
            self.notes.append(f"no topology of {wanted[0].name}, that of process {chosen} is used")
        return home / chosen

    def _read(self) -> list[ModelFile]:
        files = [read_model(self._directory / name) for name in _json(self._listing, self._directory)]
        files.sort(key=lambda file: file.first_id)
        if len(files) <= 2:
            return files
        telling = [file for word in ("prefill", "decod") for file in files if word in file.name.lower()]
        chosen = telling if len(telling) == 2 else files[:2]
        others = [file for file in files if file not in chosen]
        self.notes.append(
            f"{len(files)} models; {chosen[0].name} and {chosen[1].name} are compared, "
            f"{', '.join(file.name for file in others)} not"
        )
        return [*chosen, *others]


def _json(listing: Listing, directory: Path) -> list[str]:
    return [name for name in listing.files(directory) if name.endswith(".json")]


def _top(report: str) -> TopLevel | None:
    """`Prefill_layer_2` as `(2, "Prefill_layer")`."""
    kind, _, number = report.rpartition("_")
    return (int(number), kind) if number.isdecimal() else None
