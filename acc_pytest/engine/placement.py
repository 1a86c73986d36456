"""Nodes that hold the tensors of a pair, and the bytes of these, without reading any.

A dump lies on the host that wrote it, rank by rank. So nodes are asked for one file of each rank and side,
and what holds for that one is taken to hold for all of them. It is a hint: a node that lacks a file says so.
Of files in a store, and of those of a named host, nobody is asked: their addresses say where they lie.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import AccError
from ..tensors.kept_file import file_size
from ..tensors.stores.address import is_address
from ..tensors.stores.mirror import mirror_at, placed
from .batches import ANYWHERE, PairSize

if TYPE_CHECKING:
    from ..mapping.pair import Pair
    from ..tensors.ref import TensorRef

UNKNOWN_SIZE = 2**20
"""Bytes that a tensor counts as whose file is not on this machine."""
Group = tuple[str, int, int]
"""Side, rank and place among the shards: what one host has written."""


class Placement:
    """The tensors of the pairs of a plan. `samples` are the files that nodes are asked for, or the addresses
    below which they lie."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        groups: dict[Group, str] = {}
        tensors_of: collections.Counter[str] = collections.Counter()
        for pair in pairs:
            for group, ref in _refs(pair):
                if group not in groups:
                    groups[group] = _sample(ref.path)
                tensors_of[ref.path] += 1
        self._shared = {path: tensors for path, tensors in tensors_of.items() if tensors > 1}
        self.samples = tuple(groups.values())
        self._order = {group: place for place, group in enumerate(groups)}
        self._on_disk = {place for place, sample in enumerate(self.samples) if not is_address(sample)}

    def sizes(
        self, numbers: Sequence[int], present: Mapping[str, Sequence[bool]], side: str = ""
    ) -> Iterator[PairSize]:
        """Pairs with their bytes and places, for one `side` the bytes of that. `present`: for each
        node, which samples it has.

        What lies on a disk can be read only there; all else from everywhere, but best where it lies.
        """
        for number in numbers:
            files = [
                (self._order[group], self._size(ref.path))
                for group, ref in _refs(self._pairs[number])
                if side in ("", group[0])
            ]
            nbytes = sum(size for _, size in files)
            able = [node for node, has in present.items() if self._can_read(files, has)] or [*present]
            on = {node: sum(size for place, size in files if present[node][place]) for node in able}
            largest = max(on.values(), default=0)
            best = frozenset(node for node, size in on.items() if size == largest)
            yield PairSize(number, nbytes, best if len(best) < len(present) else ANYWHERE)

    def _can_read(self, files: Sequence[tuple[int, int]], has: Sequence[bool]) -> bool:
        return all(has[place] for place, _ in files if place in self._on_disk)

    def _size(self, path: str) -> int:
        """Bytes of one tensor: its share of the file."""
        try:
            return file_size(path) // self._shared.get(path, 1)
        except (AccError, OSError, ValueError):
            return UNKNOWN_SIZE


def _sample(path: str) -> str:
    """The file on the disk that a path is, or the address below which it lies."""
    mirror = mirror_at(path)
    if mirror is None:
        return path
    file = placed(path)
    if file is None:  # of a kept dump, all of which lies together
        return mirror.table.sources[0].root
    return file.source_path if not is_address(file.row.source.root) else file.row.source.root


def _refs(pair: Pair) -> Iterator[tuple[Group, TensorRef]]:
    rank = -1 if pair.rank is None else pair.rank
    for side, operand in (("golden", pair.golden), ("mine", pair.mine)):
        for shard, ref in enumerate(operand.refs):
            yield (side, rank, shard), ref
