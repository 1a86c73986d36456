"""A tiny operation graph: what ATB runs, run with torch on every rank in step.

An `Operation` is a leaf (it computes) or a graph of `Call`s (it only wires). Tensors live in cells, as
they do in device memory, so that an operation may write onto its own input and its parent sees it.
Leaves compute in float32 and round the result to the dump's dtype, so that every operation reads what
the one before it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Shape = tuple[int, ...]
Compute = Callable[..., Any]
"""Leaf: float32 (or integer) tensors in; outputs, then the new values of `writes`, out (one or a tuple).
Collective leaf: the list of all ranks' tensors in, the list of all ranks' results out."""


@dataclass(slots=True)
class Cell:
    """One place in memory."""

    tensor: torch.Tensor | None = None

    def read(self) -> torch.Tensor:
        """The tensor held. Raises `LookupError` when nothing has been written yet."""
        if self.tensor is None:
            raise LookupError("a tensor of the graph is read before it is written")
        return self.tensor


Scope = dict[str, Cell]


@dataclass(frozen=True, slots=True)
class Operation:
    """A kind of work with its wiring.

    `inputs` and `outputs` are names inside the operation (for a leaf: the names used in the file
    names of 2026 probes, empty where the probe has none). `param` is what the topology says: a
    mapping for a leaf, the empty text for a graph. `writes` are the inputs a leaf writes onto.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    param: Mapping[str, Any] | str = ""
    calls: tuple[Call, ...] = ()
    compute: Compute | None = None
    collective: bool = False
    writes: tuple[int, ...] = ()

    @property
    def internals(self) -> tuple[str, ...]:
        """Tensors made and used inside a graph, in order of first appearance."""
        known = dict.fromkeys((*self.inputs, *self.outputs))
        return tuple(dict.fromkeys(n for call in self.calls for n in call.outputs if n not in known))


@dataclass(frozen=True, slots=True)
class Call:
    """An operation applied to tensors of the surrounding scope.

    `reshape` gives, by input index, the shape under which the operation sees the tensor.
    """

    operation: Operation
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reshape: Mapping[int, Callable[[Shape], Shape]] = field(default_factory=dict)

    def views(self, scope: Scope) -> tuple[torch.Tensor, ...]:
        """The inputs as the operation sees them."""
        tensors = []
        for index, name in enumerate(self.inputs):
            tensor = scope[name].read()
            if index in self.reshape:
                tensor = tensor.reshape(self.reshape[index](tuple(tensor.shape)))
            tensors.append(tensor)
        return tuple(tensors)


def graph(kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], *calls: Call) -> Operation:
    """An operation made of calls."""
    return Operation(kind, inputs, outputs, calls=calls)


@dataclass(frozen=True, slots=True)
class Record:
    """One executed operation: `before` and `after` are its inputs around the execution."""

    rank: int
    path: tuple[str, ...]
    operation: Operation
    before: tuple[torch.Tensor, ...]
    after: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


def run(
    calls: Sequence[Call],
    scopes: Sequence[Scope],
    path: tuple[str, ...],
    dtype: torch.dtype,
    record: Callable[[Record], None],
) -> None:
    """Execute one node: `calls[r]` in `scopes[r]` for every rank r, children first in the records."""
    before = [call.views(scope) for call, scope in zip(calls, scopes)]
    for call, scope in zip(calls, scopes):
        for name in call.outputs:
            scope.setdefault(name, Cell())
    if calls[0].operation.calls:
        inner = [_bind(*rank) for rank in zip(calls, scopes, before)]
        for index, children in enumerate(zip(*(call.operation.calls for call in calls))):
            run(children, inner, (*path, f"{index}_{children[0].operation.kind}"), dtype, record)
    else:
        _compute(calls, scopes, before, dtype)
    for rank, (call, scope) in enumerate(zip(calls, scopes)):
        outputs = tuple(scope[name].read() for name in call.outputs)
        record(Record(rank, path, call.operation, before[rank], call.views(scope), outputs))


def _bind(call: Call, scope: Scope, views: tuple[torch.Tensor, ...]) -> Scope:
    inner: Scope = {}
    for index, (inside, outside) in enumerate(zip(call.operation.inputs, call.inputs)):
        inner[inside] = Cell(views[index]) if index in call.reshape else scope[outside]
    for inside, outside in zip(call.operation.outputs, call.outputs):
        inner[inside] = scope[outside]
    return inner


def _compute(
    calls: Sequence[Call],
    scopes: Sequence[Scope],
    views: Sequence[tuple[torch.Tensor, ...]],
    dtype: torch.dtype,
) -> None:
    wide = [[t.float() if t.is_floating_point() else t for t in tensors] for tensors in views]
    computes = [call.operation.compute for call in calls]
    results: list[Any] = []
    for rank, compute in enumerate(computes):
        if compute is None:
            raise TypeError(f"{calls[rank].operation.kind} has neither calls nor a computation")
        if calls[rank].operation.collective:
            results.append(compute([tensors[0] for tensors in wide])[rank])
        else:
            results.append(compute(*wide[rank]))
    for call, scope, result in zip(calls, scopes, results):
        made = result if isinstance(result, tuple) else (result,)
        targets = (*call.outputs, *(call.inputs[index] for index in call.operation.writes))
        for name, tensor in zip(targets, made):
            narrow = tensor.to(dtype) if tensor.is_floating_point() else tensor
            scope[name].tensor = narrow.contiguous()
