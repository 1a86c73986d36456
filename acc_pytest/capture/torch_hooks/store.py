"""Tensors on their way to the disk: those of one step become files, rows and entries of the step's
manifest.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import functools
import io
import math
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...dumps.statistics_rows import TORCH_FILE as FILE
from ...errors import CaptureError
from ...tensors.statistics import TORCH_COLUMNS, statistics_of
from ...tensors.torch_archive import encode
from ...tensors.whole_file import FILE_MODE
from ..writer import BackgroundWriter
from .config import DumpConfig
from .model import ModelOutline
from .trace import Trace, TracedStep
from .values import Contents, Key, Memory, Storages, snapshot, stem

ANALYSIS = ["Node Name", "Node Type", "Tensor Path", "dtype", "shape", "max", "min", "variance", "mean"]
ANALYSIS_FILE = "tensor_analyze.csv"


@dataclass(frozen=True, slots=True)
class NodeTensor:
    """A tensor of a node, as its row names it."""

    node: str
    kind: str
    side: str
    index: str
    tensor: torch.Tensor


def statistics_csv(samples: Iterable[NodeTensor]) -> bytes:
    """The file of one module's folder.

    All sums are in float64. NaN never becomes the maximum or minimum; of complex tensors all numbers are
    moduli; an empty tensor has none (`N/A`).
    """
    rows: list[list[object]] = [[*TORCH_COLUMNS.split(",")]]
    for sample in samples:
        statistics = statistics_of(sample.tensor)
        numbers = (statistics.max, statistics.min, statistics.mean, statistics.l2norm)
        shape = str(tuple(sample.tensor.shape))
        rows.append(
            [sample.node, sample.kind, sample.side.capitalize(), sample.index, sample.tensor.dtype, shape]
            + ["N/A" if number is None else number for number in numbers]
        )
    return _text(rows)


def analysis_row(node: str, kind: str, path: str, tensor: torch.Tensor) -> list[object]:
    """The row of one tensor: maximum, minimum, unbiased variance (NaN of fewer than two elements), mean."""
    statistics = statistics_of(tensor)
    count = tensor.numel()
    variance = math.nan
    if count > 1:
        wide = tensor.abs() if tensor.is_complex() else tensor
        variance = float(wide.to(torch.float64).var())
    numbers = ("N/A" if number is None else number for number in (statistics.max, statistics.min))
    mean = "N/A" if statistics.mean is None else statistics.mean
    return [node, kind, path, tensor.dtype, str(tuple(tensor.shape)), *numbers, variance, mean]


def _text(rows: Iterable[Iterable[object]]) -> bytes:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue().encode("utf-8", "backslashreplace")


@dataclass(slots=True)
class DumpReport:
    """The report on a dump so far: steps, tensors, bytes of tensors; what was left out and why."""

    steps: int = 0
    tensors: int = 0
    nbytes: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        text = f"{self.tensors} tensors ({self.nbytes / 1e6:.1f} MB) of {self.steps} steps"
        left = "".join(f"; {count} not saved: {reason}" for reason, count in self.skipped.items())
        return text + left


NodeTensors = list[tuple[NodeTensor, dict[str, Any]]]
"""Tensors that want a row of statistics, each with its entry in the manifest."""


@dataclass(slots=True)
class CallFolder:
    """One call of a module or function: its folder's name, the class that ran or called, the number of the
    call.
    """

    folder: str
    kind: str
    call: int
    samples: NodeTensors = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    always: frozenset[Key] = frozenset()
    """Inputs that are saved as tensors also where only statistics are asked for."""


class Store:
    """Saves tensors below one process folder. Budgets and what is reported hold for the whole dump."""

    def __init__(self, home: Path, config: DumpConfig) -> None:
        self.home = home
        self.config = config
        self.report = DumpReport()
        self.writer = BackgroundWriter(config.queue_bytes)
        self.storages = Storages()
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def save(
        self,
        directory: str,
        node: CallFolder,
        side: str,
        tensors: Iterable[tuple[Key, torch.Tensor]],
        *,
        copied_from: Mapping[Key, Memory] | None = None,
    ) -> list[dict[str, Any]]:
        """Queue copies of tensors to be written to the node's folder in `directory`. With `copied_from`
        they are copies already, of tensors that showed this memory.

        Returns their entries, whose status is known when the writer has finished.
        """
        entries: list[dict[str, Any]] = []
        for key, tensor in tensors:
            name = stem(side, key)
            while name in node.files:
                name += "_2"
            node.files.add(name)
            memory = self.storages.memory_of(tensor) if copied_from is None else copied_from.get(key, {})
            owned = copied_from is not None
            folder = f"{directory}/{node.folder}"
            entries.append(self._save(folder, node, side, key, name, tensor, memory, owned=owned))
        return entries

    def _save(
        self,
        folder: str,
        node: CallFolder,
        side: str,
        key: Key,
        name: str,
        tensor: torch.Tensor,
        memory: Memory,
        *,
        owned: bool = False,
    ) -> dict[str, Any]:
        entry = {"node": node.folder, "call": node.call, "side": side, "key": list(key)}
        entry |= {"file": f"{node.folder}/{name}.pth", **_described(tensor), **memory, "status": ""}
        refusal = self._over_budget(tensor)
        if refusal:
            return self._left_out(entry, "skipped", refusal, refusal.partition(":")[0])
        copy, note = snapshot(tensor, owned=owned)
        if copy is None:
            return self._left_out(entry, "failed", note, f"cannot be read ({note})")
        if note:
            entry["note"] = note
        mode = self.config.dump_statistics_mode if side != "weight" else 0
        if mode:
            index = name.partition("_")[2] or "0"
            node.samples.append((NodeTensor(node.folder, node.kind, side, index, copy), entry))
        if mode == 1 and not (side == "input" and key in node.always):
            entry["file"] = f"{node.folder}/{FILE}"
            return entry
        path = f"{folder}/{name}.pth"
        content = functools.partial(self._content, copy, entry, node.kind, path)
        self.writer.put(path, copy.nbytes, content, functools.partial(self._done, [entry]))
        return entry

    def _content(
        self, tensor: torch.Tensor, entry: dict[str, Any], kind: str, path: str
    ) -> tuple[bytes | memoryview, ...]:
        archive = encode(tensor)
        entry["crc32"] = archive.crc32
        if self.config.analyze:
            entry["analysis"] = analysis_row(entry["node"], kind, path, tensor)
        return archive.head, archive.data, archive.tail

    def _rows(self, samples: NodeTensors) -> tuple[bytes]:
        if self.config.analyze and self.config.dump_statistics_mode == 1:
            for sample, entry in samples:
                if entry["file"].endswith(FILE):
                    entry["analysis"] = analysis_row(sample.node, sample.kind, "", sample.tensor)
        return (statistics_csv(sample for sample, _ in samples),)

    def _done(self, entries: Iterable[dict[str, Any]], problem: str) -> None:
        for entry in entries:
            entry["status"] = "failed" if problem else "written"
            with self._lock:
                if problem:
                    entry["note"] = problem
                    self._count("could not be written")
                else:
                    self.report.tensors += 1

    def statistics(self, directory: str, node: CallFolder) -> None:
        """Queue the rows of a node's tensors, inputs and outputs, as one file."""
        samples, node.samples = node.samples, []
        if not samples:
            return
        nbytes = sum(sample.tensor.nbytes for sample, _ in samples)
        rows = f"{node.folder}/{FILE}"
        path = f"{directory}/{rows}"
        only = self.config.dump_statistics_mode == 1  # else the tensor's own file decides what became of it
        entries = [entry for _, entry in samples if entry["file"] == rows] if only else []
        self.writer.put(
            path, nbytes, functools.partial(self._rows, samples), functools.partial(self._done, entries)
        )

    def append_analysis(self, entries: Iterable[dict[str, Any]]) -> None:
        """Append the rows made for `analyze` to the file of the whole run, which other ranks append to as
        well.
        """
        rows = [row for entry in entries if (row := entry.pop("analysis", None)) is not None]
        if not rows:
            return
        path = self.home.parent.parent / ANALYSIS_FILE
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
            with os.fdopen(descriptor, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(_text([[*ANALYSIS], *rows] if (os.fstat(file.fileno()).st_size == 0) else rows))
        except OSError as error:
            raise CaptureError(f"{path}: cannot be written: {error.strerror}") from error

    def weights(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> list[dict[str, Any]]:
        """Save parameters as `weights/{name}.pth`; returns their entries."""
        entries = []
        for name, parameter in parameters:
            node = CallFolder("weights", "Parameter", 0)
            memory = self.storages.memory_of(parameter)
            entry = self._save(str(self.home / "weights"), node, "weight", (), name, parameter, memory)
            entry["key"] = [name]
            entries.append(entry)
        return entries

    def _over_budget(self, tensor: torch.Tensor) -> str:
        limit, total = self.config.max_elements, self.config.max_bytes
        if limit is not None and tensor.numel() > limit:
            return f"more than max_elements={limit}: {tensor.numel()} elements"
        nbytes = tensor.nbytes if tensor.layout == torch.strided else 0
        with self._lock:
            if total is not None and self.report.nbytes + nbytes > total:
                return f"beyond max_bytes={total}: {nbytes} bytes after {self.report.nbytes}"
            self.report.nbytes += nbytes
        return ""

    def _left_out(self, entry: dict[str, Any], status: str, note: str, reason: str) -> dict[str, Any]:
        entry |= {"file": "", "status": status, "note": note}
        with self._lock:
            self._count(reason)
        if reason not in self._warned:
            self._warned.add(reason)
            text = f"{entry['node']}: {entry['side']} {entry['key']} is not saved: {note}"
            warnings.warn(f"{text} (further ones are listed in the manifest)", stacklevel=2)
        return entry

    def _count(self, reason: str) -> None:
        self.report.skipped[reason] = self.report.skipped.get(reason, 0) + 1


def _described(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": _name(tensor.dtype),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()) if tensor.layout == torch.strided else [],
        "device": "cpu" if tensor.is_cpu else str(tensor.device),
    }


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# A call of the model while it runs: the modules that are running, what was saved, what
# comes last.


@dataclass(eq=False, slots=True)
class Hooked:
    """A module with hooks, and the names of its places in the model."""

    names: tuple[str, ...]
    kind: str
    is_root: bool = False


@dataclass(eq=False, slots=True)
class Frame:
    """A module that is running."""

    hooked: Hooked
    name: str
    node: CallFolder | None
    caches: list[tuple[Key, Any]]
    error: BaseException | None
    trace: Trace | None = None
    entered: dict[str, Any] | None = None
    """Its call in the trace of the module around it."""


@dataclass(eq=False, slots=True)
class StepRecord:
    """A call of the root that is being dumped."""

    token: int
    directory: str
    stack: list[Frame] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    order: dict[str, str] = field(default_factory=dict)
    """Kinds of the nodes, in the order in which they ended."""
    started: dict[str, None] = field(default_factory=dict)
    """The nodes in the order in which they began."""
    weights: tuple[dict[str, Any], dict[str, Any]] | None = None
    """The digests of the weights, in the first step of a dump."""
    outline: ModelOutline | None = None
    """The outline of the model, in the first step of a dump."""
    traces: TracedStep | None = None
    calls: Counter[str] = field(default_factory=Counter)
    calls_inside: Counter[tuple[int, str]] = field(default_factory=Counter)
    caches: dict[int, tuple[Key, Any]] = field(default_factory=dict)
    cached: set[tuple[int, int, Key]] = field(default_factory=set)
    last: tuple[str, str, Contents, list[int]] | None = None
    is_fed: bool = False
    """Whether the ids that the model was called with are saved."""
    failed: bool = False


def versions(contents: Contents) -> list[int]:
    """The number of changes in place of each tensor; tensors of inference mode do not count that."""
    counted = []
    for _, tensor in contents.tensors:
        with contextlib.suppress(RuntimeError):
            counted.append(tensor._version)
    return counted
