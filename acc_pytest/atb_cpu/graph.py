"""Operation graphs as ATB builds them: an operation has a type, a parameter JSON and tensors by name.

A leaf is computed by the room `operators`; a graph only wires `Call`s. Tensors live in cells, as they do
in device memory, so that an operation may write onto its own input and its parent sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Shape = tuple[int, ...]
View = Callable[[Shape], Shape]
"""The shape under which an operation sees a tensor: a reshape, never a copy (`inTensorReshapeFuncs`)."""
Tensors = tuple[torch.Tensor, ...]
Wrong = Callable[[Callable[..., Tensors], Tensors], Tensors]
"""A faulty computation: (the right one, inputs) -> wrong results. The right one takes changed inputs,
and `param=` for changed parameters."""


@dataclass(slots=True)
class Cell:
    """One place in memory."""

    tensor: torch.Tensor | None = None

    def read(self) -> torch.Tensor:
        """The tensor held. Raises `LookupError` when nothing has been written yet."""
        if self.tensor is None:
            raise LookupError("a tensor of the graph is read before it is written")
        return self.tensor


class ViewCell(Cell):
    """A place in memory under another shape, for the operations of a graph."""

    __slots__ = ("_cell", "_view")

    def __init__(self, cell: Cell, view: View) -> None:
        self._cell = cell
        self._view = view

    @property
    def tensor(self) -> torch.Tensor | None:
        tensor = self._cell.tensor
        return None if tensor is None else tensor.reshape(self._view(tuple(tensor.shape)))

    @tensor.setter
    def tensor(self, value: torch.Tensor | None) -> None:
        self._cell.tensor = None if value is None else value.reshape(self._cell.read().shape)


Scope = dict[str, Cell]


@dataclass(frozen=True, slots=True)
class Operation:
    """A kind of work with its wiring; made by `operation` and `graph`.

    `inputs` and `outputs` are names inside the operation (for a leaf: the names that 2026 probes put
    into file names, empty where they have none). `param` is what the topology says: a mapping for a
    leaf (`None` where ATB has no JSON for it), the empty text for a graph.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    param: Mapping[str, Any] | str | None = ""
    calls: tuple[Call, ...] = ()
    wrong: Wrong | None = None

    @property
    def is_graph(self) -> bool:
        return bool(self.calls)

    @property
    def leaf_param(self) -> Mapping[str, Any]:
        """The parameters to compute with; those left out take ATB's defaults."""
        return self.param if isinstance(self.param, Mapping) else {}

    @property
    def internals(self) -> tuple[str, ...]:
        """Tensors made and used inside a graph, in order of first appearance."""
        outer = dict.fromkeys((*self.inputs, *self.outputs))
        return tuple(dict.fromkeys(n for call in self.calls for n in call.outputs if n not in outer))


@dataclass(frozen=True, slots=True)
class Call:
    """An operation applied to tensors of the surrounding scope (ATB: a node of a graph).

    `reshape` and `shapes` give, by index, the view under which the operation sees an input and under
    which its scope gets an output.
    """

    operation: Operation
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reshape: Mapping[int, View] = field(default_factory=dict)
    shapes: Mapping[int, View] = field(default_factory=dict)

    def inputs_in(self, scope: Scope) -> Tensors:
        """The inputs as the operation sees them."""
        tensors = []
        for index, name in enumerate(self.inputs):
            tensor = scope[name].read()
            if index in self.reshape:
                tensor = tensor.reshape(self.reshape[index](tuple(tensor.shape)))
            tensors.append(tensor)
        return tuple(tensors)


def operation(
    kind: str, param: Mapping[str, Any] | None, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Operation:
    """A leaf: the ATB operation `kind` (`LinearOperation`) with its parameter JSON."""
    return Operation(kind, inputs, outputs, param)


def graph(kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], *calls: Call) -> Operation:
    """An operation made of calls.

    Raises `OperatorError` when a call reads a name that is neither an input nor made before it.
    """
    from ..errors import OperatorError

    names = set(inputs)
    for index, call in enumerate(calls):
        if missing := [name for name in call.inputs if name not in names]:
            raise OperatorError(
                f"graph {kind}: call {index} ({call.operation.kind}) reads {missing[0]!r}, which is neither "
                "an input of the graph nor the result of an earlier call"
            )
        names |= set(call.outputs)
    if missing := [name for name in outputs if name not in names]:
        raise OperatorError(f"graph {kind}: output {missing[0]!r} is not made by any call")
    return Operation(kind, inputs, outputs, calls=calls)
