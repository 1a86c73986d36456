"""Topology JSON: one file per top-level operation (`layer/`), one per model (`model/`).

Key orders and the rule that empty arrays are absent follow the probe. The model file numbers its nodes
with a counter of its own and looks their graphs up by the name that results, as the probe does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .graph import Call, Operation


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
