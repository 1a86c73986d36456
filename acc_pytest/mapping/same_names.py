"""Policies for two dumps of one kind: equal names (`name`), and trees aligned by type (`typecount`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..dumps.base import Slot
from ..topology.tree import Node, Tree
from .alignment import align
from .match import Match
from .roles.export import Export
from .tables import Tables

Slots = Callable[[Node], Iterable[Slot]]


def equal_names(golden: Tree, mine: Tree, golden_slots: Slots, mine_slots: Slots) -> Iterator[Match]:
    """Nodes of equal path (or, in ATB trees, equal full name), output by output.

    A nested output has a partner of the same nesting only, so a hidden state never meets a cache.
    """
    by_full_name = _unique_names(golden)
    for node in mine.walk():
        partner = golden.by_path.get(node.path) or by_full_name.get(node.name)
        if partner is not None and (partner.op_type == node.op_type or partner.path == node.path):
            yield from _outputs(partner, node, golden_slots, mine_slots, "name", "equal names")


def _unique_names(tree: Tree) -> dict[str, Node]:
    names: dict[str, Node | None] = {}
    for node in tree.walk():
        names[node.name] = None if node.name in names else node
    return {name: node for name, node in names.items() if node is not None}


def aligned_types(
    golden: Tree, mine: Tree, golden_slots: Slots, mine_slots: Slots, tables: Tables
) -> Iterator[Match]:
    """Children aligned by type, level by level; a quantised type counts as the float one it replaces.

    An operator that only one side has (a quantise, a split more) costs that operator, not the subtree.
    """

    def plain(node: Node) -> str:
        return tables.quant.get(node.op_type, node.op_type)

    def below(golden_node: Node, mine_node: Node) -> Iterator[Match]:
        for golden_child, mine_child in align(
            golden_node.children, mine_node.children, lambda g, m: plain(g) == plain(m)
        ):
            reason = (
                "same type at the same place"
                if golden_child.op_type == mine_child.op_type
                else "quantised against float"
            )
            yield from _outputs(golden_child, mine_child, golden_slots, mine_slots, "typecount", reason)
            yield from below(golden_child, mine_child)

    yield from below(golden.root, mine.root)


def _outputs(
    golden: Node, mine: Node, golden_slots: Slots, mine_slots: Slots, policy: str, reason: str
) -> Iterator[Match]:
    partners = set(golden_slots(golden))
    for slot in mine_slots(mine):
        if slot.kind == "output" and slot in partners:
            yield Match(Export(golden, slot, "name"), Export(mine, slot, "name"), policy, reason)


def only_file(golden: Tree, mine: Tree, golden_slots: Slots, mine_slots: Slots) -> Iterator[Match]:
    """Two single tensors are a pair whatever their names."""
    golden_nodes = [node for node in golden.walk() if list(golden_slots(node))]
    mine_nodes = [node for node in mine.walk() if list(mine_slots(node))]
    if len(golden_nodes) == len(mine_nodes) == 1:
        slot = Slot("output", (0,))
        ends = Export(golden_nodes[0], slot, "file"), Export(mine_nodes[0], slot, "file")
        yield Match(*ends, "file", "two files were given")
