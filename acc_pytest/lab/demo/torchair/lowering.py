"""An FX graph to the operators of a GE graph, named and cut up as TorchAir's converters do it.

The FX name stands on the last operator of a node, as in the real graphs: the product of `addmm` has none. A
multiplication ends in a cast to the type it has already, which bears the name; the Graph Engine takes it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import fx

from ....errors import CaptureError
from ....topology.ge_graph import Edge, GeConstant, GeDesc

Args = tuple[Any, ...]
"""The positional arguments of an FX node."""
_INT64 = {"dst_type": 9}
_FLOAT16 = {"dst_type": 1}
"""Element types as the attributes of graphs count them."""
_UNNAMED = ("aten.t.default",)
"""Nodes whose name TorchAir puts on no operator."""
_RENAMED = {"aten.view.default": "aten.reshape.default"}
"""A view is rewritten after the point where the FX dump is taken, so the graph knows it as something else."""


class Lowering:
    """The operators made so far, and what stands for each FX value."""

    def __init__(self) -> None:
        self.operators: list[GeOperator] = []
        self._counts: Counter[str] = Counter()
        self._values: dict[fx.Node, list[Edge]] = {}

    def run(self, graph: fx.Graph) -> list[GeOperator]:
        """All operators of the graph, in its order. Raises `CaptureError` for a node without converter."""
        for node in graph.nodes:
            if node.op == "placeholder":
                self._values[node] = [self._placeholder(node.name)]
            elif node.op == "output":
                returned: Any = node.args[0]
                results = tuple(self.edge(value) for value in returned if isinstance(value, fx.Node))
                self._append(GeOperator("NetOutput", "NetOutput", results, _nothing, 0))
            elif getattr(node.target, "__name__", "") == "getitem":
                source, index = cast(Args, node.args)
                self._values[node] = [self._values[source][index]]
            else:
                self._convert(node)
        return self.operators

    def edge(self, value: Any) -> Edge:
        """The edge of an argument; a number becomes a constant."""
        if isinstance(value, fx.Node):
            return self._values[value][0]
        return self.constant(torch.as_tensor(value))

    def constant(self, value: torch.Tensor) -> Edge:
        """An operator that holds a value."""
        desc = GeDesc(dtype=GE_NAMES[value.dtype], shape=tuple(value.shape), layout="ND")
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return self.add("Const", (), lambda _: [value], value=GeConstant(desc, data))

    def add(
        self,
        type: str,
        inputs: tuple[Edge | None, ...],
        compute: Callable[[Values], Values],
        outputs: int = 1,
        **attributes: object,
    ) -> Edge:
        """The first output of one more operator, under the next free name of its type."""
        count = self._counts[type]
        self._counts[type] += 1
        name = f"{type}_{count}" if count else type
        return self._append(GeOperator(name, type, inputs, compute, outputs, attributes=attributes))

    def _append(self, operator: GeOperator) -> Edge:
        self.operators.append(operator)
        return Edge(operator.name, 0)

    def _placeholder(self, name: str) -> Edge:
        index = sum(operator.type == "Data" for operator in self.operators)
        return self._append(GeOperator(name, "Data", (), _nothing, attributes={"index": index}))

    def _convert(self, node: fx.Node) -> None:
        target = str(node.target)
        converter = _CONVERTERS.get(target)
        if converter is None:
            raise CaptureError(f"{target}: the TorchAir demo has no operator of the Graph Engine for it")
        self._values[node] = converter(self, node.args)
        if target in _UNNAMED:
            return
        for index, edge in enumerate(self._values[node]):
            self._name(edge, f"{node.name}-{_RENAMED.get(target, target)}.OUTPUT.{index}")

    def _name(self, edge: Edge, fx_name: str) -> None:
        (place,) = (place for place, operator in enumerate(self.operators) if operator.name == edge.producer)
        operator = self.operators[place]
        self.operators[place] = replace(operator, fx={**operator.fx, edge.index: fx_name})


def _nothing(_inputs: Values) -> Values:
    return []


def _t(to: Lowering, args: Args) -> list[Edge]:
    order = to.constant(torch.tensor([1, 0]))
    return [to.add("Transpose", (to.edge(args[0]), order), lambda inputs: [inputs[0].T.contiguous()])]


def _addmm(to: Lowering, args: Args) -> list[Edge]:
    bias, left, right = (to.edge(value) for value in args)
    unit = to.constant(torch.tensor(1.0))
    product = to.add("MatMulV2", (left, right, None, None), lambda inputs: [inputs[0] @ inputs[1]])
    scaled = to.add("Mul", (product, unit), lambda inputs: [inputs[0] * inputs[1]])
    return [to.add("Add", (scaled, bias), lambda inputs: [inputs[0] + inputs[1]])]


def _gelu(to: Lowering, args: Args) -> list[Edge]:
    return [to.add("Gelu", (to.edge(args[0]),), lambda inputs: [torch.nn.functional.gelu(inputs[0])])]


def _add(to: Lowering, args: Args) -> list[Edge]:
    left, right = (to.edge(value) for value in args)
    return [to.add("Add", (left, right), lambda inputs: [inputs[0] + inputs[1]])]


def _mul(to: Lowering, args: Args) -> list[Edge]:
    left, right = (to.edge(value) for value in args)
    product = to.add("Mul", (left, right), lambda inputs: [inputs[0] * inputs[1]])
    return [to.add("Cast", (product,), lambda inputs: [inputs[0]], **_FLOAT16)]


def _layer_norm(to: Lowering, args: Args) -> list[Edge]:
    x, shape, weight, bias, epsilon = args
    axes = to.constant(torch.tensor(shape))

    def compute(inputs: Values) -> Values:
        return torch.native_layer_norm(inputs[0], list(shape), inputs[2], inputs[3], epsilon)

    first = to.add("LayerNormV4", (to.edge(x), axes, to.edge(weight), to.edge(bias)), compute, 3)
    return [Edge(first.producer, index) for index in range(3)]


def _split(to: Lowering, args: Args) -> list[Edge]:
    x, size, axis = args
    edge = to.edge(x)
    axis_edge = to.constant(torch.tensor(axis))
    total = args[0].meta["val"].shape[axis]
    sizes = [size] * (total // size)
    packed = to.add("Pack", tuple(to.constant(torch.tensor(length)) for length in sizes), _pack)
    wide = to.add("Cast", (packed,), lambda inputs: [inputs[0].long()], **_INT64)

    def compute(inputs: Values) -> Values:
        return torch.split(inputs[0], sizes, axis)

    first = to.add("SplitV", (edge, wide, axis_edge), compute, len(sizes))
    return [Edge(first.producer, index) for index in range(len(sizes))]


def _pack(inputs: Values) -> Values:
    return [torch.stack(list(inputs)).int()]


def _cat(to: Lowering, args: Args) -> list[Edge]:
    values, axis = args
    edges = tuple(to.edge(value) for value in values)
    return [
        to.add(
            "ConcatV2",
            (*edges, to.constant(torch.tensor(axis))),
            lambda inputs: [torch.cat(list(inputs[:-1]), axis)],
        )
    ]


def _view(to: Lowering, args: Args) -> list[Edge]:
    x, shape = args
    edges = (to.edge(x), to.constant(torch.tensor(shape)))
    return [to.add("Reshape", edges, lambda inputs: [inputs[0].reshape(tuple(shape))])]


def _topk(to: Lowering, args: Args) -> list[Edge]:
    x, count, *_ = args

    def compute(inputs: Values) -> Values:
        values, places = inputs[0].topk(count, dim=-1)
        return [values, places.int()]

    first = to.add("TopKV2", (to.edge(x), to.constant(torch.tensor(count))), compute, 2)
    wide = to.add("Cast", (Edge(first.producer, 1),), lambda inputs: [inputs[0].long()], **_INT64)
    return [first, wide]


def _softmax(to: Lowering, args: Args) -> list[Edge]:
    axis = args[1]
    return [to.add("SoftmaxV2", (to.edge(args[0]),), lambda inputs: [inputs[0].softmax(axis)])]


_CONVERTERS: Mapping[str, Callable[[Lowering, Args], list[Edge]]] = {
    "aten.t.default": _t,
    "aten.addmm.default": _addmm,
    "aten.gelu.default": _gelu,
    "aten.add.Tensor": _add,
    "aten.mul.Tensor": _mul,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.split.Tensor": _split,
    "aten.cat.default": _cat,
    "aten.view.default": _view,
    "aten.topk.default": _topk,
    "aten._softmax.default": _softmax,
}


# Operators of the Graph Engine that the demo's models are made of: names, edges, and what they compute.
#
# Only what the demo needs, in torch, and apart from `operators/`, which holds ATB's.


Values = Sequence[torch.Tensor]
GE_NAMES = {
    torch.float16: "DT_FLOAT16",
    torch.float32: "DT_FLOAT",
    torch.int64: "DT_INT64",
    torch.int32: "DT_INT32",
}
"""Element types as graph texts spell them."""


@dataclass(frozen=True, slots=True)
class GeOperator:
    """One operator. `inputs` has a gap where an optional input is absent; `fx` names output k's FX tensor.

    `parts` are the operators that were fused into this one, the last of which gives its outputs. A Data or
    Const operator computes nothing from nothing.
    """

    name: str
    type: str
    inputs: tuple[Edge | None, ...]
    compute: Callable[[Values], Values]
    outputs: int = 1
    fx: Mapping[int, str] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    storage: str = "ND"
    """The format in which the device keeps the outputs."""

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.inputs if edge is not None)

    def reading(self, edges: Mapping[Edge, Edge]) -> GeOperator:
        """This operator with other inputs."""
        return replace(
            self, inputs=tuple(None if edge is None else edges.get(edge, edge) for edge in self.inputs)
        )


def execute(
    operators: Sequence[GeOperator],
    feeds: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    spoil: Callable[[GeOperator, Values], Values],
) -> dict[Edge, torch.Tensor]:
    """The outputs of all operators. Numbers are computed in float32 and rounded to `dtype` once an operator.

    `feeds` are the Data operators. `spoil` gets each operator's results and may change them.
    """
    values: dict[Edge, torch.Tensor] = {}
    for operator in operators:
        if operator.type == "Data":
            results: Values = [feeds[operator.name]]
        else:
            results = operator.compute([_wide(values[edge]) for edge in operator.edges])
        for index, result in enumerate(spoil(operator, results)):
            values[Edge(operator.name, index)] = result.to(dtype) if result.is_floating_point() else result
    return values


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


# Passes of the Graph Engine over a graph before it runs: no idle casts, fused operators, device formats.
#
# The text of the graph that TorchAir writes is that before these passes, which is why a dump has to be
# matched.


FUSED = ("Mul_1", "Add_1")
"""The pair that becomes one: the scaled product of the second layer and its bias."""
IN_NZ = ("MatMulV2", "MatMulV2_1")
"""Products leave their result in fractal format; `trans_TransData_1` brings the input of the first to it."""


def compiled(operators: Sequence[GeOperator], *, fused: bool) -> list[GeOperator]:
    """The operators that run, in order."""
    # Casts to the type that their input has already are taken out; a `Mul` is where the demo has them.
    types = {operator.name: operator.type for operator in operators}
    edges: dict[Edge, Edge] = {}
    result = []
    for operator in operators:
        if operator.type == "Cast" and types[operator.edges[0].producer] == "Mul":
            edges[Edge(operator.name, 0)] = operator.edges[0]
        else:
            result.append(operator.reading(edges))
    running = insert_transdata(result, IN_NZ[0])
    return fuse(running, FUSED) if fused else running


def insert_transdata(operators: Sequence[GeOperator], reader: str) -> list[GeOperator]:
    """The first input of `reader` is brought to fractal format by an operator of the Graph Engine's own."""
    result = []
    for operator in operators:
        if operator.name == reader:
            source, *inputs = operator.inputs
            name = "trans_TransData_1"
            result.append(GeOperator(name, "TransData", (source,), list, storage="FRACTAL_NZ"))
            operator = replace(operator, inputs=(Edge(name, 0), *inputs))
        if operator.name in IN_NZ:
            operator = replace(operator, storage="FRACTAL_NZ")
        result.append(operator)
    return result


