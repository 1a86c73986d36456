"""Put a fault into a model: find the operator, and rebuild the graphs around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...errors import SettingsError
from ..graph import Call, Operation
from ..models.spec import ModelSpec
from ..topology import AtbModel
from .catalogue import FAULTS
from .fault import Fault, FaultKind, Leaf, Place


def inject(model: AtbModel, fault: Fault, spec: ModelSpec, rank: int) -> tuple[AtbModel, Place]:
    """The model of one rank with the fault in it, and where it is.

    Raises `SettingsError` for an unknown kind, a layer that is not there, when the layer has no operator
    that `fault.operator` names, or one that cannot have this fault.
    """
    kind = FAULTS.get(fault.kind)
    if kind is None:
        raise SettingsError(f"fault {fault.kind!r} is unknown; choose one of {', '.join(FAULTS)}")
    if not 0 <= fault.layer < len(model.layers):
        raise SettingsError(f"fault in layer {fault.layer}, but the model has {len(model.layers)} layers")
    index = model.layers[fault.layer]
    leaf = replace(_find(model.calls[index].operation, fault, kind, spec), rank=rank)
    layer = _rebuilt(model.calls[index], leaf.numbers, _wrong(kind, leaf))
    calls = (*model.calls[:index], layer, *model.calls[index + 1 :])
    return replace(model, calls=calls), Place(index, leaf.numbers, leaf.kind)


def _wrong(kind: FaultKind, leaf: Leaf) -> Operation:
    made = kind.make(leaf)
    return made if isinstance(made, Operation) else replace(leaf.operation, wrong=made)


def _leaves(operation: Operation, numbers: tuple[int, ...], path: str, spec: ModelSpec) -> Iterator[Leaf]:
    for index, call in enumerate(operation.calls):
        below, name = (*numbers, index), f"{path}/{index}_{call.operation.kind}"
        if call.operation.is_graph:
            yield from _leaves(call.operation, below, name, spec)
        else:
            yield Leaf(below, name, call, spec)


def _find(layer: Operation, fault: Fault, kind: FaultKind, spec: ModelSpec) -> Leaf:
    leaves = list(_leaves(layer, (), "", spec))
    if fault.operator:
        ends = ("/" + fault.operator, "_" + fault.operator)
        found = [leaf for leaf in leaves if leaf.path.endswith(ends)]
    else:
        found = [leaf for leaf in leaves if kind.is_usual(leaf)]
    if not found:
        names = ", ".join(leaf.path[1:] for leaf in leaves)
        wanted = fault.operator or f"that fault {fault.kind!r} fits ({kind.what})"
        raise SettingsError(f"layer {fault.layer} of this model has no operator {wanted}; it has {names}")
    leaf = found[-1] if kind.last and not fault.operator else found[0]
    if not kind.fits(leaf):
        raise SettingsError(
            f"fault {fault.kind!r} fits another operator than {leaf.kind}; "
            "leave the operator empty for the usual place"
        )
    return leaf


def _rebuilt(call: Call, numbers: tuple[int, ...], leaf: Operation) -> Call:
    if not numbers:
        return replace(call, operation=leaf)
    index, rest = numbers[0], numbers[1:]
    calls = call.operation.calls
    changed = _rebuilt(calls[index], rest, leaf)
    inside = replace(call.operation, calls=(*calls[:index], changed, *calls[index + 1 :]))
    return replace(call, operation=inside)
