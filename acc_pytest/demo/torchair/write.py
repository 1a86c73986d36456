"""GE dumps of the demo on disk: the text of a graph, and a record for every operator that ran.

Everything that makes real dumps awkward is there once: tensors without memory on the device, a file name that
was too long, a Data operator dumped for each of its readers, tensors in fractal format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...tensors.ge_record import GeValue, OriginalOp, hashed_name, write_record
from ...topology.ge_graph import Edge, GeDesc, GeGraph, GeNode, write_graph
from .operators import GE_NAMES, GeOperator

STARTED = 1_763_670_000_000_000
"""Microseconds since 1970 at which the demo's operators begin to run."""
WITHOUT_MEMORY = (("Transpose", "input", 1), ("Transpose_1", "input", 1))
"""Constants that the operator has taken in, so that the device keeps nothing."""
LONG_NAME = "SoftmaxV2"
_STREAM = 6


@dataclass(frozen=True, slots=True)
class StepFolder:
    """One run of one graph on one rank: where its records go, and when it began."""

    folder: Path
    started: int


def write_text(
    path: Path, name: str, operators: Sequence[GeOperator], values: Mapping[Edge, torch.Tensor]
) -> None:
    """The text of a graph as TorchAir gave it to the Graph Engine, before its passes."""
    fx = {Edge(operator.name, index): text for operator in operators for index, text in operator.fx.items()}
    nodes = []
    for operator in operators:
        inputs = tuple(
            GeDesc(f"x{place}") if edge is None else _described(f"x{place}", edge, values, fx)
            for place, edge in enumerate(operator.inputs)
        )
        outputs = tuple(
            _described(f"y{index}" if index else "y", Edge(operator.name, index), values, fx)
            for index in range(operator.outputs)
        )
        nodes.append(
            GeNode(operator.name, operator.type, operator.inputs, operator.attributes, inputs, outputs)
        )
    write_graph(GeGraph(name, tuple(nodes)), path)


def _described(name: str, edge: Edge, values: Mapping[Edge, torch.Tensor], fx: Mapping[Edge, str]) -> GeDesc:
    attributes = {"_fx_tensor_name": fx[edge]} if edge in fx else {}
    tensor = values[edge]
    return GeDesc(name, GE_NAMES[tensor.dtype], tuple(tensor.shape), "ND", attributes)


def write_records(
    step: StepFolder, operators: Sequence[GeOperator], values: Mapping[Edge, torch.Tensor]
) -> None:
    """A record for each operator that runs on the device; constants and the end of the graph do not."""
    by_name = {operator.name: operator for operator in operators}
    for task, operator in enumerate(operators, start=1):
        if operator.type in ("Const", "NetOutput"):
            continue
        inputs = [
            _value(
                values[edge], by_name[edge.producer], null=(operator.name, "input", place) in WITHOUT_MEMORY
            )
            for place, edge in enumerate(operator.edges)
        ]
        outputs = [
            _value(values[Edge(operator.name, index)], operator, index) for index in range(operator.outputs)
        ]
        readers = sum(Edge(operator.name, 0) in reader.edges for reader in operators)
        for copy in range(readers if operator.type == "Data" else 1):
            time = step.started + 10 * task + copy
            name = f"{operator.type}.{operator.name}.{task}.{_STREAM}.{time}"
            write_record(_place(step.folder, operator, name), operator.name, inputs, outputs, dump_time=time)


def _value(
    tensor: torch.Tensor, producer: GeOperator, index: int | None = None, *, null: bool = False
) -> GeValue:
    """A tensor as `producer` left it; as an output, `index` is its number."""
    tiled = producer.storage != "ND" and tensor.is_floating_point()
    origin = None
    if index is not None and producer.type != "TransData":
        origin = OriginalOp(producer.parts[-1] if producer.parts else producer.name, index)
    return GeValue(tensor, "fractal_nz" if tiled else "nd", null=null, original_op=origin)


def _place(folder: Path, operator: GeOperator, name: str) -> Path:
    if operator.name != LONG_NAME:
        return folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "mapping.csv").open("a", encoding="utf-8") as file:
        file.write(f"{hashed_name(name)},{name}\n")
    return folder / hashed_name(name)
