"""Operation graphs as ATB builds them: an operation has a type, a parameter JSON and tensors by name.

A leaf is computed by the room `operators`; a graph only wires `Call`s. Tensors live in cells, as they do
in device memory, so that an operation may write onto its own input and its parent sees it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...operators import compute, compute_collective, operator_of

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
    from ...errors import OperatorError

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


# Topology JSON: one file per top-level operation (`layer/`), one per model (`model/`).
#
# Key orders and the rule that empty arrays are absent follow the probe. The model file numbers its nodes
# with a counter of its own and looks their graphs up by the name that results, as the probe does.


@dataclass(frozen=True, slots=True)
class AtbModel:
    """One ATB model on one rank.

    Tensors of its scope are called `input_4`, `weight_0`, `kCache_0`, `vCache_0`, `internal_1`, `output_0`.
    `layers` says which of `calls` are the repeated layers, `inputs` how many inputs it declares.
    """

    name: str
    calls: tuple[Call, ...]
    weights: tuple[torch.Tensor, ...]
    layers: tuple[int, ...]
    inputs: int


def layer_json(operation: Operation, name: str) -> str:
    """The `layer/` file of a top-level operation called `name`."""
    ins = [f"{name}_input_{i}" for i in range(len(operation.inputs))]
    outs = [f"{name}_output_{i}" for i in range(len(operation.outputs))]
    return _text(_node(operation, name, ins, outs))


def model_json(model: AtbModel, first: int, operations: Mapping[str, Operation]) -> str:
    """The `model/` file of a model whose nodes are numbered from `first`; `operations` are the top-level
    operations of the process by full name."""
    nodes = []
    used: dict[str, None] = {}
    for index, call in enumerate(model.calls):
        used.update(dict.fromkeys((*call.inputs, *call.outputs)))
        name = f"{call.operation.kind}_{first + index}"
        full = _node(call.operation, name, _prefixed(model, call.inputs), _prefixed(model, call.outputs))
        order: tuple[str, ...] = ("inTensors", "opName", "outTensors", "opType")
        if name in operations:
            order += ("internalTensors", "nodes")
        nodes.append({key: full[key] for key in order if key in full})

    def listed(kind: str) -> list[str]:
        names = [name for name in used if name.startswith(kind + "_")]
        return _prefixed(model, sorted(names, key=lambda name: int(name.rsplit("_", 1)[1])))

    root = {
        "inTensors": _prefixed(model, (f"input_{i}" for i in range(model.inputs))),
        "internalTensors": listed("internal"),
        "kCacheTensors": listed("kCache"),
        "modelName": model.name,
        "nodes": nodes,
        "outTensors": listed("output"),
        "vCacheTensors": listed("vCache"),
        "weightTensors": _prefixed(model, (f"weight_{i}" for i in range(len(model.weights)))),
    }
    return _text({key: value for key, value in root.items() if value})


def _prefixed(model: AtbModel, names: Iterable[str]) -> list[str]:
    return [f"{model.name}_{name}" for name in names]


def _node(operation: Operation, name: str, ins: list[str], outs: list[str]) -> dict[str, Any]:
    internals = {inside: f"{name}_internal_{i}" for i, inside in enumerate(operation.internals)}
    tensor_names = {**dict(zip(operation.inputs, ins)), **dict(zip(operation.outputs, outs)), **internals}
    ids = name[len(operation.kind) :]
    nodes = [
        _node(
            call.operation,
            f"{call.operation.kind}{ids}_{i}",
            [tensor_names[n] for n in call.inputs],
            [tensor_names[n] for n in call.outputs],
        )
        for i, call in enumerate(operation.calls)
    ]
    node = {
        "opName": name,
        "opType": operation.kind,
        "param": operation.param,
        "inTensors": ins,
        "outTensors": outs,
        "internalTensors": list(internals.values()),
        "nodes": nodes,
    }
    return {key: value for key, value in node.items() if key == "param" or value}


def _text(node: Mapping[str, Any]) -> str:
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False) + "\n"


# Execute operations on every rank in step, and say of each what happened.
#
# Leaves are computed by `operators`: wide, then rounded once to the output's dtype, so that every operation
# reads what the one before it wrote, as on the device.


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
