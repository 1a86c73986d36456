"""Say what every tensor of a torch model is, from the names of its modules (tables of `tables.toml`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ...dumps.base import Slot
from ...topology.tree import Node, Tree
from ..layers import Layer
from ..match import Export
from ..tables import ModuleRole, Tables

Slots = Callable[[Node], Iterable[Slot]]
"""The slots that were dumped for a node."""

_FIRST_ARGUMENTS = ("hidden_states", "input", "x")
"""Keywords of the tensor that a module works on, where its first argument has no place."""
_FIRST_RESULTS = ("logits", "next_token_logits", "last_hidden_state", "hidden_states", "hidden")
"""The result of a module that returns fields by name."""

_SECOND = "cross."
"""Begins the roles of a module whose name only ends like that of the rule: `encoder_attn.q_proj` is the query
of another attention than the layer's own."""


def _unknown(node: Node, slot: Slot) -> None:
    """The shape where no headers are at hand: none."""


def layer_exports(layer: Layer, tables: Tables, slots: Slots, shape: ShapeOf = _unknown) -> list[Export]:
    """Every export of a layer whose role a name rule knows, in completion order."""
    by_path = {layer.below(node): node for node in layer.node.walk()}
    exports: list[Export] = []
    for path, node in by_path.items():
        rule_and_match = _rule_for(path, tables.torch["layer"], by_path)
        if rule_and_match is not None:
            start = rule_and_match[1].start()
            prefix = _SECOND if start and path[start - 1] != "." else ""
            of_node = _exports(node, *rule_and_match, tables, slots, shape)
            exports.extend(replace(e, role=prefix + e.role) if prefix else e for e in of_node)
    return sorted(exports, key=lambda export: export.node.order)


def model_exports(
    tree: Tree, layers: Sequence[Layer], tables: Tables, slots: Slots, shape: ShapeOf = _unknown
) -> list[Export]:
    """Exports outside the layers, plus the position tables of a rotary module inside the first one."""
    inside = {node for layer in layers for node in layer.node.walk()}
    exports: list[Export] = []
    for node in tree.walk():
        rule_and_match = _rule_for(node.path, tables.torch["model"], ()) if node not in inside else None
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
    """The exports of a module by a rule; `match` fills in its names."""
    dumped = sorted(slots(node))
    flat = [slot for slot in dumped if slot.kind == "output" and len(slot.index) == 1 and slot.positional]
    fused = Fused(node, dumped, flat, shape)
    yield from _results(fused, rule, match, tables)
    yield from _of_positions(fused, rule)
    yield from _caches(fused, rule)
    yield from _worked_on(fused, rule, match)
    for form, names in (("cache", rule.heads_in), ("plain", rule.tokens_in)):
        for number, name in enumerate(names):
            slot = Slot("input", (number,))
            if name and slot in fused.dumped:
                yield Export(fused.node, slot, name, form)


def _results(fused: Fused, rule: ModuleRole, match: re.Match[str], tables: Tables) -> Iterable[Export]:
    """The first output, and those behind it that have names of their own."""
    role = rule.output
    if rule.output_residual and tables.adds_residual(fused.node.op_type):
        role = rule.output_residual
    if rule.gated and fused.multiplies():
        role = rule.gated
    first = fused.flat[:1] or _named(fused.of_kind("output"), _FIRST_RESULTS)
    if role and first:
        yield fused.result(first[0], match.expand(role), rule)
    yield from (Export(fused.node, slot, name) for slot, name in zip(fused.flat[1:], rule.outputs[1:]))


def _of_positions(fused: Fused, rule: ModuleRole) -> Iterable[Export]:
    """The outputs of a rotary module: position tables, or the query and key that it was handed, turned."""
    node, flat = fused.node, fused.flat
    if rule.turned and fused.turns():
        yield from (Export(node, slot, name) for slot, name in zip(flat, rule.turned))
    elif len(flat) == 1 < len(rule.tables):
        for component, name in enumerate(rule.tables):
            yield Export(node, flat[0], name, "table", component)
    else:
        yield from (Export(node, slot, name, "table") for slot, name in zip(flat, rule.tables))


def _caches(fused: Fused, rule: ModuleRole) -> Iterable[Export]:
    """The keys and values that a module hands out in a tuple or an object."""
    nested = [slot for slot in fused.of_kind("output") if len(slot.index) > 1 and _may_be_cache(slot)]
    yield from (Export(fused.node, slot, name, "cache") for slot, name in zip(nested, rule.caches))


