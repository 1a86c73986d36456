"""From a report to an ONNX graph: every tensor written once, everything from outside declared.

ATB works in place and reuses memory, so its tensor names are written again and again; ONNX allows one
writer per name. What is written first (or comes from outside) keeps the name, what is written to it
later is called `name:1`, `name:2` and so on, and who reads it gets the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..atb_json import ReportedOperation
from .attributes import attributes_of
from .flatten import Event, events
from .operation_csv import TensorType, Types
from .proto import GraphProto, NodeProto, TensorInfo
from .shapes import Shapes

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
