"""From ATB topology reports and the directories on disk to `Tree`s whose paths are real directories.

The ids in a model report come from a counter of their own. One operation run outside any model (a stray
`Transdata` before the first layer) moves the ids of the directories away from them, and the probe then
merges no graph, or the neighbour's, into a level-1 node. So ids are settled by what exists on disk, and
graphs that carry another operation's ids are replaced by the layer report of the right operation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from .atb_json import ModelFile, ReportedOperation
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
    children = _by_index(op.children)
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


def _by_index(children: Sequence[ReportedOperation]) -> dict[int, ReportedOperation]:
    """Children by the last id of their names, else by their place, where a name has none or two have one."""
    by_id = {child.last_id: child for child in children if child.last_id is not None}
    return by_id if len(by_id) == len(children) else dict(enumerate(children))
