"""Dumps of a torch model: `torch_tensors/{device}_{pid}/{token}/{module}/{input_0,output}.pth`.

Older ones lack `torch_tensors`, put the process id first, name files `input_exec3_0.npy`, or have no
`model_tree.json`. The token directory is the step: 0 is the prefill, k the k-th decode. Dumps of this package
name the files of keyword arguments and fields after them (`input_hidden_states`) and have a manifest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ..base.reason import Reason
from ..errors import DumpError
from ..tensors.ref import TensorRef
from ..topology.torch_modules import read_tree, tree_of_folders
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
    select,
    stable_name,
    torch_worker,
)
from .modules import ModuleDump, stored_tensor
from .statistics_rows import TORCH_FILE, torch_rows
from .torch_manifest import Key, SavedTensor, key_of_name, process_manifest, step_manifest
from .torch_model import Outline, outline_of

TREE_FILE = "model_tree.json"
WEIGHTS = "weights"
"""The folder of parameters that were dumped whole, beside those of the steps."""

_HOME = "torch_tensors"
_DEVICE = re.compile(r"[a-z]+")
_TENSOR = re.compile(r"^(input|output)(?:_exec(\d+))?((?:_[\w-]+)?)\.(pth|pt|npy)$", re.ASCII)
_SUFFIXES = frozenset({".pth", ".pt", ".npy"})
_NUMBERS = re.compile(r"(?:_\d+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class TorchLayout(DumpLayout):
    """The place of a torch dump: `home` holds the process folders; `worker` and `token` are what the user's
    path named of it, empty where it stopped above."""

    name = "torch"
    root: Path
    home: Path
    worker: str = ""
    token: str = ""

    def open(self, listing: Listing, token_policy: str, golden: Dump | None) -> Dump:
        return TorchDump(self, listing)

    @property
    def handle(self) -> Path:
        """The directory of the process folders."""
        return self.home

    def contents(self) -> Sequence[Path]:
        return (self.home,)

    def processes(self, listing: Listing) -> list[RankProcess]:
        """The process folders."""
        processes: list[RankProcess] = []
        for name in [self.worker] if self.worker else listing.directories(self.home):
            if not is_process_folder(self.home / name, listing):
                continue
            worker, directory = torch_worker(name), self.below_top(self.home / name)
            device = _DEVICE.match(name)
            pattern = directory[: len(directory) - len(name)] + (device[0] if device else "npu") + "{0}_{1}"
            rank = process_manifest(self.home / name).rank
            pid = worker.pid if worker is not None else len(processes)
            processes.append(RankProcess(((directory, pattern),), rank, worker.device if worker else -1, pid))
        return processes


def dumps_at(path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump of the process folders in a directory."""
    for home in (path / _HOME, path):
        if any(is_process_folder(below, listing) for below in listing.below(home)):
            yield _layout(home)
            return


