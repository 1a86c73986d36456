"""Say what every tensor of a torch model is, from the names of its modules (tables of `tables.toml`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from ...dumps.base import Slot
from ...topology.tree import Node, Tree
from ..layers import Layer
from ..tables import ModuleRole, Tables
from .export import Export

Slots = Callable[[Node], Iterable[Slot]]
"""The slots that were dumped for a node."""


def layer_exports(layer: Layer, tables: Tables, slots: Slots) -> list[Export]:
    """Every export of a layer whose role a name rule knows, in completion order."""
    below = {layer.below(node): node for node in layer.node.walk()}
    exports: list[Export] = []
    for path, node in below.items():
        found = _rule_for(path, tables.layer_roles, below)
        if found is not None:
            exports.extend(_exports(node, *found, tables, slots))
    return sorted(exports, key=lambda export: export.node.order)


def model_exports(tree: Tree, layers: Sequence[Layer], tables: Tables, slots: Slots) -> list[Export]:
    """Exports outside the layers, plus the position tables of a rotary module inside the first one."""
    inside = {node for layer in layers for node in layer.node.walk()}
    exports: list[Export] = []
    for node in tree.walk():
        found = _rule_for(node.path, tables.model_roles, ()) if node not in inside else None
        if found is not None:
            exports.extend(_exports(node, *found, tables, slots))
    if layers and not any(export.form == "table" for export in exports):
        exports.extend(e for e in layer_exports(layers[0], tables, slots) if e.form == "table")
    return sorted(exports, key=lambda export: export.node.order)


def _rule_for(
    path: str, rules: Iterable[ModuleRole], siblings: Iterable[str]
) -> tuple[ModuleRole, re.Match[str]] | None:
    for rule in rules:
        match = rule.path.search(path)
        if match and (not rule.sibling or rule.sibling in siblings):
            return rule, match
    return None


def _exports(
    node: Node, rule: ModuleRole, match: re.Match[str], tables: Tables, slots: Slots
) -> Iterable[Export]:
    dumped = sorted(slots(node))
    outputs = [slot for slot in dumped if slot.kind == "output"]
    flat = [slot for slot in outputs if len(slot.index) == 1]
    role = (
        rule.output_residual if rule.output_residual and tables.adds_residual(node.op_type) else rule.output
    )
    if role and flat:
        yield Export(node, flat[0], match.expand(role))
    if len(flat) == 1 < len(rule.tables):
        for component, name in enumerate(rule.tables):
            yield Export(node, flat[0], name, "table", component)
    else:
        yield from (Export(node, slot, name, "table") for slot, name in zip(flat, rule.tables))
    nested = [slot for slot in outputs if len(slot.index) > 1]
    for slot, name in zip(nested, rule.caches):
        yield Export(node, slot, name, "cache")
    if rule.input:
        role = match.expand(rule.input)
        yield from (Export(node, slot, role) for slot in dumped if slot == Slot("input", (0,)))
