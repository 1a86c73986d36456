"""The models of a dump that has layer reports and no model report (probes of early 2024).

Layer reports say what is inside of each top-level operation. Which of them are one model follows from their
order: a second model begins as the first one did. Which tensor of one is an input of the next follows from
the tensors themselves, since a report names only its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..tensors.file_bytes import opened
from ..tensors.ref import TensorRef, readable
from ..topology.atb_json import ModelFile, ReportedOperation
from .base import Slot

SlotsOf = Callable[[ReportedOperation], Mapping[Slot, TensorRef]]
_PHASE = re.compile(r"prefill|decod(?:er|e|ing)?|encoder", re.IGNORECASE)
"""Words in the types of layers that differ between two models of one network."""


def models_of(layers: Sequence[ReportedOperation]) -> list[ModelFile]:
    """One or two models of top-level operations with ids in their names."""
    ordered = sorted(layers, key=lambda layer: layer.last_id or 0)
    start = _second_model(ordered)
    parts = [ordered[:start], ordered[start:]] if start else [ordered]
    return [ModelFile(f"model{number}", "", tuple(part)) for number, part in enumerate(parts)]


def _second_model(layers: Sequence[ReportedOperation]) -> int:
    """Where the types of operations begin again, a layer of several operations among them; 0 for nowhere."""
    kinds = [_PHASE.sub("", layer.op_type) for layer in layers]
    best, longest = 0, 0
    for start in range(1, len(layers)):
        same = 0
        while start + same < len(layers) and same < start and kinds[same] == kinds[start + same]:
            same += 1
        again = any(layer.children for layer in layers[:same])
        if again and same > longest and kinds[start - 1] != kinds[start]:
            best, longest = start, same
    return best


def wired(model: ModelFile, slots_of: SlotsOf) -> ModelFile:
    """The model with inputs named as the earlier output that holds the same bytes."""
    written: dict[tuple[object, ...], dict[str, str]] = {}
    operations = []
    for op in model.operations:
        slots = slots_of(op)
        names = {}
        for index, name in enumerate(op.inputs):
            ref = slots.get(Slot("input", (index,)))
            shape = _shape(ref)
            if ref is not None and shape in written and (earlier := written[shape].get(_digest(ref))):
                names[name] = earlier
        op = op.renamed(names)
        operations.append(op)
        for index, name in enumerate(op.outputs):
            ref = slots.get(Slot("output", (index,)))
            if ref is not None and (shape := _shape(ref)):
                written.setdefault(shape, {})[_digest(ref)] = name
    return replace(model, operations=tuple(operations))


def _shape(ref: TensorRef | None) -> tuple[object, ...]:
    """Dtype and shape of a tensor whose numbers are there; empty for others."""
    header = readable(ref)
    return (header.dtype, *header.shape) if header is not None and header.payload == "data" else ()


def _digest(ref: TensorRef) -> str:
    header = ref.header()
    with opened(ref.path) as (file, _):
        file.seek(header.offset)
        return hashlib.blake2b(file.read(header.nbytes)).hexdigest()
