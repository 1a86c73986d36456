"""`Dump`: what every dump looks like to the rooms above, whatever its layout on disk."""

from __future__ import annotations

import errno
import functools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Union

from ..base.reason import Reason
from ..base.vocabulary import NOISE_PROFILE
from ..errors import DumpError, SeveralDumps
from ..tensors.address import is_mirrored
from ..tensors.kept_dump import directories_in, names_in
from ..tensors.location import is_file, is_there, listed_at, may_be_entered
from ..tensors.ref import TensorRef
from ..topology.tree import Node, Tree

if TYPE_CHECKING:
    from .manual import ManualEntry
    from .modules import Calls
    from .torch_model import Outline, SavedWeight

StepLabel = Union[int, str]
"""0 = prefill, k = k-th decode, or the text `warmup`."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One input or output of a node; `index` is nested for tuples inside tuples.

    Keyword arguments and the fields of dictionaries and dataclasses have names instead of numbers:
    `input[hidden_states]`, `output[past_key_values][key]`. They sort behind the numbers.
    """

    kind: Literal["input", "output"]
    index: tuple[Union[int, str], ...] = (0,)

    @property
    def positional(self) -> bool:
        """Whether the slot has numbers only, as all slots of an ATB dump have."""
        return all(isinstance(key, int) for key in self.index)

    def __lt__(self, other: Slot) -> bool:
        return self.place() < other.place()

    def place(self) -> tuple[str, list[tuple[int, int, str]]]:
        """The key by which slots are sorted."""
        return self.kind, [(0, key, "") if isinstance(key, int) else (1, 0, key) for key in self.index]

    def __str__(self) -> str:
        return _label(self.kind, self.index)


# A dump has few slots and many nodes, and `output[0]` stands in every pair.
@functools.lru_cache(maxsize=4096)
def _label(kind: str, index: tuple[Union[int, str], ...]) -> str:
    return kind + "".join(f"[{i}]" for i in index)


class NodeSlot(NamedTuple):
    """A slot of a node in one step."""

    path: str
    slot: Slot


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a parallel run: its place in numeric order and its directory's name."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One inference iteration: its label, the tree that ran, and the token directory's name.

    `graph` names the compiled graph (`graph_1`) where a model runs as several, each with steps of its own;
    it is empty elsewhere.
    """

    label: StepLabel
    tree: Tree
    directory: str
    graph: str = ""


class Dump(ABC):
    """A dump opened for reading; made by `open_dump`.

    `name` is stable across runs (no timestamps or pids), fit for test ids. `notes` are sentences
    for the report header (token policy and why, re-rooting, ranks left out). `forced` says that the
    user pointed at one token directory, which overrides the pairing of steps by label. `only` is the one file
    of the dump that the user gave, empty where it is a whole one. `computed_in` is the dtype whose rounding
    its tensors have, where the user stated it.

    A dump `of_a_model` has all of it, and its first inputs are tokens. If it `has_modules`, nodes are calls
    of modules of torch. Ranks of a dump `of_graphs`, compiled ones, are never put together. `models` are the
    trees of a program that has several, in the order of their first id: prefill, decode. `entries` are pairs
    that the dump itself declares. `order` says in words which order tensors have that are known by their
    names, `states_only` that all of these are a model's hidden states. `checkpoint` is the folder of
    the digests of weights that the user gave beside it (`weight_files`), which count in place of its own.
    """

    kind: str
    root: Path
    name: str
    ranks: tuple[Rank, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    forced: bool = False
    only: str = ""
    computed_in: str = ""
    of_a_model: bool = False
    has_modules: bool = False
    of_graphs: bool = False
    models: Sequence[Tree] = ()
    entries: Sequence[ManualEntry] = ()
    order: str = ""
    states_only: bool = False
    checkpoint: str = ""

    @abstractmethod
    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        """The tensors dumped for `node`, slots in numeric order; empty where nothing was dumped."""

    def asks_for(self, label: StepLabel) -> bool:
        """Whether all ranks are to have a step, as far as is known: one has it, or it was asked for."""
        return self.of_a_model and any(step.label == label for step in self.steps)

    def absent(self, step: Step, rank: Rank) -> Mapping[str, Sequence[str]]:
        """The files of a step and rank that the dump's own records name and that are not there, by the path
        of their node; empty where the dump has no such records."""
        return {}

    # Questions that dumps of modules answer.

    def calls(self, step: Step) -> Calls:
        """The calls of a step, as the first rank dumped them, where nodes are modules (`has_modules`)."""
        raise NotImplementedError

    def choices(self, rank: Rank) -> frozenset[str]:
        """The paths of calls of functions that a dump of modules has for what they chose."""
        return frozenset()

    def weights(self, rank: Rank) -> Mapping[str, SavedWeight]:
        """The digests of the parameters and buffers of a rank, by full name."""
        home = self.weights_home(rank)
        if not home:
            return {}
        from .torch_model import weights_of

        return weights_of(Path(home))

    def weights_home(self, rank: Rank) -> str:
        """The folder of the digests; empty where there is none."""
        return self.checkpoint

    def outline(self, rank: Rank) -> Outline | None:
        """The outline of the model, from which modules are computed again; `None` where there is none."""
        return None

    def dumped_weights(self, rank: Rank) -> Mapping[str, TensorRef]:
        """The parameters that were dumped whole, by full name."""
        return {}

    def is_partial(self, step: Step, rank: Rank, node: Node, slot: Slot) -> bool:
        """Whether the dump says that a tensor is a summand of a rank, and the sum of all ranks the tensor."""
        return False

    def is_bare(self, ref: TensorRef) -> bool:
        """Whether the only result of a call is known to be this tensor, and no tuple of one."""
        return False


# The place of a dump, before it is opened.


@dataclass(slots=True)
class RankProcess:
    """A process of a dump: its directories below the top (and below them, `{}` stands for its number),
    its rank and its device where its files say these, its process id."""

    directories: tuple[tuple[str, str], ...]
    rank: int | None
    device: int
    pid: int
    number: int = -1


class DumpLayout(ABC):
    """The place of a dump: `root` is the path that means it, `name` its format as messages have it."""

    name: str
    root: Path

    @abstractmethod
    def open(self, listing: Listing, token_policy: str, golden: Dump | None) -> Dump:
        """The dump. For the arguments see `open_dump`."""

    @property
    def handle(self) -> Path:
        """A path that means this dump and no other."""
        return self.root

    @property
    def top(self) -> Path:
        """The directory that the dump is named after: `root`, or one above it."""
        return self.root.parent if is_file(self.root) else self.root

    def contents(self) -> Sequence[Path]:
        """The files and directories of the whole dump, also where the user's path is inside it."""
        return (self.root,)

    def paths(self) -> tuple[Path, ...]:
        """Those of its contents that are there, and the profile beside them: what a copy of it takes along.

        Around a dump may lie anything: a manual dump is a folder in somebody's project, a torch and an ATB
        dump may share a directory.
        """
        return tuple(filter(is_there, dict.fromkeys((*self.contents(), self.top / NOISE_PROFILE))))

    def processes(self, listing: Listing) -> list[RankProcess]:
        """The processes that wrote the dump; none where files say their ranks themselves."""
        return []

    def holds_alone(self, file: Path) -> bool:
        """Whether a tensor file of the dump can be compared alone, by the other tensors of its step."""
        return False

    def below_top(self, path: Path) -> str:
        """The path of a directory below the top; empty for the top."""
        relative = os.path.relpath(path, self.top)
        return "" if relative == "." else relative


