"""Put one named fault into one operator of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ..errors import SettingsError
from .graph import Call, Operation
from .operations import rms_norm
from .spec import Fault
from .topology import AtbModel

Tensors = tuple[torch.Tensor, ...]
Change = Callable[[Tensors, Tensors], Tensors]
"""(inputs, right results) -> wrong results."""

RESIDUALS = ("hidden", "attended")
"""What the layers of all families call the tensor that goes around attention and feed-forward."""
WRONG_EPSILON = 1e-2


def inject(model: AtbModel, fault: Fault, rank: int) -> tuple[AtbModel, str]:
    """The model with the fault in it, and the full name of the operator that holds it.

    Raises `SettingsError` when the layer has no operator that `fault.operator` names, or one that
    cannot have this fault.
    """
    index = model.layers[fault.layer]
    place, leaf = _find(model.calls[index].operation, fault)
    if not FITS[fault.kind](leaf):
        raise SettingsError(
            f"demo: fault {fault.kind!r} fits another operator than {leaf.operation.kind}; "
            "leave the operator empty for the usual place"
        )
    layer = _rebuilt(model.calls[index], place, fault, rank)
    calls = (*model.calls[:index], layer, *model.calls[index + 1 :])
    ids = "_".join(map(str, (model.first + index, *place)))
    return replace(model, calls=calls), f"{leaf.operation.kind}_{ids}"


def _leaves(
    operation: Operation, numbers: tuple[int, ...], path: str
) -> Iterator[tuple[tuple[int, ...], str, Call]]:
    for index, call in enumerate(operation.calls):
        below, name = (*numbers, index), f"{path}/{index}_{call.operation.kind}"
        if call.operation.calls:
            yield from _leaves(call.operation, below, name)
        else:
            yield below, name, call


def _find(layer: Operation, fault: Fault) -> tuple[tuple[int, ...], Call]:
    """The operator the fault names, else the first that usually has it (the last one for `residual`)."""
    leaves = list(_leaves(layer, (), ""))
    if fault.operator:
        ends = ("/" + fault.operator, "_" + fault.operator)
        found = [(numbers, call) for numbers, path, call in leaves if path.endswith(ends)]
    else:
        usual = USUAL.get(fault.kind, FITS[fault.kind])
        found = [(numbers, call) for numbers, _, call in leaves if usual(call)]
    if not found:
        names = ", ".join(path[1:] for _, path, _ in leaves)
        raise SettingsError(
            f"demo: no operator {fault.operator or fault.kind!r} in layer {fault.layer}; it has {names}"
        )
    return found[-1] if fault.kind == "residual" and not fault.operator else found[0]


def _rebuilt(call: Call, place: tuple[int, ...], fault: Fault, rank: int) -> Call:
    operation = call.operation
    if not place:
        return replace(call, operation=_wrong(call, fault, rank))
    index, rest = place[0], place[1:]
    changed = _rebuilt(operation.calls[index], rest, fault, rank)
    calls = (*operation.calls[:index], changed, *operation.calls[index + 1 :])
    return replace(call, operation=replace(operation, calls=calls))


def _wrong(call: Call, fault: Fault, rank: int) -> Operation:
    leaf = call.operation
    compute = leaf.compute
    if fault.kind == "norm_eps" or compute is None:
        return rms_norm(WRONG_EPSILON)
    change = _without(call) if fault.kind == "residual" else CHANGES[fault.kind]

    def collective(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        made = compute(parts)
        ranks = (1,) if fault.kind == "replica" else range(len(made))
        return [change((), (part,))[0] if i == rank and i in ranks else part for i, part in enumerate(made)]

    def single(*inputs: torch.Tensor) -> Any:
        made = compute(*inputs)
        return change(inputs, made if isinstance(made, tuple) else (made,))

    return replace(leaf, compute=collective if leaf.collective else single)


def _without(call: Call) -> Change:
    """The sum without its residual."""
    kept = 1 if call.inputs[0] in RESIDUALS else 0
    return lambda inputs, _: (inputs[kept],)


def _on_first(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda _, results: (change(results[0]), *results[1:])


def _nan(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.view(-1)[x.numel() // 2] = float("nan")
    return x


def _row(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.view(-1, x.shape[-1])[-1] *= -1
    return x


def _swap_heads(inputs: Tensors, results: Tensors) -> Tensors:
    heads, size = inputs[0].shape[-2:]
    swapped = results[0].reshape(-1, heads, size).flip(1).reshape(results[0].shape)
    return swapped, *results[1:]


def _rope_sign(inputs: Tensors, results: Tensors) -> Tensors:
    """x cos - turned(x) sin instead of x cos + turned(x) sin."""
    cos = inputs[2][:, None]
    return tuple(2 * x.reshape(right.shape) * cos - right for x, right in zip(inputs[:2], results))


CHANGES: dict[str, Change] = {
    "rope_sign": _rope_sign,
    "scale": _on_first(lambda x: x * 1.01),
    "nan": _on_first(_nan),
    "row": _on_first(_row),
    "transpose": _swap_heads,
    "replica": _on_first(lambda x: x * 1.05),
}


def _is_linear(call: Call) -> bool:
    return call.operation.kind == "LinearOperation"


def _computes(call: Call) -> bool:
    return call.operation.compute is not None


FITS: dict[str, Callable[[Call], bool]] = {
    "residual": lambda call: (
        call.operation.kind == "ElewiseOperation" and any(n in RESIDUALS for n in call.inputs)
    ),
    "rope_sign": lambda call: call.operation.kind == "RopeOperation",
    "norm_eps": lambda call: call.operation.kind == "RmsNormOperation",
    "scale": _computes,
    "nan": _computes,
    "row": _computes,
    "transpose": lambda call: call.operation.kind.endswith("AttentionOperation"),
    "replica": lambda call: call.operation.collective,
}
"""Which operators can have a fault."""
USUAL = {"scale": _is_linear, "nan": _is_linear, "row": _is_linear}
"""Where a fault that any operator can have is put when the user does not say."""