def dumps_around(directory: Path, path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump of a process folder with the path in it."""
    if is_process_folder(directory, listing):
        token, *_ = [*path.relative_to(directory).parts, ""]
        yield _layout(directory.parent, directory.name, token if token.isdecimal() else "")


def _layout(home: Path, worker: str = "", token: str = "") -> TorchLayout:
    return TorchLayout(home.parent if home.name == _HOME else home, home, worker, token)


class TorchDump(ModuleDump):
    """A torch dump; one tree for all steps, made when the dump is opened."""

    kind = "torch"

    def __init__(self, layout: TorchLayout, listing: Listing) -> None:
        super().__init__()
        self._listing = listing
        self._home = layout.home
        self._by_folder: dict[tuple[str, str], Mapping[Slot, TensorRef]] = {}
        self.root = layout.root
        self.name = (
            "torch_dump" if layout.root == layout.home else stable_name(layout.root.name, "torch_dump")
        )
        self.forced = bool(layout.token)
        notes: list[str] = []
        names = [worker.name for worker in self._workers(layout, notes)]
        self._manifests = {name: process_manifest(layout.home / name) for name in names}
        self.ranks = tuple(Rank(index, name) for index, name in enumerate(self._in_rank_order(names, layout)))
        first, tokens = self._tokens(notes)
        if layout.token:
            tokens = [layout.token]
        tree = self._tree(first, tokens, notes)
        self.steps = tuple(Step(int(name), tree, name) for name in sorted(tokens, key=int))
        for name, manifest in self._manifests.items():
            for reason, count in manifest.left_out.items():
                notes.append(Reason("{}: {} tensors were not saved: {}", name, count, reason))
        self.notes = tuple(notes)

    def _tokens(self, notes: list[str]) -> tuple[Path, list[str]]:
        """The folder of the first process that has steps, and the steps of all. Raises `DumpError`."""
        within = {rank.name: self._listing.directories(self._home / rank.name) for rank in self.ranks}
        ran = {name: [token for token in inside if token.isdecimal()] for name, inside in within.items()}
        name = max(ran, key=lambda name: bool(ran[name]))
        if not ran[name]:
            raise DumpError(
                f"{self._home / name}: is a torch dump without token directories; the model did not run "
                "while it was hooked, or the capture was interrupted in its first step (its process killed)"
            )
        if strays := [
            directory for directory in within[name] if not directory.isdecimal() and directory != WEIGHTS
        ]:
            notes.append(Reason("directories that are not steps were left out: {}", ", ".join(strays)))
        return self._home / name, list(dict.fromkeys(chain(*ran.values())))

    def _in_rank_order(self, names: Sequence[str], layout: TorchLayout) -> Sequence[str]:
        """By the ranks that manifests give, where they tell all processes apart; else as they come, by
        device. Ranks that were to be dumped and are not there stand among them, without a directory.
        """
        by_rank = {self._manifests[name].rank: name for name in names}
        if None in by_rank or len(by_rank) < len(names):
            return names
        expected = {*by_rank, *(() if layout.worker else self._manifests[names[0]].ranks)}
        return [by_rank.get(rank, f"rank{rank}") for rank in sorted(rank or 0 for rank in expected)]

    def _workers(self, layout: TorchLayout, notes: list[str]) -> Sequence[Worker]:
        """Process folders of the run; a folder that is named like none stands alone."""
        if layout.worker and torch_worker(layout.worker) is None:
            return [Worker(-1, 0, layout.worker)]
        workers: list[Worker] = []
        for name in self._listing.directories(layout.home):
            if is_process_folder(layout.home / name, self._listing):
                workers.append(torch_worker(name) or Worker(-1, 0, name))
        selected, dropped = select(
            workers, parent=layout.home, root=layout.root, named=layout.worker, parallel=False
        )
        notes += dropped
        return selected

    def _tree(self, first: Path, tokens: Sequence[str], notes: list[str]) -> Tree:
        """Folders of the first steps and the last are enough to see every function that was called."""
        sample = [*tokens[:2], *tokens[2:][-1:]]
        folders = {name for token in sample for name in self._listing.directories(first / token)}
        if TREE_FILE in self._listing.files(first):
            return read_tree(first / TREE_FILE, folders, self._manifests[first.name].order)
        notes.append(Reason("no {}: modules are known by their folders only, without types", TREE_FILE))
        return tree_of_folders(folders)

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        """See `Dump.tensors`. Of a module called several times in one step the last call counts in dumps that
        put all calls into one folder (`input_exec2_0`); in ours each call is a node."""
        if rank.name not in self._manifests:
            return {}
        place = f"{self._home}/{rank.name}/{step.directory}"
        key = place, node.path
        if key not in self._by_folder:
            self._by_folder[key] = self._tensors_in(place, node)
        return self._by_folder[key]

    def _tensors_in(self, place: str, node: Node) -> Mapping[Slot, TensorRef]:
        folder = f"{place}/{node.path}"
        calls: dict[Slot, tuple[int, TensorRef]] = {}
        files = self._listing.files(folder)
        for name in files:
            if match := _TENSOR.match(name):
                index = _key(match.group(3), place, f"{node.path}/{name}") or (0,)
                slot = Slot("input" if match.group(1) == "input" else "output", index)
                call = int(match.group(2) or 0)
                if slot not in calls or calls[slot][0] <= call:
                    calls[slot] = call, TensorRef(f"{folder}/{name}")
        tensors = {slot: calls[slot][1] for slot in sorted(calls, key=Slot.place)}
        if TORCH_FILE in files and not any(slot.kind == "output" for slot in tensors):
            return dict(
                sorted((_rows_without_file(folder, files) | tensors).items(), key=lambda item: item[0])
            )
        return tensors

    def asks_for(self, label: StepLabel) -> bool:
        """Whether the manifests say so, unless one step is looked at."""
        if self.forced or not isinstance(label, int):
            return super().asks_for(label)
        return any(label in manifest.steps for manifest in self._manifests.values()) or super().asks_for(
            label
        )

    def absent(self, step: Step, rank: Rank) -> Mapping[str, Sequence[str]]:
        """The files that the manifest of the step names and that are absent. A note says where the step
        itself ended early."""
        place = f"{self._home}/{rank.name}/{step.directory}"
        manifest = step_manifest(place)
        process = self._manifests.get(rank.name)
        if process is not None and process.steps and not manifest.complete:
            self.notes += (
                Reason("{}: step {} ended early, its capture was interrupted", rank.name, step.label),
            )
        absent: dict[str, list[str]] = {}
        for folder, names in manifest.files.items():
            if lacking := names.difference(self._listing.files(f"{place}/{folder}")):
                absent[folder] = sorted(lacking)
        return absent

    def choices(self, rank: Rank) -> frozenset[str]:
        return self._manifests[rank.name].choices if rank.name in self._manifests else frozenset()

    def weights_home(self, rank: Rank) -> str:
        """The folder of the process, unless weights were given beside the dump."""
        return self.checkpoint or str(self._home / rank.name)

    def outline(self, rank: Rank) -> Outline | None:
        """The outline of the model of a rank."""
        return outline_of(self._home / rank.name)

    def dumped_weights(self, rank: Rank) -> Mapping[str, TensorRef]:
        """The parameters that were dumped whole (`dump_weight`), by full name."""
        folder = f"{self._home}/{rank.name}/{WEIGHTS}"
        named = ((*os.path.splitext(file), file) for file in self._listing.files(folder))
        return {name: TensorRef(f"{folder}/{file}") for name, suffix, file in named if suffix in _SUFFIXES}

    def is_bare(self, ref: TensorRef) -> bool:
        """Whether the name of its file has no number."""
        return os.path.basename(ref.path).partition(".")[0].partition("_exec")[0] == "output"

    def _began(self, step: Step) -> Callable[[Node], int]:
        """The begin of a node in the manifest of the step."""
        manifest = step_manifest(f"{self._home}/{self.ranks[0].name}/{step.directory}")
        started = {name: number for number, name in enumerate(manifest.started)}
        return lambda node: started.get(node.path, len(started))

    def _ended(self, step: Step) -> Callable[[Node], int]:
        """The end of a node in the manifest of the step. The tree of a process has modules beside those that
        they are listed with, wherever they are called."""
        manifest = step_manifest(f"{self._home}/{self.ranks[0].name}/{step.directory}")
        ended = {name: number for number, name in enumerate(manifest.ended)}
        return lambda node: ended.get(node.path, len(ended) + node.order)

    def _saved(self, step: Step) -> Callable[[Node, TensorRef], SavedTensor | None]:
        """The facts in the manifest of the step; else as the files themselves."""
        place = f"{self._home}/{self.ranks[0].name}/{step.directory}"
        entries = step_manifest(place).entries

        def saved(node: Node, ref: TensorRef) -> SavedTensor | None:
            if ref.member:
                return None
            return entries.get(ref.path[len(place) + 1 :]) or stored_tensor(ref)

        return saved


def _rows_without_file(folder: str, files: Collection[str]) -> dict[Slot, TensorRef]:
    """Rows of statistics of what has no file of its own: token ids have one in every dump."""
    rows = torch_rows(Path(folder, TORCH_FILE))
    return {
        slot: ref
        for slot, ref in rows.items()
        if f"{slot.kind}_{ref.member.partition('/')[2]}.pth" not in files
    }


def _key(text: str, place: str, file: str) -> Key:
    """`_1_0` as (1, 0); a name as the manifest of the step has it, else as it can be read."""
    key = None if _NUMBERS.fullmatch(text) else step_manifest(place).keys.get(file)
    if key is not None:
        return key
    return key_of_name(text[1:]) if text else ()


def is_process_folder(path: Path, listing: Listing) -> bool:
    """A folder with `model_tree.json`, or (before there was one) with token folders full of `root.*`."""
    if TREE_FILE in listing.files(path):
        return True
    tokens = [name for name in listing.directories(path) if name.isdecimal()]
    modules = listing.directories(path / tokens[0]) if tokens else ()
    return any(name.partition(".")[0] == "root" for name in modules)
