"""Dumps of the ATB probe, of every era: `ait_dump*` and `msit_dump*` with `tensors`, `model` and `layer`, and
`atb_dump_data` with `data` and `info`.

The number of a token directory counts executions of an operation, so which step it is must be decided
(`token_policy`). A dump usually has one model for the prefill and one for decoding.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.reason import Reason
from ..errors import DumpError
from ..tensors.file_bytes import opened
from ..tensors.location import is_directory
from ..tensors.ref import TensorRef, readable
from ..topology.atb import (
    KnownOperations,
    ModelFile,
    ReportedOperation,
    TopLevel,
    build_tree,
    joined,
    operation_ids,
    read_layer,
    read_model,
    settle_ids,
    top_level,
)
from ..topology.tree import Node, Tree
from .base import (
    Dump,
    DumpLayout,
    Listing,
    Rank,
    RankProcess,
    Slot,
    Step,
    StepLabel,
    Worker,
    atb_worker,
    select,
    stable_name,
)
from .single import tensor_files
from .statistics_rows import ATB_FILE, AtbRows, atb_rows
from .token_policy import WARMUP, Facts, TokenEvidence, decide, gather

COMMUNICATION = re.compile(r"AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|LinearParallel")
"""Names of operators that compute from the tensors of all ranks."""
_STALE = "outputs saved before the operations ran (-time 0) hold stale memory and are not compared"
_FURTHEST_SHIFT = 8
"""Largest difference of the base ids of two ranks of one run."""


class AtbDump(Dump):
    """An ATB dump; made by `open_atb`.

    A dump without any tensor opens with its models and no steps, and says so in `notes`.
    """

    kind = "atb"
    of_a_model = True

    def __init__(
        self,
        layout: AtbLayout,
        files: AtbFiles,
        shifts: Mapping[str, int],
        models: Sequence[Tree],
        steps: Sequence[Step],
        notes: Sequence[str],
    ) -> None:
        """`shifts` says of each rank, by name, how far its base ids are from those of the trees."""
        self.root = layout.root
        self.name = stable_name(layout.root.name, "atb_dump")
        self.forced = bool(layout.token)
        self.ranks = tuple(Rank(index, name) for index, name in enumerate(shifts))
        self.models = tuple(models)
        self.steps = tuple(steps)
        self.notes = tuple(notes)
        self._files = files
        self._shifts = shifts
        self._dumped_in: dict[Tree, set[str]] = defaultdict(set)

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        """See `Dump.tensors`. Inputs are those before execution, outputs those after, else the other way."""
        shift = self._shifts[rank.name]
        top, slash, inner = node.path.partition("/")
        parsed = top_level(top) if shift else None
        path = f"{parsed[0] + shift}_{parsed[1]}{slash}{inner}" if parsed else node.path
        if _STALE not in self.notes and self._files.stale_outputs(rank.name, step.directory, path):
            self.notes += (_STALE,)
        return self._files.slots(rank.name, step.directory, path)

    def absent(self, step: Step, rank: Rank) -> Mapping[str, Sequence[str]]:
        """The outputs that the topology gives an operator, where it was dumped without them though others of
        the step have theirs, or in another execution only."""
        lacking, has_outputs = self._lacking[step, rank]
        elsewhere = self._dumped_in[step.tree]
        return {path: files for path, files in lacking.items() if path in elsewhere} if has_outputs else {}

    @functools.cached_property
    def _lacking(self) -> Mapping[tuple[Step, Rank], tuple[Mapping[str, Sequence[str]], bool]]:
        """By step and rank the outputs of operators that have no file, and whether any have one."""
        by_step = {}
        for step, rank in itertools.product(self.steps, self.ranks):
            lacking, has_outputs = {}, False
            for node in step.tree.walk():
                slots = self.tensors(step, rank, node)
                if slots:
                    self._dumped_in[step.tree].add(node.path)
                indices = {slot.index[0] for slot, ref in slots.items() if slot.kind == "output"}
                has_outputs = has_outputs or bool(indices)
                if not any(ref.member for ref in slots.values()) and len(indices) < len(node.outputs):
                    names = (f"outtensor{i}.bin" for i in range(len(node.outputs)) if i not in indices)
                    lacking[node.path] = tuple(names)
            by_step[step, rank] = lacking, has_outputs
        return by_step


def open_atb(layout: AtbLayout, listing: Listing, *, token_policy: str, golden: Dump | None) -> AtbDump:
    """List the token directories and read the topology; of tensors nothing is read but token ids.

    Raises what `open_dump` raises.
    """
    files = AtbFiles(layout.data, listing)
    processes = files.processes()
    strange = [name for name in listing.directories(layout.data) if not atb_worker(name)]
    notes: list[str] = (
        [Reason("left out, not named {}: {}", "{device}_{pid}", ", ".join(strange))] if strange else []
    )
    # The process directory that the user's path means, empty where it means none.
    pid = layout.pid.rpartition("_")[2]
    named = layout.worker or next((worker.name for worker in processes if str(worker.pid) == pid), "")
    reports = read_reports(layout, listing, [*processes], named, notes)
    workers = _ranks(layout, processes, reports, named, notes)
    first, ran = (workers[0].name, processes[workers[0]]) if workers else ("", {})
    models = trees_of(reports, files, first, ran)

    def slots_in(token: str, node: Node) -> Mapping[Slot, TensorRef]:
        return files.slots(first, token, node.path)

    steps = steps_of(layout, models, ran, slots_in, token_policy, golden, notes)
    shifts = {worker.name: _shift(ran, processes[worker]) for worker in workers}
    return AtbDump(layout, files, shifts, models, steps, notes)


def _ranks(
    layout: AtbLayout,
    processes: Mapping[Worker, Executions],
    reports: AtbReports,
    named: str,
    notes: list[str],
) -> list[Worker]:
    """Processes of one run in which operations of the models ran; `notes` are told of those left out."""
    kinds = {op.op_type for model in reports.models for op in model.operations}
    used = [
        worker
        for worker, ran in processes.items()
        if any(kind in kinds for tops in ran.values() for _, kind in tops)
    ]
    if left := [worker.name for worker in processes if worker not in used]:
        notes.append(Reason("left out, no operation of the model in them: {}", ", ".join(left)))
    ranks, dropped = select(
        used,
        parent=layout.data,
        root=layout.root,
        named=named,
        parallel=any(map(COMMUNICATION.search, reports.op_types())),
    )
    notes += dropped
    return ranks


def _shift(first_ran: Executions, ran: Executions) -> int:
    """By how much the base ids of a rank differ from the first rank's; a stray may run on one only."""
    first, theirs = operations_in(first_ran), operations_in(ran)
    if first == theirs:
        return 0
    shifts = range(-_FURTHEST_SHIFT, _FURTHEST_SHIFT + 1)
    return max(shifts, key=lambda by: (len({(n + by, kind) for n, kind in first} & theirs), -abs(by)))


