"""`Dump`: what every dump looks like to the rooms above, whatever its layout on disk."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Union

from ..tensors.ref import TensorRef
from ..topology.tree import Node, Tree

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
    of the dump that the user gave, empty where it is a whole one.
    """

    kind: str
    root: Path
    name: str
    ranks: tuple[Rank, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    forced: bool = False
    only: str = ""

    @abstractmethod
    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        """The tensors dumped for `node`, slots in numeric order; empty where nothing was dumped."""

    def asks_for(self, label: StepLabel) -> bool:
        """Whether all ranks are to have a step, as far as is known: one has it, or it was asked for."""
        return False

    def absent(self, step: Step, rank: Rank) -> Mapping[str, Sequence[str]]:
        """The files of a step and rank that the dump's own records name and that are not there, by the path
        of their node; empty where the dump has no such records."""
        return {}
