"""Say what every tensor of a torch model is, from the names of its modules (tables of `tables.toml`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from ...dumps.base import Slot
from ...topology.tree import Node, Tree
from ..layers import Layer
from ..tables import ModuleRole, Tables
from .export import Export
from .fused import Fused, ShapeOf

Slots = Callable[[Node], Iterable[Slot]]
"""The slots that were dumped for a node."""

_FIRST_ARGUMENTS = ("hidden_states", "input", "x")
"""What a module works on, where its first argument was given by keyword."""
_FIRST_RESULTS = ("logits", "next_token_logits", "last_hidden_state", "hidden_states", "hidden")
"""The result of a module that returns fields by name."""


def _unknown(node: Node, slot: Slot) -> None:
    """What is known of a shape where no headers are at hand."""


def layer_exports(layer: Layer, tables: Tables, slots: Slots, shape: ShapeOf = _unknown) -> list[Export]:
    """Every export of a layer whose role a name rule knows, in completion order."""
    below = {layer.below(node): node for node in layer.node.walk()}
    exports: list[Export] = []
    for path, node in below.items():
        rule_and_match = _rule_for(path, tables.layer_roles, below)
        if rule_and_match is not None:
            exports.extend(_exports(node, *rule_and_match, tables, slots, shape))
    return sorted(exports, key=lambda export: export.node.order)


def model_exports(
    tree: Tree, layers: Sequence[Layer], tables: Tables, slots: Slots, shape: ShapeOf = _unknown
) -> list[Export]:
    """Exports outside the layers, plus the position tables of a rotary module inside the first one."""
    inside = {node for layer in layers for node in layer.node.walk()}
    exports: list[Export] = []
    for node in tree.walk():
        rule_and_match = _rule_for(node.path, tables.model_roles, ()) if node not in inside else None
        if rule_and_match is not None:
            exports.extend(_exports(node, *rule_and_match, tables, slots, shape))
    if layers and not any(export.form == "table" for export in exports):
        exports.extend(e for e in layer_exports(layers[0], tables, slots, shape) if e.form == "table")
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
    node: Node, rule: ModuleRole, match: re.Match[str], tables: Tables, slots: Slots, shape: ShapeOf
) -> Iterable[Export]:
    dumped = sorted(slots(node))
    outputs = [slot for slot in dumped if slot.kind == "output"]
    flat = [slot for slot in outputs if len(slot.index) == 1 and slot.positional]
    fused = Fused(node, dumped, flat, shape)
    role = rule.output
    if rule.output_residual and tables.adds_residual(node.op_type):
        role = rule.output_residual
    if rule.gated and fused.multiplies():
        role = match.expand(rule.gated)
    if role and (first := flat[:1] or _named(outputs, _FIRST_RESULTS)):
        yield fused.result(first[0], match.expand(role), rule)
    if len(flat) > 1:
        yield from (Export(node, slot, name) for slot, name in zip(flat[1:], rule.outputs[1:]))
    yield from _of_positions(node, flat, rule, fused)
    nested = [slot for slot in outputs if len(slot.index) > 1 and _may_be_cache(slot)]
    for slot, name in zip(nested, rule.caches):
        yield Export(node, slot, name, "cache")
    if rule.stream and len(flat) > 1:
        yield Export(node, flat[1], match.expand(rule.stream))
    elif name := ("" if rule.gated and fused.multiplies() else rule.input or rule.stream):
        first = [slot for slot in dumped if slot == Slot("input", (0,))]
        for slot in first or _named([s for s in dumped if s.kind == "input"], _FIRST_ARGUMENTS):
            yield Export(node, slot, match.expand(name))
    for form, names in (("cache", rule.heads_in), ("plain", rule.tokens_in)):
        for number, name in enumerate(names):
            slot = Slot("input", (number,))
            if name and slot in dumped:
                yield Export(node, slot, name, form)


def _of_positions(node: Node, flat: Sequence[Slot], rule: ModuleRole, fused: Fused) -> Iterable[Export]:
    """The outputs of a rotary module: position tables, or the query and key that it was handed, turned."""
    if rule.turned and fused.turns():
        yield from (Export(node, slot, name) for slot, name in zip(flat, rule.turned))
    elif len(flat) == 1 < len(rule.tables):
        for component, name in enumerate(rule.tables):
            yield Export(node, flat[0], name, "table", component)
    else:
        yield from (Export(node, slot, name, "table") for slot, name in zip(flat, rule.tables))


def _named(slots: Sequence[Slot], names: Sequence[str]) -> list[Slot]:
    """The slot that has the first of `names`, in a list of one; empty when there is none.

    A field of the only value that a module returns may stand below a number (`output[0][logits]`).
    """
    by_name = {slot.index[-1]: slot for slot in slots if slot.index[:-1] in ((), (0,))}
    return [by_name[name] for name in names if name in by_name][:1]


def _may_be_cache(slot: Slot) -> bool:
    """A tensor of a nested tuple, or the key or value of a cache object: keys sort before values in both."""
    return slot.positional or slot.index[-1] in ("key", "value")
