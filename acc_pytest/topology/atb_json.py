"""Reads the topology JSON of ATB dumps: `model/{pid}/{ModelName}.json` and `layer/{pid}/{opName}.json`.

Both are reports of the probe. A model file has `modelName` and level-1 nodes without `param`; a layer
file is one top-level operation with everything below it. Keys whose array would be empty are absent,
`param` of a graph operation is `""`, and NaN and Infinity appear as bare constants (read as `None`).
Early probes sort keys alphabetically; order inside an object never matters here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..tensors.texts import read_json

MAX_DEPTH = 200
"""Deepest nesting of operations accepted; real models stay below 10."""

_FROM_OUTSIDE = ("inTensors", "weightTensors", "kCacheTensors", "vCacheTensors")
_ID = re.compile(r"_(\d{1,9})$")


@dataclass(frozen=True, slots=True)
class ReportedOperation:
    """An operation as its JSON reports it; `children` is empty for operations that run kernels."""

    name: str
    op_type: str
    param: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    children: tuple[ReportedOperation, ...]

    @property
    def last_id(self) -> int | None:
        """The number that ends the full name: `LinearOperation_1_1_0` gives 0."""
        match = _ID.search(self.name)
        return int(match.group(1)) if match else None

    def renamed(self, names: Mapping[str, str]) -> ReportedOperation:
        """The operation with tensor names replaced where `names` has them, at every depth."""
        return replace(
            self,
            inputs=tuple(names.get(name, name) for name in self.inputs),
            outputs=tuple(names.get(name, name) for name in self.outputs),
            children=tuple(child.renamed(names) for child in self.children),
        )


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One model report: its name and its level-1 operations in execution order."""

    name: str
    file: str
    operations: tuple[ReportedOperation, ...]

    @property
    def first_id(self) -> int:
        """Number of the first operation in the report, by which prefill and decode models are ordered."""
        first = self.operations[0].last_id if self.operations else None
        return 0 if first is None else first


def read_model(path: Path) -> ModelFile:
    """Read a model report. Raises `FormatError` naming the file and the place in it."""
    raw = _load(path)
    name = _text(raw, "modelName", path, "the root", default=path.stem)
    return ModelFile(name, str(path), tuple(_children(raw, path, f"{name:.200}", 1)))


def read_layer(path: Path) -> ReportedOperation:
    """Read a layer report: one top-level operation. Raises `FormatError` as `read_model` does."""
    return _operation(_load(path), path, "the root", 0)


def read_graph(path: Path) -> ReportedOperation:
    """Either report as one operation, whose inputs are all tensors that come from outside.

    For a model these are its inputs, weights and caches. NaN and infinities stay numbers here. Raises
    `FormatError` as `read_model` does, and for JSON that is no report of the probe.
    """
    raw = _load(path, constant=float)
    if "opName" in raw:
        return _operation(raw, path, "the root", 0)
    if "modelName" not in raw and "nodes" not in raw:
        raise FormatError(
            f"{path}: has no opName, modelName or nodes, so it is not a topology of an ATB dump"
        )
    name = _text(raw, "modelName", path, "the root", default=path.stem) or path.stem
    inputs = [tensor for key in _FROM_OUTSIDE for tensor in _names(raw, key, path, name)]
    outputs = _names(raw, "outTensors", path, name)
    return ReportedOperation(
        name, name, {}, tuple(inputs), outputs, tuple(_children(raw, path, f"{name:.200}", 1))
    )


def _load(path: Path, constant: Callable[[str], float | None] = lambda _: None) -> dict[str, Any]:
    raw = read_json(path, "JSON topology", "; was the dump stopped while writing it?", constant=constant)
    if not isinstance(raw, dict):
        raise FormatError(f"{path}: a topology must be a JSON object, got {_kind(raw)}")
    return raw


def _children(raw: Mapping[str, Any], path: Path, where: str, depth: int) -> Iterator[ReportedOperation]:
    nodes = raw.get("nodes")
    if nodes is None:
        return
    if not isinstance(nodes, list):
        raise FormatError(f"{path}: `nodes` of {where} must be a list, got {_kind(nodes)}")
    if depth > MAX_DEPTH:
        raise FormatError(f"{path}: operations are nested more than {MAX_DEPTH} deep")
    for index, node in enumerate(nodes):
        if not isinstance(node, dict):
            raise FormatError(f"{path}: nodes[{index}] of {where} must be an object, got {_kind(node)}")
        yield _operation(node, path, f"nodes[{index}] of {where}", depth)


def _operation(raw: Mapping[str, Any], path: Path, where: str, depth: int) -> ReportedOperation:
    name = _text(raw, "opName", path, where)
    op_type = _text(raw, "opType", path, where, default=_ID.sub("", name))
    if op_type in {"", ".", ".."} or any(char in op_type for char in "/\\\0"):
        raise FormatError(
            f"{path}: opType of {where} is {op_type!r:.100}, which cannot be the name of a directory"
        )
    label = f"{name:.200}"
    return ReportedOperation(
        name=name,
        op_type=op_type,
        param=_param(raw.get("param"), path, label),
        inputs=_names(raw, "inTensors", path, label),
        outputs=_names(raw, "outTensors", path, label),
        children=tuple(_children(raw, path, label, depth + 1)),
    )


def _text(raw: Mapping[str, Any], key: str, path: Path, where: str, default: str | None = None) -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or (not value and default is None):
        kind = "nothing" if value is None else "an empty string" if value == "" else _kind(value)
        raise FormatError(f"{path}: `{key}` of {where} must be a string, got {kind}")
    return value


def _names(raw: Mapping[str, Any], key: str, path: Path, where: str) -> tuple[str, ...]:
    value = raw.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FormatError(f"{path}: `{key}` of {where} must be a list of strings")
    return tuple(value)


def _param(value: Any, path: Path, where: str) -> Mapping[str, Any]:
    """An object; graph operations have `""` and operations without a report of theirs `null`."""
    if value is None or isinstance(value, str):
        return {}
    if not isinstance(value, dict):
        raise FormatError(f"{path}: `param` of {where} must be an object, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
