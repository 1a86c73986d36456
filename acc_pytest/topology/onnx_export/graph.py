"""From a report to an ONNX graph: every tensor written once, everything from outside declared.

ATB works in place and reuses memory, so its tensor names are written again and again; ONNX allows one
writer per name. What is written first (or comes from outside) keeps the name, what is written to it
later is called `name:1`, `name:2` and so on, and who reads it gets the newest.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..atb import MAX_DEPTH, ReportedOperation
from .proto import GraphProto, NodeProto, TensorInfo, Value
from .shapes import Shapes, TensorType, Types

UNKNOWN = "unknown_shape"
"""The only dimension of an input or output of the graph whose shape is not known: ONNX wants one."""


class _Names:
    """Names that may be taken once: a name itself, then with `:1`, `:2` behind it."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._reserved = frozenset(reserved)
        self._used: set[str] = set()
        self._last: dict[str, int] = {}

    def take(self, name: str) -> str:
        free, number = name, self._last.get(name, 0)
        while free in self._used or (free != name and free in self._reserved):
            number += 1
            free = f"{name}:{number}"
        self._last[name] = number
        self._used.add(free)
        return free


class _Tensors:
    """ONNX names of ATB names at this point of the execution, with their types."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = _Names(names)
        self._current: dict[str, str] = {}
        self._expected: dict[str, TensorType] = {}
        self.types: dict[str, TensorType | None] = {}
        self.outside: dict[str, str] = {}
        """Inputs of the graph, with their doc strings."""

    def declare(self, name: str, doc: str = "") -> None:
        """A tensor that comes from outside, unless it is there already."""
        if name and name not in self._current:
            self._current[name] = self._names.take(name)
            self.outside[self._current[name]] = doc
            self.types[self._current[name]] = self._expected.get(name)

    def learn(self, name: str, kind: TensorType | None) -> None:
        """Note the type of a tensor from an operation that is no node."""
        if kind is not None and name in self._current:
            current = self._current[name]
            self.types[current] = self.types[current] or kind
        elif kind is not None:
            self._expected.setdefault(name, kind)

    def learn_all(self, names: Iterable[str], kinds: Types) -> None:
        """Note the types of all inputs, or outputs, of an operation."""
        for name, kind in zip(names, kinds):
            self.learn(name, kind)

    def read(self, name: str, kind: TensorType | None) -> str:
        """The newest version of a tensor."""
        if not name:
            return ""  # ONNX's way, too, to leave an input out
        self.declare(name, "read before anything in the report wrote it")
        self.learn(name, kind)
        return self._current[name]

    def write(self, name: str, kind: TensorType | None) -> str:
        """A new version of a tensor."""
        if not name:
            return ""
        self._current[name] = self._names.take(name)
        self.types[self._current[name]] = kind
        return self._current[name]


def build_graph(root: ReportedOperation, level: int, shapes: Shapes) -> GraphProto:
    """The graph of a report at one level of nesting (see `events`).

    An output of the report that nothing writes comes from outside, as far as the report knows, and is
    declared as an input as well.
    """
    steps = tuple(events(root, level))
    tensors = _Tensors(name for _, op in steps for name in (*op.inputs, *op.outputs))
    for name in root.inputs:
        tensors.declare(name)
    nodes = tuple(_nodes(steps, shapes, tensors))
    results = dict.fromkeys(tensors.read(name, None) for name in root.outputs if name)
    ends = {*tensors.outside, *results}
    inner = (_info(name, kind) for name, kind in tensors.types.items() if kind and name not in ends)
    return GraphProto(
        name=root.name,
        doc=f"operations of {root.name}; name:1 is what was written to name later",
        nodes=nodes,
        inputs=tuple(_end(name, tensors.types[name], doc) for name, doc in tensors.outside.items()),
        outputs=tuple(_end(name, tensors.types[name]) for name in results),
        inner=tuple(inner),
    )


def _nodes(
    steps: Sequence[tuple[Event, ReportedOperation]], shapes: Shapes, tensors: _Tensors
) -> Iterator[NodeProto]:
    """Run the report: `tensors` follow its reads, writes and types on the way."""
    names = _Names(op.name for _, op in steps)
    for event, op in steps:
        inputs, outputs = shapes.of(op) if event is Event.NODE else shapes.direct(op)
        if event is Event.NODE:
            yield _node(names.take(op.name), op, tensors, inputs, outputs)
        elif event is Event.ENTER:
            tensors.learn_all(op.inputs, inputs)
        else:
            tensors.learn_all(op.outputs, outputs)


def _node(name: str, op: ReportedOperation, tensors: _Tensors, inputs: Types, outputs: Types) -> NodeProto:
    # Reading comes first: what an operation writes in place is a new version of what it read.
    read = tuple(map(tensors.read, op.inputs, inputs))
    results = tuple(map(tensors.write, op.outputs, outputs))
    if not read and not results:
        results = ("",)  # ONNX has no node without tensors; a report that lost them does
    return NodeProto(name, op.op_type, read, results, attributes_of(op.param))


def _info(name: str, kind: TensorType, doc: str = "") -> TensorInfo:
    return TensorInfo(name, kind.dtype.name, kind.shape, doc)


def _end(name: str, kind: TensorType | None, doc: str = "") -> TensorInfo:
    if kind is not None:
        return _info(name, kind, doc)
    return TensorInfo(name, "", (UNKNOWN,), f"{doc}; " * bool(doc) + "nothing in the dump tells its shape")


# From the parameters of an operation, a JSON object, to ONNX attributes, which are flat and typed.
#
# Nested objects become dotted names, lists of one kind lists, any other list one attribute per item,
# numbered: `{"a": {"b": 0}, "c": [{"d": 1}]}` gives `a.b` and `c.0.d`. Nothing is left out: what ONNX has
# no value for (null, an empty object, numbers beyond its 64 or 32 bits, endless nesting) is kept as text.


_WHOLE = range(-(2**63), 2**63)
_LARGEST_FLOAT = float(2**128 - 2**103)
"""At and above this, rounding to float32 gives infinity."""


def attributes_of(param: Mapping[str, Any]) -> tuple[tuple[str, Value], ...]:
    """Names and values, in the order of the parameters; a name that appears again gets `:1`, `:2`, ..."""
    attributes: dict[str, Value] = {}
    for name, value in _flat("", param):
        free, count = name or "param", 0
        while free in attributes:
            count += 1
            free = f"{name}:{count}"
        attributes[free] = value
    return tuple(attributes.items())


def _flat(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Value]]:
    prefix = f"{name}." if depth else ""
    if depth > MAX_DEPTH:
        yield name, json.dumps(value)
    elif isinstance(value, Mapping) and (value or not depth):
        for key, inner in value.items():
            yield from _flat(f"{prefix}{key}", inner, depth + 1)
    elif isinstance(value, list):
        plain = _plain_list(value)
        if plain is not None:
            yield name, plain
        else:
            for index, inner in enumerate(value):
                yield from _flat(f"{prefix}{index}", inner, depth + 1)
    else:
        yield name, _scalar(value)


def _scalar(value: Any) -> int | float | str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and value in _WHOLE:
        return int(value)  # a truth value is 0 or 1
    if isinstance(value, float) and (not math.isfinite(value) or abs(value) < _LARGEST_FLOAT):
        return value
    return json.dumps(value)


def _plain_list(items: list[Any]) -> Value | None:
    """The list as one attribute, `None` where its items are of several kinds."""
    if all(isinstance(item, str) for item in items):
        return tuple(str(item) for item in items)
    if not all(isinstance(item, (int, float)) for item in items):
        return None
    values = [_scalar(item) for item in items]
    if any(isinstance(value, str) for value in values):  # one does not fit: all as texts
        return tuple(json.dumps(item) for item in items)
    if any(isinstance(value, float) for value in values):
        return tuple(float(value) for value in values)
    return tuple(int(value) for value in values)


# Operations of a report that become nodes: a graph has one level, a report nests them.


LEAVES = -1


class Event(enum.Enum):
    """An event of an operation on the way through a report, in execution order."""

    NODE = "becomes a node"
    ENTER = "begins; its operations follow"
    LEAVE = "is done"


def events(root: ReportedOperation, level: int) -> Iterator[tuple[Event, ReportedOperation]]:
    """Nodes are the operations at depth `level` below `root` and those that end above it.

    Level 0 is the root itself, `LEAVES` (-1) everything without operations inside. An operation whose
    list of operations is empty is one of these too, also the root.
    """
    if level == 0 or not root.children:
        yield Event.NODE, root
        return
    yield Event.ENTER, root
    for child in root.children:
        yield from events(child, level - 1 if level > 0 else level)
    yield Event.LEAVE, root
