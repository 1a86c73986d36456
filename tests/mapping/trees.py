"""Small trees and in-memory dumps for the tests of mapping. Tensors are `.npy` files of zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy

from acc_pytest.dumps.base import Dump, Rank, Slot, Step, StepLabel
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.reconcile import Comparison
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.topology.tree import Node, Tree

Shapes = Mapping[tuple[str, str], "tuple[int, ...] | None"]
"""(path, slot text) -> shape, `None` meaning not dumped."""

OUT = Slot("output", (0,))


def torch_node(path: str, op_type: str, *children: Node) -> Node:
    """A module; children are named by their full paths."""
    node = Node(path, op_type, path)
    for child in children:
        node.add(child)
    return node


def atb_tree(spec: list[Any], model: str = "Model") -> Tree:
    """A tree from nested lists `[name, type, inputs, outputs, param, children]`; paths as the probe's."""
    root = Node("root", model, "")

    def build(parent: Node, entry: list[Any], index: int) -> None:
        name, op_type, inputs, outputs, *rest = entry
        param = rest[0] if rest else {}
        path = f"{index}_{op_type}"
        node = parent.add(
            Node(
                name,
                op_type,
                f"{parent.path}/{path}" if parent.path else path,
                param or {},
                tuple(inputs),
                tuple(outputs),
            )
        )
        for number, child in enumerate(rest[1] if len(rest) > 1 else []):
            build(node, child, number)

    for number, entry in enumerate(spec):
        build(root, entry, number)
    return Tree(root, model)


class MemoryDump(Dump):
    """A dump of one tree at some steps.

    Nodes not in `shapes` have one output of `default` shape, if that is given.
    """

    def __init__(
        self,
        directory: Path,
        kind: str,
        tree: Tree,
        shapes: Shapes = MappingProxyType({}),
        default: tuple[int, ...] | None = (2, 4),
        labels: tuple[StepLabel, ...] = (0,),
        ranks: int = 1,
    ) -> None:
        self.kind = kind
        self.root = directory
        self.name = kind
        self.ranks = tuple(Rank(number, f"{number}_1") for number in range(ranks))
        self.steps = tuple(Step(label, tree, str(label)) for label in labels)
        self._shapes = shapes
        self._default = default
        directory.mkdir(parents=True, exist_ok=True)

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        found = {}
        named = {slot: shape for (path, slot), shape in self._shapes.items() if path == node.path}
        if "output[0]" not in named and self._default is not None and node.path:
            named["output[0]"] = self._default
        for text, shape in named.items():
            if shape is not None:
                kind, _, index = text.partition("[")
                slot = Slot(
                    "output" if kind == "output" else "input",
                    tuple(int(i) for i in index.rstrip("]").split("][")),
                )
                found[slot] = TensorRef(self._file(shape))
        return dict(sorted(found.items()))

    def _file(self, shape: tuple[int, ...]) -> str:
        path = self.root / f"{'x'.join(map(str, shape)) or 'scalar'}.npy"
        if not path.exists():
            numpy.save(path, numpy.zeros(shape, "float32"))
        return str(path)


def relative_error(comparison: Comparison) -> float:
    """Relative L2 error of an opened comparison, in float64 over the whole tensors."""
    count = math.prod(comparison.golden.shape)
    golden = comparison.golden.read(0, count).double()
    return float((comparison.mine.read(0, count).double() - golden).norm() / golden.norm())


def by_mine(plan: Plan) -> dict[str, tuple[str, str, str]]:
    """Pair id -> (golden node, golden slot, policy)."""
    return {
        f"{pair.layer}/{pair.id}": (pair.golden.node, pair.golden.slot, pair.policy) for pair in plan.pairs
    }
