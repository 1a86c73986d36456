"""Find the repeated layers of a tree, whatever their number and however many types they have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..base.reason import Reason
from ..topology.tree import Node, Tree
from .tables import Tables


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A repeated block: its place among the layers (0-based, execution order), node and label."""

    index: int
    node: Node
    label: str

    def below(self, node: Node) -> str:
        """The path of `node` inside this layer, empty for the layer itself."""
        return node.path[len(self.node.path) + 1 :]


_LISTS = (".layers", ".h", ".blocks", ".blk")
"""The ends of paths whose numbered children are layers, even if nothing inside of them was dumped."""


def find_layers(tree: Tree, tables: Tables) -> list[Layer]:
    """The layers of a tree, in execution order.

    Torch: the children of the topmost numbered lists (`root.model.layers.0`), a list of experts
    inside a layer not counting. ATB: the topmost composites that hold one attention operator each, so
    that dense and mixture-of-experts layers of different types line up; without any attention, the
    most repeated composite type of the top level.
    """
    nodes = _numbered(tree.root) or _around_attention(tree, tables) or _most_repeated(tree.root)
    towers = Counter(_tower(node) for node in nodes)
    counts: Counter[str] = Counter()
    layers = []
    for index, node in enumerate(nodes):
        tower = _tower(node)
        name = f"{tower}.layers" if len(towers) > 1 and tower else "layers"
        layers.append(Layer(index, node, f"{name}.{counts[tower]}"))
        counts[tower] += 1
    return layers


def next_norm(tree: Tree, node: Node) -> Node | None:
    """The first norm that ends after a node; `None` where there is none."""
    leaves = (leaf for leaf in tree.walk() if leaf.is_leaf and leaf.order > node.order)
    return min(filter(_is_norm, leaves), key=lambda norm: norm.order, default=None)


def _is_norm(node: Node) -> bool:
    last = node.path.rpartition(".")[2].lower()
    return "norm" in last or last.startswith("ln_") or "norm" in node.op_type.lower()


def _numbered(node: Node) -> list[Node]:
    """Children with a number for a name, `root.model.layers.0`, topmost ones only."""
    layers: list[Node] = []
    for child in node.children:
        home, _, last = child.path.rpartition(".")
        if home and last.isdigit() and (child.children or home.endswith(_LISTS)):
            layers.append(child)
        else:
            layers.extend(_numbered(child))
    return layers


def _tower(node: Node) -> str:
    """The path before the name of the list: it distinguishes the stacks of layers of a torch model."""
    parts = node.path.split(".")
    return ".".join(parts[1:-2]) if len(parts) > 3 else ""


def _around_attention(tree: Tree, tables: Tables) -> list[Node]:
    inside: dict[Node, int] = {}

    def count(node: Node) -> int:
        is_attention = int(node.is_leaf and tables.kind_of(node.op_type, node.param) == "attention")
        inside[node] = is_attention + sum(count(child) for child in node.children)
        return inside[node]

    count(tree.root)

    def topmost(node: Node) -> list[Node]:
        if node.children and inside[node] == 1 and node is not tree.root:
            return [node]
        return [layer for child in node.children if inside[child] for layer in topmost(child)]

    return topmost(tree.root)


def _most_repeated(root: Node) -> list[Node]:
    composites = [child for child in root.children if child.children]
    if not composites:
        return []
    op_type, times = Counter(child.op_type for child in composites).most_common(1)[0]
    return [child for child in composites if child.op_type == op_type] if times > 1 else []


def align_layers(golden: list[Layer], mine: list[Layer]) -> tuple[list[tuple[Layer, Layer]], str]:
    """Layer k with layer k; with unequal numbers, the tower of equal length or the shorter prefix.

    Returns the pairs and a sentence about layers without a partner (empty when there are none).
    """
    if len(golden) == len(mine):
        return list(zip(golden, mine)), ""
    for longer, shorter in ((golden, mine), (mine, golden)):
        for tower in sorted({_tower(layer.node) for layer in longer}):
            stack = [layer for layer in longer if _tower(layer.node) == tower]
            if len(stack) == len(shorter) and len(stack) < len(longer):
                pairs = list(zip(stack, golden if longer is mine else mine))
                pairs = pairs if longer is golden else [(g, m) for m, g in pairs]
                return pairs, Reason("layers: only the {} of `{}` have a counterpart", len(stack), tower)
    shared = min(len(golden), len(mine))
    note = Reason("layers: golden has {}, mine {}; the first {} are mapped", len(golden), len(mine), shared)
    return list(zip(golden, mine)), note