@dataclass(frozen=True, slots=True)
class PlainLayout(DumpLayout):
    """The place of a dump that is opened with golden alone. `place` is its handle, if not the root."""

    name: str
    root: Path
    opened: Callable[[Dump | None], Dump]
    place: Path | None = None

    def open(self, listing: Listing, token_policy: str, golden: Dump | None) -> Dump:
        return self.opened(golden)

    @property
    def handle(self) -> Path:
        return self.place or self.root


# The process directories of a dump that are ranks of one run, in their order.


TIMESTAMP = re.compile(r"_?\d{8}_\d{6}$")
"""The ending of the root of one run: `_20261120_213122`."""

_ATB = re.compile(r"^(-?\d+)_(\d+)$")
_TORCH = re.compile(r"^([a-z]+):?(\d*)_(\d+)$")
_TORCH_PID_FIRST = re.compile(r"^(\d+)_(?:([a-z]+):?)?(\d*)$")


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """A process directory: device number (-1 where unknown), process id, directory name."""

    device: int
    pid: int
    name: str


def atb_worker(name: str) -> Worker | None:
    """`{device}_{pid}` of ATB dumps."""
    match = _ATB.match(name)
    return Worker(int(match.group(1)), int(match.group(2)), name) if match else None


def torch_worker(name: str) -> Worker | None:
    """`npu0_{pid}`, `cpu_{pid}`, and the older `{pid}_npu0`, `{pid}_npu:0`, `{pid}_0` of torch dumps."""
    if match := _TORCH.match(name):
        return Worker(int(match.group(2) or -1), int(match.group(3)), name)
    if match := _TORCH_PID_FIRST.match(name):
        return Worker(int(match.group(3) or -1), int(match.group(1)), name)
    return None


