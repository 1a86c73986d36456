"""Tensor files outside any dump: one file, or a plain directory of files, as a dump with one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..base.vocabulary import ORDERS_OF_NAMES
from ..errors import FormatError
from ..tensors.ref import TensorRef
from ..topology.tree import SAVED, Node, Tree
from .base import Dump, Listing, Rank, Slot, Step, stable_name

SUFFIXES = (".bin", ".pth", ".pt", ".npy", ".npz", ".safetensors")
_DEEPEST, _MOST_DIRECTORIES = 8, 2000
"""Levels and directories in which tensor files are looked for."""
_FEW = 256
"""Files of torch that are looked into for several tensors."""


class SingleDump(Dump):
    """Files side by side: a flat tree with a node per tensor, each with the one slot `output[0]`.

    A node is named after its file without the suffix; the tensors of a safetensors file after their keys,
    below the file's name where there are several files. Raises `FormatError` for a broken safetensors header.
    """

    kind = "tensor"
    order = ORDERS_OF_NAMES[-1]

    def __init__(self, root: Path, files: Sequence[Path]) -> None:
        self.root = root
        self.name = stable_name(root.stem if len(files) == 1 and files[0] == root else root.name, "tensors")
        self.ranks = (Rank(0, ""),)
        self._refs: dict[str, TensorRef] = {}
        for file in files:
            for name, ref in tensors_in(file, len(files)):
                self._refs[
                    _unique(name if len(files) == 1 or not ref.member else f"{file.stem}.{name}", self._refs)
                ] = ref
        tree = Node(name=self.name, op_type=SAVED, path="")
        for path in self._refs:
            tree.add(Node(name=path, op_type=SAVED, path=path))
        self.steps = (Step(0, Tree(tree, self.name), ""),)

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        return {Slot("output"): self._refs[node.path]} if node.path in self._refs else {}


def tensor_files(place: Path, listing: Listing) -> tuple[Path, ...]:
    """The tensor files below a directory, at any depth; empty where there are none, or too many places."""
    files: list[Path] = []
    level, count = [place], 1
    for _ in range(_DEEPEST):
        files += [home / name for home in level for name in listing.files(home) if name.endswith(SUFFIXES)]
        level = [below for home in level for below in listing.below(home)]
        count += len(level)
        if count > _MOST_DIRECTORIES:
            return ()
    return tuple(files)


def tensors_in(file: Path, count: int) -> list[tuple[str, TensorRef]]:
    """The tensors of a file by their names in it; one that may hold but one is named after the file, such as
    a file of torch among a large `count`."""
    path = str(file)
    members: Sequence[str] = ()
    if file.suffix == ".safetensors":
        from ..tensors import safetensors_file

        members = safetensors_file.keys(path)
    elif file.suffix == ".npz":
        from ..tensors import npz_file

        members = npz_file.names(path)
    elif (file.suffix in (".pt", ".pth") or file.stem.startswith("pytorch_model")) and count <= _FEW:
        from ..tensors import torch_file

        # A file that is older, or damaged: its own pair says so.
        with suppress(FormatError):
            members = [member for member in torch_file.content_of(path).tensors if member]
    return [(member, TensorRef(path, member)) for member in members] or [(file.stem, TensorRef(path))]


def _unique(name: str, used: Mapping[str, TensorRef]) -> str:
    """`x.npy` beside `x.pth` keep apart as `x` and `x.1`."""
    candidate, count = name, 0
    while candidate in used:
        count += 1
        candidate = f"{name}.{count}"
    return candidate
