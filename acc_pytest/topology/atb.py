"""From ATB topology reports and the directories on disk to `Tree`s whose paths are real directories.

The ids in a model report come from a counter of their own. One operation run outside any model (a stray
`Transdata` before the first layer) moves the ids of the directories away from them, and the probe then
merges no graph, or the neighbour's, into a level-1 node. So ids are settled by what exists on disk, and
graphs that carry another operation's ids are replaced by the layer report of the right operation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..tensors.location import read_json
from .tree import Node, Tree

Entries = Callable[[str], Collection[str]]
"""Names found in a node's directory, given its path below the token directory; empty where there is none."""
LayerReport = Callable[[str], "ReportedOperation | None"]
"""The layer report of a top-level operation by full name (`Prefill_layer_2`), or `None`."""
TopLevel = tuple[int, str]
"""Base id and type of a top-level operation: `(2, "Prefill_layer")`."""

_DIRECTORY = re.compile(r"^(\d+)_(.+)$")


@dataclass(frozen=True, slots=True)
class KnownOperations:
    """Top-level operations known to have run: from layer reports and from token directories."""

    reports: frozenset[TopLevel]
    directories: frozenset[TopLevel]


def top_level(directory: str) -> TopLevel | None:
    """`2_Prefill_layer` as `(2, "Prefill_layer")`; `None` for anything else."""
    match = _DIRECTORY.match(directory)
    return (int(match.group(1)), match.group(2)) if match else None


def operation_ids(path: str) -> str:
    """The id list of a node's path, joined as the dump joins it: `2_Layer/0_Attention` gives `2_0`."""
    return "_".join(segment.partition("_")[0] for segment in path.split("/"))


def settle_ids(model: ModelFile, evidence: KnownOperations) -> list[int]:
    """The base id of each level-1 operation of `model`.

    One shift for the whole model is tried first, the one that agrees with most reports, then most
    directories, then the smallest. When the reports still contradict it (a stray operation ran between
    two of the model's own), operations are placed one after the other on the next report of their type.
    """
    named = [
        (index if op.last_id is None else op.last_id, op.op_type) for index, op in enumerate(model.operations)
    ]
    if all(_is_settled(named, ops) for ops in (evidence.reports, evidence.directories)):
        return [number for number, _ in named]
    reports, directories = (_votes(named, ops) for ops in (evidence.reports, evidence.directories))

    def agreement(shift: int) -> tuple[int, int, int]:
        return reports[shift], directories[shift], -abs(shift)

    shift = max(sorted({0, *reports, *directories}), key=agreement)
    ids = [number + shift for number, _ in named]
    if evidence.reports and agreement(shift)[0] < len(named):
        return _in_sequence([kind for _, kind in named], evidence.reports, min(ids, default=0)) or ids
    return ids


def _is_settled(named: Sequence[TopLevel], operations: Collection[TopLevel]) -> bool:
    """Whether no shift agrees with more of what is known than none at all."""
    kinds = {kind for _, kind in operations}
    return all(operation in operations for operation in named if operation[1] in kinds)


def _votes(named: Sequence[TopLevel], operations: Iterable[TopLevel]) -> Counter[int]:
    """The number of operations that each shift takes to a known one."""
    by_kind: dict[str, list[int]] = {}
    for number, kind in operations:
        by_kind.setdefault(kind, []).append(number)
    votes: Counter[int] = Counter()
    for want, kind in named:
        votes.update([have - want for have in by_kind.get(kind, ())])
    return votes


def _in_sequence(kinds: Sequence[str], operations: Iterable[TopLevel], start: int) -> list[int] | None:
    ordered = iter(sorted(operation for operation in operations if operation[0] >= start))
    ids: list[int] = []
    for kind in kinds:
        number_of_kind = next((number for number, op_type in ordered if op_type == kind), None)
        if number_of_kind is None:
            return None
        ids.append(number_of_kind)
    return ids