def _worked_on(fused: Fused, rule: ModuleRole, match: re.Match[str]) -> Iterable[Export]:
    """The tensor that a module works on: its first input, or the stream beside the summand of a layer."""
    if rule.stream and len(fused.flat) > 1:
        yield Export(fused.node, fused.flat[1], match.expand(rule.stream))
        return
    name = rule.input or rule.stream
    if not name or (rule.gated and fused.multiplies()):
        return
    inputs = fused.of_kind("input")
    first = [slot for slot in inputs if slot == Slot("input", (0,))]
    for slot in first or _named(inputs, _FIRST_ARGUMENTS):
        yield Export(fused.node, slot, match.expand(name))


def _named(slots: Sequence[Slot], names: Sequence[str]) -> list[Slot]:
    """The slot that has the first of `names`, in a list of one; empty when there is none.

    A field of the only value that a module returns may stand below a number (`output[0][logits]`).
    """
    by_name = {slot.index[-1]: slot for slot in slots if slot.index[:-1] in ((), (0,))}
    return [by_name[name] for name in names if name in by_name][:1]


def _may_be_cache(slot: Slot) -> bool:
    """A tensor of a nested tuple, or the key or value of a cache object: keys sort before values in both."""
    return slot.positional or slot.index[-1] in ("key", "value")


ShapeOf = Callable[[Node, Slot], "tuple[int, ...] | None"]
"""The shape of a tensor by its header; `None` where it is not known."""

_MULTIPLIES = ("*AndMul", "SwiGLU*", "Swiglu*", "GeGLU*")
_QUERY_AND_KEY = (frozenset({(1,), (2,)}), frozenset({("query",), ("key",)}), frozenset({("q",), ("k",)}))


@dataclass(frozen=True, slots=True)
class Fused:
    """The dumped slots of a module, and its outputs by number."""

    node: Node
    dumped: Sequence[Slot]
    flat: Sequence[Slot]
    shape: ShapeOf

    def of_kind(self, kind: str) -> list[Slot]:
        """Its inputs or its outputs."""
        return [slot for slot in self.dumped if slot.kind == kind]

    def multiplies(self) -> bool:
        """Whether an activation gives half of what it is handed: it multiplies one half by the other."""
        input_width, output_width = self._width(Slot("input", (0,))), self._width(Slot("output", (0,)))
        if input_width and output_width:
            return input_width == 2 * output_width
        if any(fnmatchcase(self.node.op_type, glob) for glob in _MULTIPLIES):
            return True
        return not input_width and bool(output_width) and 2 * output_width == self._packed_width()

    def _packed_width(self) -> int:
        """The width of the pack of a neighbour, where nothing else says what an activation is handed."""
        parent = self.node.parent
        neighbours = parent.children if parent is not None else ()
        packs = [node for node in neighbours if node.path.rpartition(".")[2] == "gate_up_proj"]
        shape = self.shape(packs[0], Slot("output", (0,))) if packs else None
        return shape[-1] if shape else 0

    def turns(self) -> bool:
        """Whether a rotary module is handed query and key; without inputs, by its outputs."""
        arguments = {slot.index for slot in self.dumped if slot.kind == "input"}
        if arguments:
            return any(names <= arguments for names in _QUERY_AND_KEY)
        shapes = [self.shape(self.node, slot) for slot in self.flat[:2]]
        sizes = [shape for shape in shapes if shape is not None]
        return len(sizes) == 2 and (sizes[0] != sizes[1] or len(sizes[0]) == 2)

    def result(self, slot: Slot, role: str, rule: ModuleRole) -> Export:
        """The export of the first output."""
        if rule.residual_beside and len(self.flat) > 1:
            second = self.flat[1]
            if self._alike(slot, second):
                return Export(self.node, slot, role, "split", companions=(Export(self.node, second, role),))
        return Export(self.node, slot, role, "repeated" if rule.repeats else "plain")

    def _alike(self, slot: Slot, second: Slot) -> bool:
        """Whether two outputs are as wide; one may have less rows, where tokens are split over ranks."""
        shape, twin = self.shape(self.node, slot), self.shape(self.node, second)
        return shape is not None and twin is not None and (len(shape), shape[-1:]) == (len(twin), twin[-1:])

    def _width(self, slot: Slot) -> int:
        shape = self.shape(self.node, slot) if slot in self.dumped else None
        return shape[-1] if shape else 0
