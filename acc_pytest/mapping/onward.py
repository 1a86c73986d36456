"""What a side makes of a tensor next, where that may be a multiple of it: some models scale embeddings and
experts inside of the module, others after it."""

from __future__ import annotations

from collections.abc import Mapping

from ..dumps.base import Slot
from ..topology.tree import Node
from .layered_tree import LayeredTree
from .roles.export import Export

_FIRST = Slot("output", (0,))
Roles = Mapping[tuple[str, Slot], tuple[str, str]]
"""The role and the form of each tensor, by its path and slot."""


def onward_of(tree: LayeredTree, export: Export, roles: Roles) -> tuple[Export, ...]:
    """A tensor, the next one, and what else is added to that: the number by which the first is multiplied is
    that of the export, too. Empty where nothing multiplies it."""
    role = roles.get((export.node.path, export.slot), ("", ""))[0]
    if export.slot.kind != "output":
        return ()
    if role == "embed":
        return _stream(tree, export)
    if role in ("routed", "down"):
        return _mixture(tree, export.node, roles)
    if role == "router_weight" and export.node.parent is not None:
        experts = [
            n for n in export.node.parent.children if roles.get((n.path, _FIRST)) == ("routed", "plain")
        ]
        return _mixture(tree, experts[0], roles) if experts else ()
    return ()


def _stream(tree: LayeredTree, embedding: Export) -> tuple[Export, ...]:
    """With what the first layer is handed, where it is as large."""
    wanted = tree.shape(embedding.node, embedding.slot)
    for layer in tree.layers[:1]:
        for node in (layer.node, *layer.node.walk()):
            for slot in tree.slots(node):
                if slot.kind == "input" and wanted and tree.shape(node, slot) == wanted:
                    return embedding, Export(node, slot, "stream")
    return ()


def _mixture(tree: LayeredTree, experts: Node, roles: Roles) -> tuple[Export, ...]:
    """With what the module around experts gives, and what shared experts in it give; empty for what is in no
    mixture."""
    around = experts.parent
    if (
        around is None
        or not tree.has(around, _FIRST)
        or roles.get((around.path, _FIRST)) != ("down", "plain")
    ):
        return ()
    shared = [
        node
        for node in around.children
        if roles.get((node.path, _FIRST)) == ("shared.down", "plain") and tree.has(node, _FIRST)
    ]
    return tuple(Export(node, _FIRST, "onward") for node in (experts, around, *shared))