# The topology reports of an ATB dump: whose are used, the models in them, and the trees made of these.


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
        notes.append(Reason("no topology of {}, that of process {} is used", preferred[0].name, chosen))
    directory = home / chosen
    from_layers = directory.parent.name != "model"
    layers = directory if from_layers else layout.info / "layer" / directory.name
    reported = frozenset(name.removesuffix(".json") for name in _json(listing, layers))
    if from_layers:
        operations = [read_layer(layers / f"{name}.json") for name in sorted(reported)]
        models = models_of(operations)
        code = "no model report: {} models made of {} layer reports"
        if len(models) == 1:
            code = "no model report: {} model made of {} layer reports"
        notes.append(Reason(code, len(models), len(operations)))
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


def _compared_first(models: list[ModelFile], notes: list[str]) -> list[ModelFile]:
    """The two models that are compared before all others, which `notes` are told of."""
    if len(models) <= 2:
        return models
    telling = [model for word in ("prefill", "decod") for model in models if word in model.name.lower()]
    chosen = telling if len(telling) == 2 else models[:2]
    skipped = [model for model in models if model not in chosen]
    notes.append(
        Reason(
            "{} models; {} and {} are compared, {} not",
            len(models),
            chosen[0].name,
            chosen[1].name,
            ", ".join(model.name for model in skipped),
        )
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


# The steps of an ATB dump: which token directory is which, by the policy and what the first tensors say.


SlotsIn = Callable[[str, Node], Mapping[Slot, TensorRef]]
"""The tensors of a node in a token directory."""

_EVIDENCE_STEPS = 4
"""Steps per model whose first tensors are read as evidence."""


def steps_of(
    layout: AtbLayout,
    models: Sequence[Tree],
    ran: Executions,
    slots_in: SlotsIn,
    policy: str,
    golden: Dump | None,
    notes: list[str],
) -> tuple[Step, ...]:
    """Steps in order; `notes` are told how they were decided.

    Raises `SettingsError` for an unknown policy, `DumpError` for one that contradicts what is on disk, for
    a named token directory without operations, and for a warm-up that `golden` does not have.
    """
    tokens = {int(token): token for token in ran}
    present = _models_present(models, ran)
    if not present:
        notes.append("no tensor of any operation was dumped; dump again with --type model tensor")
    # A token directory that was named must hold something of the model.
    if layout.token and int(layout.token) not in present:
        raise DumpError(
            f"{layout.worker}/{layout.token}: holds no operation of the model; "
            f"token directories that do: {', '.join(map(str, sorted(present))) or 'none'}"
        )
    evidence = {
        (number, model): gather(tree, functools.partial(slots_in, tokens[number]))
        for model, tree in enumerate(models)
        for number in [number for number in sorted(present) if model in present[number]][:_EVIDENCE_STEPS]
    }
    decision = decide(policy, Facts(len(models), present, evidence, _evidence_of(golden)))
    notes += decision.notes
    joint = models[0] if len(models) == 1 else joined("+".join(tree.model for tree in models), models)
    steps = tuple(
        Step(item.label, joint if item.model is None else models[item.model], tokens[item.directory])
        for item in decision.steps
    )
    if not layout.token:
        labels = {step.label for step in golden.steps} if golden else set()
        if labels and WARMUP not in labels and steps and all(step.label == WARMUP for step in steps):
            raise DumpError(
                "holds only the warm-up run (directory 0), which golden does not have; dump later "
                "executions too (-er 0,3), or give --acc-token-policy no-warmup if it is not a warm-up"
            )
        return steps
    selected = tuple(step for step in steps if step.directory == layout.token)
    return selected or (Step(int(layout.token), joint, layout.token),)


def _models_present(models: Sequence[Tree], ran: Executions) -> dict[int, frozenset[int]]:
    """The models that ran in each token directory that holds any."""
    paths = [{child.path for child in tree.root.children} for tree in models]
    present = {}
    for token, tops in ran.items():
        names = {f"{number}_{kind}" for number, kind in tops}
        present[int(token)] = frozenset(model for model, theirs in enumerate(paths) if names & theirs)
    return {number: indices for number, indices in present.items() if indices}


def _evidence_of(golden: Dump | None) -> dict[StepLabel, TokenEvidence]:
    if golden is None or not golden.of_a_model or not golden.ranks:
        return {}
    rank = golden.ranks[0]
    steps = golden.steps[: 2 * _EVIDENCE_STEPS]
    return {step.label: gather(step.tree, functools.partial(golden.tensors, step, rank)) for step in steps}


# The process directories of an ATB dump: executions, and the tensors of an operation.
#
# `{device}_{pid}/{N}/{id}_{Op}/{index}_{Op}/…/{before,after}/{in,out}tensor{i}[_{name}].bin`, and since
# 2025-11 `{device}_{pid}/{N}/statistic.csv`. Directories of kernels lie among those of operations; nobody
# asks for them.


Executions = Mapping[str, frozenset[TopLevel]]
"""Token directories of a process in numeric order, each with the top-level operations in it."""

_TENSOR = re.compile(r"^(in|out)tensor(\d+)(?:_(.+))?\.bin$")


_INFO = "info"
_HOMES = frozenset(
    {"tensors", "model", "layer", "operation_graph", "operation_io_tensors", "kernel_io_tensors"}
    | {"cpu_profiling", "tiling"}
)
"""Sub-directories of an ATB dump, each with one directory per process in it."""


@dataclass(frozen=True, slots=True)
class AtbLayout(DumpLayout):
    """The place of an ATB dump: `data` holds the process directories, `info` has `model` and `layer` in it.

    `worker`, `pid` and `token` are what the user's path named of it, empty where it stopped above.
    """

    name = "ATB"
    root: Path
    data: Path
    info: Path
    worker: str = ""
    pid: str = ""
    token: str = ""

    def open(self, listing: Listing, token_policy: str, golden: Dump | None) -> Dump:
        return open_atb(self, listing, token_policy=token_policy, golden=golden)

    @property
    def handle(self) -> Path:
        """A directory of process directories."""
        return self.data if is_directory(self.data) else self.info / "model"

    def contents(self) -> Sequence[Path]:
        """The directories of process directories."""
        inside = [self.root / name for name in sorted(_HOMES)]
        return inside if self.info == self.root else (self.data, self.info)

    def processes(self, listing: Listing) -> list[RankProcess]:
        """The process directories, each with those of its reports."""
        processes = []
        homes = [self.info / name for name in sorted(_HOMES) if self.info / name != self.data]
        for name in [self.worker] if self.worker else listing.directories(self.data):
            worker = atb_worker(name)
            if worker is None:
                continue
            data = self.below_top(self.data)
            directories = [(f"{data}/{name}", f"{data}/{{0}}_{{1}}")] + [
                (f"{self.below_top(home)}/{called}", f"{self.below_top(home)}/{pattern}")
                for home in homes
                for called, pattern in ((name, "{0}_{1}"), (str(worker.pid), "{1}"))
                if called in listing.directories(home)
            ]
            processes.append(RankProcess(tuple(directories), None, worker.device, worker.pid))
        return processes

    def holds_alone(self, file: Path) -> bool:
        """Whether it is a tensor of an execution."""
        return bool(self.token) and file.is_relative_to(self.data)


def dumps_at(path: Path, listing: Listing) -> Iterator[AtbLayout]:
    """The dump of the process directories in those of a directory."""
    names = _HOMES.intersection(listing.directories(path)) if path.name != _INFO else ()
    named = (
        tensor_files if names and names <= {"model", "layer"} else lambda *_: ()
    )  # modules may be called so
    if any(file.suffix != ".bin" for name in names for file in named(path / name, listing)):
        return
    if any(_has_processes(path / name, listing) for name in names):
        yield AtbLayout(path, path / "tensors", path)
    elif _has_processes(path / _INFO / "model", listing) or _has_executions(path / "data", listing):
        yield AtbLayout(path, path / "data", path / _INFO)


def dumps_around(directory: Path, path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump of a directory, narrowed to the process or the execution that the path is."""
    for layout in dumps_at(directory, listing):
        if path.is_relative_to(layout.data):
            worker, token, *_ = [*path.relative_to(layout.data).parts, "", ""]
            yield replace(layout, worker=worker, token=token if token.isdecimal() else "")
        elif path.is_relative_to(layout.info):
            home, pid, *_ = [*path.relative_to(layout.info).parts, "", ""]
            if home in _HOMES or path == layout.info:
                yield replace(layout, pid=pid)


def _has_processes(home: Path, listing: Listing) -> bool:
    return any(name.isdecimal() or atb_worker(name) for name in listing.directories(home))


def _has_executions(home: Path, listing: Listing) -> bool:
    workers = [name for name in listing.directories(home) if atb_worker(name)]
    return any(name.isdecimal() for worker in workers for name in listing.directories(home / worker))


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
        processes: dict[Worker, Executions] = {}
        for worker in workers:
            home = f"{self._data}/{worker.name}"
            tokens = [name for name in self._listing.directories(home) if name.isdecimal()]
            processes[worker] = {token: self._top_level(f"{home}/{token}") for token in tokens}
        return processes

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
