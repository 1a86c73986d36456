"""Execute operations on every rank in step, and say of each what happened.

Leaves are computed by `operators`: wide, then rounded once to the output's dtype, so that every operation
reads what the one before it wrote, as on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..operators import compute, compute_collective, operator_of
from .graph import Call, Cell, Operation, Scope, Tensors, ViewCell


@dataclass(frozen=True, slots=True)
class Execution:
    """One operation that has run on one rank.

    `path` holds the directory names from the top-level operation down (`2_Prefill_layer`, `0_Attention`).
    `before` and `after` are its inputs around the execution, `stale` its outputs before it (`None`
    where memory had not been written, where a device would show garbage), `outputs` its results.
    """

    rank: int
    path: tuple[str, ...]
    operation: Operation
    before: Tensors
    after: Tensors
    stale: tuple[torch.Tensor | None, ...]
    outputs: Tensors

    @property
    def ids(self) -> tuple[int, ...]:
        """(2, 0): the id of the top-level operation, then the index in every graph below it."""
        return tuple(int(name.split("_", 1)[0]) for name in self.path)

    @property
    def name(self) -> str:
        """The full name: `Attention_2_0`."""
        return "_".join((self.operation.kind, *map(str, self.ids)))


Record = Callable[[Execution], None]


def run(calls: Sequence[Call], scopes: Sequence[Scope], path: tuple[str, ...], record: Record) -> None:
    """Execute one node: `calls[r]` in `scopes[r]` for every rank r, children first in the records."""
    before = [call.inputs_in(scope) for call, scope in zip(calls, scopes)]
    for call, scope in zip(calls, scopes):
        for name in call.outputs:
            scope.setdefault(name, Cell())
    stale = [tuple(scope[name].tensor for name in call.outputs) for call, scope in zip(calls, scopes)]
    if calls[0].operation.is_graph:
        inner = [_bind(*rank) for rank in zip(calls, scopes)]
        for index, children in enumerate(zip(*(call.operation.calls for call in calls))):
            run(children, inner, (*path, f"{index}_{children[0].operation.kind}"), record)
    else:
        _compute(calls, scopes, before)
    for rank, (call, scope) in enumerate(zip(calls, scopes)):
        outputs = tuple(scope[name].read() for name in call.outputs)
        after = call.inputs_in(scope)
        record(Execution(rank, path, call.operation, before[rank], after, stale[rank], outputs))


def _bind(call: Call, scope: Scope) -> Scope:
    inner: Scope = {}
    for index, (inside, outside) in enumerate(zip(call.operation.inputs, call.inputs)):
        cell = scope[outside]
        inner[inside] = ViewCell(cell, call.reshape[index]) if index in call.reshape else cell
    for inside, outside in zip(call.operation.outputs, call.outputs):
        inner[inside] = scope[outside]
    return inner


def _compute(calls: Sequence[Call], scopes: Sequence[Scope], rank_inputs: Sequence[Tensors]) -> None:
    leaves = [call.operation for call in calls]
    operator = operator_of(leaves[0].kind, leaves[0].leaf_param)
    if operator.collective:
        rank_outputs = compute_collective(
            operator.name, [leaf.leaf_param for leaf in leaves], list(rank_inputs)
        )
        results = [
            _collective(leaf, inputs, outputs)
            for leaf, inputs, outputs in zip(leaves, rank_inputs, rank_outputs)
        ]
    else:
        results = [_single(leaf, inputs) for leaf, inputs in zip(leaves, rank_inputs)]
    for call, scope, tensors in zip(calls, scopes, results):
        in_place = (call.inputs[index] for index in operator.writes)
        for index, (name, tensor) in enumerate(zip((*call.outputs, *in_place), tensors)):
            if index in call.shapes:
                tensor = tensor.reshape(call.shapes[index](tuple(tensor.shape)))
            scope[name].tensor = tensor


def _single(leaf: Operation, inputs: Tensors) -> Tensors:
    def right(*given: torch.Tensor, param: Any = leaf.leaf_param, **options: Any) -> Tensors:
        return compute(leaf.kind, param, given, **options)

    return right(*inputs) if leaf.wrong is None else leaf.wrong(right, inputs)


def _collective(leaf: Operation, inputs: Tensors, outputs: Tensors) -> Tensors:
    """Other ranks' tensors cannot be changed from here, so a fault of a collective changes its result."""
    return outputs if leaf.wrong is None else leaf.wrong(lambda *_, **__: outputs, inputs)