def build_tree(
    model: ModelFile, ids: Sequence[int], strays: Iterable[TopLevel], layer: LayerReport, entries: Entries
) -> Tree:
    """Build the tree of one model.

    `ids` are its operations' base ids, `strays` top-level operations that ran next to it without being
    part of any model. Paths of the nodes are directories below the token directory.
    """
    root = Node(name=model.name, op_type=model.name, path="")
    tops: list[tuple[int, ReportedOperation]] = []
    for number, op in zip(ids, model.operations):
        tops.append((number, _repaired(op, number, layer)))
    for number, kind in strays:
        name = f"{kind}_{number}"
        tops.append((number, layer(name) or ReportedOperation(name, kind, {}, (), (), ())))
    for number, op in sorted(tops, key=lambda item: item[0]):
        _grow(root, op, f"{number}_{op.op_type}", entries, reported=bool(op.children) or bool(op.param))
    return Tree(root, model.name)


def joined(name: str, trees: Sequence[Tree]) -> Tree:
    """One tree with the nodes of several, copied; for policies that take a token directory as it is."""

    def copy(node: Node) -> Node:
        twin = Node(node.name, node.op_type, node.path, node.param, node.inputs, node.outputs)
        for child in node.children:
            twin.add(copy(child))
        return twin

    root = Node(name=name, op_type=name, path="")
    for tree in trees:
        for child in tree.root.children:
            root.add(copy(child))
    return Tree(root, name)


def _repaired(op: ReportedOperation, number: int, layer: LayerReport) -> ReportedOperation:
    """`op` under its real name; its layer report gives the graph and param that the model report lacks or
    took from a neighbour."""
    op = replace(op, name=f"{op.op_type}_{number}")
    agrees = all(_base_id(child) in (number, None) for child in op.children)
    if op.children and agrees:
        return op
    report = layer(op.name)
    if report is None:
        return op if agrees else replace(op, children=())
    names = dict(zip(report.inputs, op.inputs)) | dict(zip(report.outputs, op.outputs))
    return replace(op, param=report.param, children=report.renamed(names).children)


def _base_id(child: ReportedOperation) -> int | None:
    """First id of a child's full name: `LinearOperation_2_0_1` gives 2."""
    match = re.search(r"_(\d+)_\d+$", child.name)
    return int(match.group(1)) if match else None


def _grow(parent: Node, op: ReportedOperation, directory: str, entries: Entries, *, reported: bool) -> None:
    path = f"{parent.path}/{directory}" if parent.path else directory
    node = parent.add(Node(op.name, op.op_type, path, op.param, op.inputs, op.outputs))
    if op.children or not reported:
        _grow_children(node, op, entries)


def _grow_children(node: Node, op: ReportedOperation, entries: Entries) -> None:
    """Add the reported children and those that exist only as directories.

    A wrapper is reported under its own name while its directory has the wrapped operation's; the index
    ties them together. Directories of kernels are no nodes: they lie below operations without children.
    """
    listing = entries(node.path)
    on_disk = {top[0]: name for name in listing if (top := top_level(name))}
    runs_kernels = "op_param.json" in listing or any(name.endswith("Kernel") for name in on_disk.values())
    if runs_kernels and not op.children:
        return
    by_id = {child.last_id: child for child in op.children if child.last_id is not None}
    children = by_id if len(by_id) == len(op.children) else dict(enumerate(op.children))
    for index in sorted(children.keys() | on_disk.keys()):
        child = children.get(index)
        directory = f"{index}_{child.op_type}" if child else on_disk[index]
        if directory not in listing:
            directory = on_disk.get(index, directory)
        if child is None:
            kind = directory.partition("_")[2]
            child = ReportedOperation(f"{kind}_{operation_ids(node.path)}_{index}", kind, {}, (), (), ())
            _grow(node, child, directory, entries, reported=False)
        else:
            _grow(node, child, directory, entries, reported=True)


# Reads the topology JSON of ATB dumps: `model/{pid}/{ModelName}.json` and `layer/{pid}/{opName}.json`.
#
# Both are reports of the probe. A model file has `modelName` and level-1 nodes without `param`; a layer
# file is one top-level operation with everything below it. Keys whose array would be empty are absent,
# `param` of a graph operation is `""`, and NaN and Infinity appear as bare constants (read as `None`).
# Early probes sort keys alphabetically; order inside an object never matters here.


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
