"""The part of a dump that is kept: some of its steps, ranks and nodes.

A file belongs to the tensors in it. One that only tensors outside of the selection need is left out, and so
is a directory that held such files and keeps none: a step, a rank. Everything else stays, for it says what
the dump is: topologies, manifests, weights, and what the run was fed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ...dumps import Dump, Rank, Slot, StepLabel
from ...dumps.token_policy import WARMUP
from ...errors import SettingsError
from ...tensors.ref import TensorRef, readable
from ...topology.tree import Node

_INPUT_DTYPES = frozenset({"int32", "int64", "bool"})
"""Types of ids, positions, lengths and masks."""
_LARGEST_MASK = 1_000_000
"""Elements of a mask of floats up to which it stays."""
_LISTED = 20
_NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_MOST = 100_000
"""Numbers in one stretch."""


@dataclass(frozen=True, slots=True)
class DumpPart:
    """The part that is kept: labels of steps, numbers of ranks, globs of `fnmatch` for paths or names of
    nodes.

    What is empty means all of them.
    """

    steps: tuple[StepLabel, ...] = ()
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    @classmethod
    def of(cls, steps: Iterable[str], ranks: Iterable[str], nodes: Iterable[str]) -> DumpPart:
        """The part that the options select: `0,3-5` or `warmup,0` for steps.

        Raises `SettingsError` for what is no number.
        """
        labels: list[StepLabel] = []
        for word in _texts(steps):
            labels += [word] if word == WARMUP else _numbers("--step", word)
        numbers = [number for word in _texts(ranks) for number in _numbers("--rank", word)]
        return cls(tuple(labels), tuple(numbers), tuple(nodes))

    def __bool__(self) -> bool:
        return bool(self.steps or self.ranks or self.nodes)

    def has_step(self, label: StepLabel) -> bool:
        """Whether a step is kept."""
        return not self.steps or label in self.steps

    def names(self, ranks: Iterable[Rank]) -> frozenset[str]:
        """The names of the ranks that are kept: without the others they may have other numbers."""
        return frozenset(rank.name for rank in ranks if not self.ranks or rank.index in self.ranks)

    def has_node(self, node: Node) -> bool:
        """Whether a node is kept."""
        named = (node.path, node.name)
        return not self.nodes or any(fnmatchcase(text, glob) for glob in self.nodes for text in named)


WHOLE = DumpPart()
"""All of a dump."""


def left_out(dump: Dump, selection: DumpPart) -> frozenset[str]:
    """The files and directories of a dump that are not kept, by absolute path.

    Raises `SettingsError` for a selection that the dump has nothing of.
    """
    if not selection:
        return frozenset()
    labels = list(dict.fromkeys(step.label for step in dump.steps))
    _require("--step", selection.steps, labels, dump)
    _require("--rank", selection.ranks, [rank.index for rank in dump.ranks], dump)
    trees = {id(step.tree): step.tree for step in dump.steps if selection.has_step(step.label)}
    for glob in selection.nodes:
        pattern = DumpPart(nodes=(glob,))
        if not any(pattern.has_node(node) for tree in trees.values() for node in tree.walk()):
            raise SettingsError(f"--node {glob}: {dump.root} has no such node; acc map lists what it has")
    selected: set[str] = set()
    unselected: set[str] = set()
    for ref, is_selected in _files(dump, selection, selection.names(dump.ranks)):
        (selected if is_selected else unselected).add(os.path.abspath(ref.path))
    if not selected:
        raise SettingsError(
            f"{dump.root}: holds no tensor of {_description(selection)}; see what acc map lists"
        )
    unselected -= selected
    around = set(_directories_around(unselected)) - set(_directories_around(selected))
    return frozenset(unselected | around)


def notes_on(dump: Dump, selection: DumpPart, ranks: frozenset[str]) -> tuple[str, ...]:
    """Notes on the part that was kept, where it is not as the selection says; `ranks` are the names of
    ranks."""
    labels = [step.label for step in dump.steps]
    if not set(selection.steps) <= set(labels):
        return (f"steps have other numbers without those before them: {', '.join(map(str, labels))}",)
    surplus = sum(not is_selected for _, is_selected in _files(dump, selection, ranks))
    return (f"not selected, and kept in the same files, whole or as statistics: {surplus} tensors",) * bool(
        surplus
    )


def _files(dump: Dump, selection: DumpPart, ranks: frozenset[str]) -> Iterator[tuple[TensorRef, bool]]:
    """Each tensor, and whether it is kept."""
    for rank in dump.ranks:
        has_rank = rank.name in ranks
        if not has_rank:
            yield from ((ref, False) for ref in dump.dumped_weights(rank).values())
        for step in dump.steps:
            may = has_rank and selection.has_step(step.label)
            for node in step.tree.walk():
                selected = may and selection.has_node(node)
                for slot, ref in dump.tensors(step, rank, node).items():
                    yield ref, selected or (may and _may_be_input(slot, ref))


def _may_be_input(slot: Slot, ref: TensorRef) -> bool:
    """Whether it may be what a run was fed, which every comparison looks at first."""
    header = readable(ref) if slot.kind == "input" else None
    if header is None:
        return False
    mask = any("mask" in key for key in slot.index if isinstance(key, str))
    return header.dtype.name in _INPUT_DTYPES or (mask and math.prod(header.shape) <= _LARGEST_MASK)


def _require(option: str, choices: Iterable[object], available: Sequence[object], dump: Dump) -> None:
    for choice in choices:
        if choice not in available:
            ellipsis = ", ..." if len(available) > _LISTED else ""
            listed = ", ".join(map(str, available[:_LISTED])) + ellipsis
            raise SettingsError(f"{option} {choice}: {dump.root} has none of that name; choose of {listed}")


def _texts(options: Iterable[str]) -> list[str]:
    return [word.strip() for option in options for word in option.split(",")]


def _numbers(option: str, word: str) -> range:
    """The numbers of `3`, or of `3-5`."""
    match = _NUMBERS.fullmatch(word)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not first <= last < first + _MOST:
        raise SettingsError(f"{option} must be numbers such as 0,3-5, got {word!r:.100}")
    return range(first, last + 1)


def _description(selection: DumpPart) -> str:
    options = (("step", selection.steps), ("rank", selection.ranks), ("node", selection.nodes))
    return ", ".join(f"{word} {' or '.join(map(str, values))}" for word, values in options if values)


def _directories_around(files: Iterable[str]) -> Iterator[str]:
    directories: set[str] = set()
    for file in files:
        directory = os.path.dirname(file)
        while directory not in directories and os.path.dirname(directory) != directory:
            directories.add(directory)
            yield directory
            directory = os.path.dirname(directory)
