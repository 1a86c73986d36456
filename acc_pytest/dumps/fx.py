"""Dumps of FX: the tensors of every call of an aten graph, as TorchAir and our own backend write them.

Positions are arguments, so `INPUT.0.1` is `input[0][1]`; keyword arguments, which only our backend
writes, have names. Nothing is opened here: what a file holds is for the reader to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..tensors.ref import TensorRef
from ..topology.tree import Node
from .base import Slot
from .torchair import StepKey, TorchairDump
from .torchair_files import FxFileName, TorchairDirectory, TorchairFiles, fx_directory

FxEntry = dict[Slot, tuple[FxFileName, str]]
"""The files of one call by slot, each with what its name says."""


class FxDump(TorchairDump[FxEntry]):
    """An FX dump. A node is a call: `name` is the FX node (`add_3`), `op_type` its target."""

    kind = "fx"

    def __init__(self, root: Path, files: TorchairFiles) -> None:
        self._files = files.fx
        super().__init__(root, files, files.fx)

    def _directory(self, home: str) -> TorchairDirectory:
        return fx_directory(home)

    def _content(
        self, homes: list[str], directories: Mapping[str, TorchairDirectory], group: StepKey
    ) -> dict[str, tuple[Node, FxEntry]]:
        entries: dict[str, FxEntry] = {}
        times: dict[str, int] = {}
        again: set[str] = set()
        for home in homes:
            for name, parsed in self._files[home]:
                path = f"{parsed.node}-{parsed.target}"
                slot = Slot("input" if parsed.kind == "input" else "output", parsed.index)
                files = entries.setdefault(path, {})
                before = files.get(slot)
                if before is not None and before[0].time != parsed.time:
                    again.add(path)
                # A tensor beats the numbers that a conversion made of one, a later call an earlier one.
                if before is None or _rank(before[0]) < _rank(parsed):
                    files[slot] = parsed, f"{home}/{name}"
                times[path] = max(times.get(path, 0), parsed.time)
        if again:
            self._notes.append(
                f"{group[1]} step {group[2]}: {len(again)} operators were dumped several times into one step "
                f"({min(again)}, ...); the last call counts"
            )
        ordered = sorted(entries, key=lambda path: times[path])
        return {
            path: (self._node(path, entries[path]), dict(sorted(entries[path].items()))) for path in ordered
        }

    @staticmethod
    def _node(path: str, files: FxEntry) -> Node:
        parsed = next(iter(files.values()))[0]
        return Node(name=parsed.node, op_type=parsed.target, path=path)

    def _slots(self, node: Node, entry: FxEntry) -> Mapping[Slot, TensorRef]:
        return {slot: TensorRef(path) for slot, (_, path) in entry.items()}


def _rank(name: FxFileName) -> tuple[bool, int]:
    return not name.info, name.time
