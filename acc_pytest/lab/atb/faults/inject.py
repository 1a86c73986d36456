"""Put a fault into a model: find the operator, and rebuild the graphs around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....errors import SettingsError
from ..graph import AtbModel, Call, Operation
from ..models.spec import ModelSpec
from .kinds import ATTENTION_KINDS, LAYER_KINDS, LINEAR_KINDS, Fault, FaultKind, FaultyOperator, Leaf

FAULTS: dict[str, FaultKind] = {kind.name: kind for kind in (*LAYER_KINDS, *ATTENTION_KINDS, *LINEAR_KINDS)}
"""Every fault by its name, which is what users type."""


def inject(model: AtbModel, fault: Fault, spec: ModelSpec, rank: int) -> tuple[AtbModel, FaultyOperator]:
    """The model of one rank with the fault in it, and where it is.

    Raises `SettingsError` for an unknown kind, a layer that is not there, when the layer has no operator
    that `fault.operator` names, one that cannot have this fault, or a size where the kind has none.
    """
    kind, index = _kind(fault.kind), _layer(model, fault.layer)
    if fault.size is not None and kind.size is None:
        raise SettingsError(f"fault {fault.kind!r} has no size ({kind.what}); leave the size out")
    size = kind.size if fault.size is None else fault.size
    leaf = replace(_find(model.calls[index].operation, fault, kind, spec), rank=rank, size=size or 0.0)
    layer = _rebuilt(model.calls[index], leaf.numbers, _wrong(kind, leaf))
    calls = (*model.calls[:index], layer, *model.calls[index + 1 :])
    return replace(model, calls=calls), FaultyOperator(index, leaf.numbers, leaf.kind)


def fitting(model: AtbModel, kind: str, layer: int, spec: ModelSpec) -> tuple[str, ...]:
    """Paths of the operators in `layer` that can have a fault of this kind, each fit for `Fault.operator`.

    Raises `SettingsError` for an unknown kind or a layer that is not there.
    """
    fits, top = _kind(kind).fits, model.calls[_layer(model, layer)].operation
    return tuple(leaf.path[1:] for leaf in _leaves(top, (), "", spec) if fits(leaf))


def _kind(name: str) -> FaultKind:
    if name not in FAULTS:
        raise SettingsError(f"fault {name!r} is unknown; choose one of {', '.join(FAULTS)}")
    return FAULTS[name]


def _layer(model: AtbModel, layer: int) -> int:
    if not 0 <= layer < len(model.layers):
        raise SettingsError(
            f"fault layer must be below {len(model.layers)} (the layers of the model), got {layer}"
        )
    return model.layers[layer]


def _wrong(kind: FaultKind, leaf: Leaf) -> Operation:
    fault = kind.make(leaf)
    return fault if isinstance(fault, Operation) else replace(leaf.operation, wrong=fault)


def _leaves(operation: Operation, numbers: tuple[int, ...], path: str, spec: ModelSpec) -> Iterator[Leaf]:
    for index, call in enumerate(operation.calls):
        place, name = (*numbers, index), f"{path}/{index}_{call.operation.kind}"
        if call.operation.is_graph:
            yield from _leaves(call.operation, place, name, spec)
        else:
            yield Leaf(place, name, call, spec)


def _find(layer: Operation, fault: Fault, kind: FaultKind, spec: ModelSpec) -> Leaf:
    leaves = list(_leaves(layer, (), "", spec))
    if fault.operator:
        ends = ("/" + fault.operator, "_" + fault.operator)
        exact = [leaf for leaf in leaves if leaf.path == ends[0]]
        fitting = exact or [leaf for leaf in leaves if leaf.path.endswith(ends)]
    else:
        fitting = [leaf for leaf in leaves if kind.is_usual(leaf)]
    if not fitting:
        names = ", ".join(leaf.path[1:] for leaf in leaves)
        description = fault.operator or f"that fault {fault.kind!r} fits ({kind.what})"
        raise SettingsError(
            f"layer {fault.layer} of this model has no operator {description}; choose one of {names}"
        )
    leaf = fitting[-1] if kind.last and not fault.operator else fitting[0]
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
