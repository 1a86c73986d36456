"""`Node` and `Tree`: the one representation of a model that mapping works on, whatever wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SAVED = "Tensor"
"""Type of a node that is no call, but a tensor that the program saved by name."""


@dataclass(slots=True, eq=False)
class Node:
    """An operator, layer or module.

    `path` is unique in its tree and names the node's place in the dump:
    `root.model.layers.0.mlp` (torch) or `2_Prefill_layer/0_Attention` (ATB).
    `name` is what people call it: `mlp`'s dotted path again for torch, `Attention_2_0` for ATB.
    `inputs` and `outputs` are tensor names of the dataflow (empty where the topology has none).
    """

    name: str
    op_type: str
    path: str
    param: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    children: list[Node] = field(default_factory=list)
    parent: Node | None = field(default=None, repr=False)
    order: int = 0

    def add(self, child: Node) -> Node:
        """Append a child and return it."""
        child.parent = self
        self.children.append(child)
        return child

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first, children in execution order."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def is_leaf(self) -> bool:
        return not self.children

    @property
    def depth(self) -> int:
        """Number of ancestors; 0 for the root."""
        count, node = 0, self.parent
        while node is not None:
            count, node = count + 1, node.parent
        return count


@dataclass(slots=True, eq=False)
class Tree:
    """A model: `root` stands for the whole and (ATB) has no tensors of its own.

    `Node.order` is completion order: a node comes after everything inside it, so that the first
    bad node in this order is the smallest one.
    """

    root: Node
    model: str
    by_path: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.by_path = {node.path: node for node in self.root.walk()}
        for order, node in enumerate(_completion(self.root)):
            node.order = order

    def walk(self) -> Iterator[Node]:
        """All nodes, parents first."""
        return self.root.walk()


def _completion(node: Node) -> Iterator[Node]:
    for child in node.children:
        yield from _completion(child)
    yield node