def select(
    workers: Sequence[Worker], *, parent: Path, root: Path, named: str, parallel: bool
) -> tuple[list[Worker], list[str]]:
    """The ranks among `workers` in numeric order, and sentences about those left out.

    A root whose name carries a timestamp belongs to one run, so all its processes are ranks. Elsewhere
    runs pile up: two processes on one device are ranks only where the model has communication operations
    (`parallel`; every process may see its own device as 0), otherwise they are two runs, and `named` (the
    process directory in the user's path, or empty) picks one. Raises `DumpError` when it names none.
    """
    ordered = sorted(workers)
    devices = dict.fromkeys(worker.device for worker in ordered)
    if len(devices) == len(ordered) or parallel or TIMESTAMP.search(root.name):
        return ordered, []
    chosen = next((worker for worker in ordered if worker.name == named), None)
    if chosen is None:
        raise SeveralDumps(
            f"{parent}: holds the dumps of several runs (several processes on one device); "
            "give the directory of one of them:",
            (str(parent / worker.name) for worker in ordered),
        )
    nearest = {
        device: min(
            (w for w in ordered if w.device == device), key=lambda worker: abs(worker.pid - chosen.pid)
        )
        for device in devices
    } | {chosen.device: chosen}
    selected = sorted(nearest.values())
    dropped = ", ".join(worker.name for worker in ordered if worker not in selected)
    return selected, [Reason("left out as other runs beside {}: {}", named, dropped)]


def keep_rank(golden: Dump, mine: Dump, number: int) -> None:
    """Leave one rank of both dumps, which are changed. Raises `DumpError` where that cannot be compared.

    Where one side ran on fewer ranks its tensors are put together of all shards of the other side, so that
    one rank of these says nothing. Ranks of GE and FX dumps are numbered alike and never put together.
    """
    for name, dump in (("golden", golden), ("mine", mine)):
        if number not in {rank.index for rank in dump.ranks}:
            available = ", ".join(str(rank.index) for rank in dump.ranks) or "none"
            raise DumpError(
                f"--acc-rank {number}: {name} {dump.root} has no such rank; choose one of {available}"
            )
    if len(golden.ranks) != len(mine.ranks) and not golden.of_graphs:
        raise DumpError(
            f"--acc-rank {number}: golden ran on {len(golden.ranks)} ranks and mine on {len(mine.ranks)}, so "
            "shards of all ranks make up each tensor; leave --acc-rank out"
        )
    for dump in {id(dump): dump for dump in (golden, mine)}.values():
        left = ", ".join(str(rank.index) for rank in dump.ranks if rank.index != number)
        dump.ranks = tuple(rank for rank in dump.ranks if rank.index == number)
        if left:
            dump.notes += (Reason("{}: --acc-rank {} leaves out the ranks {}", dump.name, number, left),)


# Names of dumps that are the same from run to run, fit for test ids.


_UNFIT = re.compile(r"[^\w+\-.]+", re.ASCII)


def stable_name(directory: str, fallback: str) -> str:
    """`msit_dump_20261120_213122` as `msit_dump`; characters that `-k` cannot select become `_`."""
    return _UNFIT.sub("_", TIMESTAMP.sub("", directory)).strip("_.") or fallback


# Directory listings, read once and remembered. Opening a dump of 100,000 files must not touch them all.


_NUMBER = re.compile(r"\d+")


def natural(name: str) -> str:
    """Sort key that puts `10_x` after `9_x`: of numbers without leading zeros the longer is the larger."""
    return _NUMBER.sub(_by_length, name)


def _by_length(number: re.Match[str]) -> str:
    digits = number[0].lstrip("0")
    return f"\0{chr(len(digits))}{digits}"  # before whatever a name may go on with


class Listing:
    """The entries of each directory, sorted by natural order; a missing directory holds nothing."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def directories(self, path: str | Path) -> tuple[str, ...]:
        """Names of the sub-directories of `path`. Raises `DumpError` where it may not be read."""
        return self._scan(path)[0]

    def files(self, path: str | Path) -> tuple[str, ...]:
        """Names of everything else in `path`, broken links included. Raises `DumpError` as above."""
        return self._scan(path)[1]

    def below(self, path: str | Path) -> list[Path]:
        """Sub-directories that may be looked into; what is hidden or forbidden is no dump of the user's."""
        paths = [Path(path) / name for name in self.directories(path) if not name.startswith(".")]
        return [path for path in paths if may_be_entered(path)]

    def _scan(self, path: str | Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        key = os.fspath(path)
        if key not in self._entries:
            indexed = listed_at(key)
            if is_mirrored(key):
                indexed_directories, indexed_files = indexed or ([], [])
                indexed = (
                    [*{*indexed_directories, *directories_in(key)}],
                    [*indexed_files, *names_in(key)],
                )
            if indexed is not None:
                self._entries[key] = _in_order(indexed[0]), _in_order(indexed[1])
                return self._entries[key]
            directories: list[str] = []
            files: list[str] = []
            try:
                with os.scandir(key) as entries:
                    for entry in entries:
                        (directories if entry.is_dir() else files).append(entry.name)
                files += names_in(key)
            except (FileNotFoundError, NotADirectoryError, ValueError):
                pass  # a ValueError is for names that no file can have, which files may hold all the same
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    return (), ()
                raise DumpError(
                    f"{key}: cannot be listed: {error.strerror}; check its permissions"
                ) from error
            self._entries[key] = _in_order(directories), _in_order(files)
        return self._entries[key]


def _in_order(names: list[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=natural)) if len(names) > 1 else tuple(names)
