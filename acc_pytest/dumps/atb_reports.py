"""The topology reports of an ATB dump: whose are used, the models in them, and the trees made of these."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import DumpError
from ..tensors.file_bytes import opened
from ..tensors.ref import TensorRef, readable
from ..topology.atb_json import ModelFile, ReportedOperation, read_layer, read_model
from ..topology.atb_tree import KnownOperations, TopLevel, build_tree, settle_ids
from ..topology.tree import Tree
from .atb_files import AtbFiles, AtbLayout, Executions, operations_in
from .base import Slot
from .listing import Listing
from .ranks import Worker


@dataclass(frozen=True, slots=True)
class AtbReports:
    """`model/{pid}/*.json` and `layer/{pid}/*.json` of one process; all ranks run the same model.

    `models` are the model reports by first id: prefill, decode, further models that are not compared. Where
    a probe wrote none, they are made of the layer reports (`from_layers`). `layers` is the directory of layer
    reports and `reported` their names; one is read when it is asked for.
    """

    models: Sequence[ModelFile]
    from_layers: bool
    layers: Path
    reported: frozenset[str]

    def op_types(self) -> set[str]:
        """Types of all operations at every depth."""
        types = set()
        pending = [op for model in self.models for op in model.operations]
        while pending:
            op = pending.pop()
            types.add(op.op_type)
            pending += op.children
        return types

    @property
    def top_level(self) -> frozenset[TopLevel]:
        """The top-level operations that have a layer report."""
        return frozenset(top for name in self.reported if (top := _top(name)))

    def layer(self, name: str) -> ReportedOperation | None:
        """The layer report of a top-level operation by full name, or `None`."""
        return read_layer(self.layers / f"{name}.json") if name in self.reported else None


def read_reports(
    layout: AtbLayout, listing: Listing, workers: Sequence[Worker], named: str, notes: list[str]
) -> AtbReports:
    """The reports of the process `named`, else of the first that has any; `notes` are told of the choice.

    Raises `DumpError` where there is no report, `FormatError` for a broken one.
    """
    directory = _chosen(layout, listing, workers, named, notes)
    from_layers = directory.parent.name != "model"
    layers = directory if from_layers else layout.info / "layer" / directory.name
    reported = frozenset(name.removesuffix(".json") for name in _json(listing, layers))
    if from_layers:
        operations = [read_layer(layers / f"{name}.json") for name in sorted(reported)]
        models = models_of(operations)
        notes.append(
            f"no model report: {len(models)} model{'s' * (len(models) > 1)} "
            f"made of {len(operations)} layer reports"
        )
    else:
        models = [read_model(directory / name) for name in _json(listing, directory)]
        models = _compared_first(sorted(models, key=lambda model: model.first_id), notes)
    return AtbReports(models, from_layers, layers, reported)


def trees_of(reports: AtbReports, files: AtbFiles, worker: str, ran: Executions) -> tuple[Tree, ...]:
    """Trees of the first two models; ids and what no report mentions come from the files of `worker`."""
    where = {f"{number}_{kind}": token for token in reversed([*ran]) for number, kind in ran[token]}

    def slots_of(op: ReportedOperation) -> Mapping[Slot, TensorRef]:
        path = f"{op.last_id or 0}_{op.op_type}"
        return files.slots(worker, where[path], path) if path in where else {}

    def entries(path: str) -> Collection[str]:
        token = where.get(path.partition("/")[0])
        return files.names(worker, token, path) if token else ()

    models = [wired(model, slots_of) for model in reports.models] if reports.from_layers else reports.models
    operations = KnownOperations(reports.top_level, operations_in(ran))
    ids = [settle_ids(model, operations) for model in models]
    claimed = {number for numbers in ids for number in numbers}
    strays = [top for top in operations.reports | operations.directories if top[0] not in claimed]
    starts = [min(numbers, default=0) for numbers in ids[:2]]

    def owner(top: TopLevel) -> int:
        return max((index for index, start in enumerate(starts) if start <= top[0]), default=0)

    return tuple(
        build_tree(model, numbers, [top for top in strays if owner(top) == index], reports.layer, entries)
        for index, (model, numbers) in enumerate(zip(models[:2], ids))
    )


def _chosen(
    layout: AtbLayout, listing: Listing, workers: Sequence[Worker], named: str, notes: list[str]
) -> Path:
    """The directory of the reports that are used."""
    for kind in ("model", "layer", "operation_graph"):
        home = layout.info / kind
        names = [name for name in listing.directories(home) if _json(listing, home / name)]
        if names:
            break
    else:
        raise DumpError(
            f"{layout.root}: is an ATB dump without topology; dump again with --type model tensor"
        )
    by_pid = {name.rpartition("_")[2]: name for name in names}
    preferred = sorted(workers, key=lambda worker: (worker.name != named, worker))
    theirs = [name for worker in preferred if (name := by_pid.get(str(worker.pid)))]
    chosen = theirs[0] if theirs else layout.pid if layout.pid in names else names[0]
    if preferred and by_pid.get(str(preferred[0].pid)) != chosen:
        notes.append(f"no topology of {preferred[0].name}, that of process {chosen} is used")
    return home / chosen


def _compared_first(models: list[ModelFile], notes: list[str]) -> list[ModelFile]:
    """The two models that are compared before all others, which `notes` are told of."""
    if len(models) <= 2:
        return models
    telling = [model for word in ("prefill", "decod") for model in models if word in model.name.lower()]
    chosen = telling if len(telling) == 2 else models[:2]
    skipped = [model for model in models if model not in chosen]
    notes.append(
        f"{len(models)} models; {chosen[0].name} and {chosen[1].name} are compared, "
        f"{', '.join(model.name for model in skipped)} not"
    )
    return [*chosen, *skipped]


def _json(listing: Listing, directory: Path) -> list[str]:
    return [name for name in listing.files(directory) if name.endswith(".json")]


def _top(report: str) -> TopLevel | None:
    """`Prefill_layer_2` as `(2, "Prefill_layer")`."""
    kind, _, number = report.rpartition("_")
    return (int(number), kind) if number.isdecimal() else None


SlotsOf = Callable[[ReportedOperation], Mapping[Slot, TensorRef]]
_PHASE = re.compile(r"prefill|decod(?:er|e|ing)?|encoder", re.IGNORECASE)
"""Words in the types of layers that differ between two models of one network."""


def models_of(layers: Sequence[ReportedOperation]) -> list[ModelFile]:
    """One or two models of top-level operations with ids in their names."""
    ordered = sorted(layers, key=lambda layer: layer.last_id or 0)
    start = _second_model(ordered)
    groups = [ordered[:start], ordered[start:]] if start else [ordered]
    return [ModelFile(f"model{number}", "", tuple(group)) for number, group in enumerate(groups)]


def _second_model(layers: Sequence[ReportedOperation]) -> int:
    """The place where the types of operations begin again, a layer of several operations among them; 0 for
    nowhere."""
    kinds = [_PHASE.sub("", layer.op_type) for layer in layers]
    best, longest = 0, 0
    for start in range(1, len(layers)):
        length = 0
        while start + length < len(layers) and length < start and kinds[length] == kinds[start + length]:
            length += 1
        again = any(layer.children for layer in layers[:length])
        if again and length > longest and kinds[start - 1] != kinds[start]:
            best, longest = start, length
    return best


def wired(model: ModelFile, slots_of: SlotsOf) -> ModelFile:
    """The model with inputs named as the earlier output that holds the same bytes."""
    producers: dict[tuple[object, ...], dict[str, str]] = {}
    operations = []
    for op in model.operations:
        slots = slots_of(op)
        names = {}
        for index, name in enumerate(op.inputs):
            ref = slots.get(Slot("input", (index,)))
            shape = _shape(ref)
            if ref is not None and shape in producers and (earlier := producers[shape].get(_digest(ref))):
                names[name] = earlier
        op = op.renamed(names)
        operations.append(op)
        for index, name in enumerate(op.outputs):
            ref = slots.get(Slot("output", (index,)))
            if ref is not None and (shape := _shape(ref)):
                producers.setdefault(shape, {})[_digest(ref)] = name
    return replace(model, operations=tuple(operations))


def _shape(ref: TensorRef | None) -> tuple[object, ...]:
    """Dtype and shape of a tensor whose numbers are there; empty for others."""
    header = readable(ref)
    return (header.dtype, *header.shape) if header is not None and header.payload == "data" else ()


def _digest(ref: TensorRef) -> str:
    header = ref.header()
    with opened(ref.path) as (file, _):
        file.seek(header.offset)
        return hashlib.blake2b(file.read(header.nbytes)).hexdigest()