def fuse(operators: Sequence[GeOperator], names: tuple[str, str]) -> list[GeOperator]:
    """The two operators as one, under both names, where the second stood.

    Raises `CaptureError` where they are not there or the second does not read the first.
    """
    by_name = {operator.name: operator for operator in operators}
    if any(name not in by_name for name in names):
        raise CaptureError(f"{' and '.join(names)}: not in this graph, so they cannot be fused")
    first, second = (by_name[name] for name in names)
    inner = Edge(first.name, 0)
    if inner not in second.edges:
        raise CaptureError(f"{second.name} does not read {first.name}, so they cannot be fused")
    outer = tuple(edge for edge in second.edges if edge != inner)

    def compute(values: Values) -> Values:
        between = first.compute(values[: len(first.edges)])[0]
        rest = iter(values[len(first.edges) :])
        return second.compute([between if edge == inner else next(rest) for edge in second.edges])

    fused = replace(
        second,
        name="".join(names),
        type="AutomaticBufferFusionOp",
        inputs=(*first.edges, *outer),
        compute=compute,
        parts=names,
    )
    edges = {Edge(second.name, index): Edge(fused.name, index) for index in range(second.outputs)}
    result = [fused if operator is second else operator for operator in operators if operator is not first]
    return [operator.reading(edges) for operator in result]
