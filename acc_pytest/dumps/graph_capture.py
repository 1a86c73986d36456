"""Tensors saved inside of captured NPU graphs: `{name}_device_{d}_{k}.pt`, one file for each.

    worldsize{W}_global_rank{R}/add_device_0_0.pt   by TorchAir, modes reduce-overhead and npugraph_ex
    hidden_device_0_0.pt                            by torch_npu.save_npugraph_tensor

TorchAir saves what FX nodes give, each under the name of the node, inputs of the graph as `arg0_1`, and one
of several results as `getitem`. `d` is the device. `k` counts the files of one name, which are the calls of a
node, over all graphs that have one of this name; files that replace each other have no `k`. Nothing but the
times of the files says in which order nodes ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..tensors.kept_dump import modified
from ..tensors.ref import TensorRef
from ..topology.tree import Node, Tree
from .base import Dump, DumpLayout, Listing, PlainLayout, Rank, Slot, Step, natural, stable_name
from .torchair_files import rank_of

_FILE = re.compile(
    r"(?P<name>.+?)_device_(?P<device>\d{1,4})(?:_(?P<call>\d{1,9}))?\.(?:pt|pth|bin)", re.ASCII
)
_UNNAMED = re.compile(r"tensor_(\d{13,17})", re.ASCII)
"""The name of a tensor that was saved without a path: the time."""
_SUFFIXES = frozenset({".pt", ".pth", ".bin"})
_ROOT = "captured"


def dumps_at(path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump in a directory or in those of its ranks; none where other tensors lie there too."""
    of_ranks = [path / name for name in listing.directories(path) if rank_of(name) is not None]
    places = [path] if _only_captured(path, listing) else of_ranks
    if homes := [home for home in places if _only_captured(home, listing)]:
        yield PlainLayout("captured graph", path, lambda _: GraphCaptureDump(path, homes, listing))


@dataclass(frozen=True, slots=True)
class _Saved:
    name: str
    device: int
    call: int
    path: str


class GraphCaptureDump(Dump):
    """A node is a name with the one slot `output[0]`; a step is the number of its call."""

    kind = "graph_capture"
    of_graphs = True

    def __init__(self, root: Path, homes: Sequence[Path], listing: Listing) -> None:
        self.root = root
        bare = rank_of(root.name) is not None
        self.name = _ROOT if bare else stable_name(root.name, _ROOT)
        by_rank = _by_rank(homes, listing)
        self.ranks = tuple(Rank(index, name) for index, name in sorted(by_rank))
        self._calls: dict[tuple[str, str], list[TensorRef]] = {}
        order: dict[str, int] = {}
        for (_, rank), saved in sorted(by_rank.items()):
            for file in sorted(saved, key=lambda file: (file.call, natural(file.path))):
                self._calls.setdefault((rank, file.name), []).append(TensorRef(file.path))
                order.setdefault(file.name, modified(file.path))
        names = sorted(order, key=lambda name: (order[name], natural(name)))
        call_count = max(len(calls) for calls in self._calls.values())
        steps = []
        for call in range(call_count):
            ran = [
                name for name in names if any(len(self.calls_of(rank, name)) > call for rank in self.ranks)
            ]
            tree = Node(_ROOT, "CapturedGraph", "")
            for name in ran:
                tree.add(Node(name, "Captured", name))
            steps.append(Step(call, Tree(tree, _ROOT), str(call)))
        self.steps = tuple(steps)
        self.names = tuple(names)
        self.notes = ("operators stand in the order in which their files were written",)

    def calls_of(self, rank: Rank, name: str) -> Sequence[TensorRef]:
        """The tensors of a node on a rank, call by call."""
        return self._calls.get((rank.name, name), ())

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        calls = self.calls_of(rank, node.path)
        number = int(step.label)
        return {Slot("output"): calls[number]} if number < len(calls) else {}


def _only_captured(home: Path, listing: Listing) -> bool:
    names = [name for name in listing.files(home) if Path(name).suffix in _SUFFIXES]
    return bool(names) and all(map(_FILE.fullmatch, names))


def _by_rank(homes: Sequence[Path], listing: Listing) -> dict[tuple[int, str], list[_Saved]]:
    """The files of each rank: that of their directory or, where that names none, their device."""
    by_rank: dict[tuple[int, str], list[_Saved]] = {}
    for home in homes:
        number = rank_of(home.name)
        for file in _numbered(_saved(home, listing)):
            key = (number, home.name) if number is not None else (file.device, f"device{file.device}")
            by_rank.setdefault(key, []).append(file)
    return by_rank


def _saved(home: Path, listing: Listing) -> Iterable[_Saved]:
    for name in listing.files(home):
        if match := _FILE.fullmatch(name):
            yield _Saved(match["name"], int(match["device"]), int(match["call"] or 0), f"{home}/{name}")


def _numbered(files: Iterable[_Saved]) -> Iterable[_Saved]:
    """The files; those that are called after the time are numbered in the order of their times."""
    counts: dict[int, int] = {}
    for file in sorted(files, key=lambda file: (natural(file.name), file.call)):
        if _UNNAMED.fullmatch(file.name) is None:
            yield file
            continue
        count = counts[file.device] = counts.get(file.device, -1) + 1
        yield _Saved("tensor", file.device, count, file.path)
