"""A graph run node by node on the device of its tensors, each call dumped: what TorchAir does.

With a `dtype`, the same graph is computed in that dtype: floating inputs are cast, dtypes written in the
graph are replaced, and results are cast back, so that the program around notices nothing.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Graph, GraphModule, Interpreter
from torch.fx.node import Node, map_aggregate, map_arg

from ...errors import AccError, CaptureError
from ...tensors.whole_file import whole_file

Opened = Callable[[Node], "NodeFiles | None"]
"""Gives the files of a node in this step, or `None` where it is not to be dumped."""

_HALF_TO_FLOAT = ("aten._softmax.default", "aten._log_softmax.default")
_BITS = ("aten.view.dtype", "aten.view_copy.dtype")


class Interpreted(Interpreter):
    """One run of a graph."""

    def __init__(self, module: GraphModule, opened: Opened) -> None:
        super().__init__(module)
        self._opened = opened
        self._files: NodeFiles | None = None

    def run_node(self, n: Node) -> Any:
        self._files = self._opened(n)
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        files, self._files = self._files, None
        if files is not None:
            files.write_inputs(args, kwargs)
        result = super().call_function(target, args, kwargs)
        if files is not None:
            files.write_outputs(result)
        return result


class InDtype(Interpreted):
    """One run of a graph in another floating dtype."""

    def __init__(self, module: GraphModule, opened: Opened, dtype: torch.dtype) -> None:
        super().__init__(module, opened)
        self._dtype = dtype
        self._result = next(node for node in module.graph.nodes if node.op == "output")
        self._originals: dict[Node, tuple[torch.Tensor, torch.Tensor]] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op in ("placeholder", "get_attr"):
            is_float = isinstance(result, torch.Tensor) and result.is_floating_point()
            cast = result.to(self._dtype) if is_float and result.dtype != self._dtype else result
            if cast is not result and n.op == "placeholder":
                self._originals[n] = (result, cast)
            return cast
        for argument in written_arguments(n):
            # A write of the graph to an input must reach the tensor of the program.
            if argument in self._originals:
                original, cast = self._originals[argument]
                original.copy_(cast)
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if str(target) in _BITS:
            raise CaptureError(
                f"FX dump: the graph reinterprets bits ({target}), so inner cannot be another dtype"
            )
        args = map_aggregate(args, self._replaced)
        kwargs = map_aggregate(kwargs, self._replaced)
        if str(target) in _HALF_TO_FLOAT:
            args = (*args[:2], False)
        return super().call_function(target, args, kwargs)

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        traced = map_aggregate(self._result.args[0], _traced_dtype)
        return _cast_back(super().output(target, args, kwargs), traced)

    def _replaced(self, value: Any) -> Any:
        return self._dtype if isinstance(value, torch.dtype) and value.is_floating_point else value


def _traced_dtype(value: Any) -> Any:
    traced = value.meta.get("val") if isinstance(value, Node) else None
    return traced.dtype if isinstance(traced, torch.Tensor) else None


def _cast_back(result: Any, traced: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.to(traced) if traced is not None and result.is_floating_point() else result
    if isinstance(result, (list, tuple)):
        return type(result)(_cast_back(item, dtype) for item, dtype in zip(result, traced))
    return result


# A graph compiled by another backend (inductor, ...), its intermediate tensors handed out and dumped.
#
# A compiler keeps no intermediate tensors, so the graph is given outputs for them: every tensor that a dumped
# node takes or gives. Names and files are those of the graph before that compiler rewrote it; what it fuses
# between two of them is its own affair, and what it computes is what is dumped.


class CompiledGraph:
    """A graph whose runs are compiled by `inner`, at the first run and whenever sizes demand it."""

    def __init__(self, module: GraphModule, inner: Callable[..., Any]) -> None:
        self._module = module
        self._inner = inner
        self._compiled: Callable[..., Any] | None = None
        self._graphs = 0
        nodes = list(module.graph.nodes)
        self._nodes = [node for node in nodes if is_dumped(node)]
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._constants = {node: getattr(module, str(node.target)) for node in nodes if node.op == "get_attr"}
        self._changed = {argument for node in nodes for argument in written_arguments(node)}
        self._needed = _needed(self._nodes)

    def run(self, args: Sequence[Any], opened: Opened, *, dumps: bool) -> Any:
        """Run the graph and, if it `dumps`, write the files of its nodes: inputs as they came in."""
        values: dict[Node, Any] = dict(self._constants)
        if dumps:
            for node, value in zip(self._placeholders, args):
                values[node] = value.clone() if node in self._changed else value
        if self._compiled is None:
            # Not earlier: what is made while the graph around is compiled, torch takes for its own and skips.
            self._compiled = torch.compile(self._instrumented(), backend=self._counted, fullgraph=True)
        result, captured = self._compiled(*args)
        if not self._graphs:
            raise CaptureError(f"FX dump: torch did not hand the graph to {self._inner!r}, it ran uncompiled")
        if dumps:
            values.update(zip(self._needed, captured))
            for node in self._nodes:
                files = opened(node)
                if files is not None:
                    arguments, keywords = map_arg((node.args, node.kwargs), values.__getitem__)
                    files.write_inputs(arguments, keywords)
                    files.write_outputs(values[node])
        return result

    def _counted(self, module: GraphModule, example_inputs: Sequence[Any]) -> Any:
        self._graphs += 1
        return self._inner(module, example_inputs)

    def _instrumented(self) -> GraphModule:
        """A copy of the graph that also gives the wanted values."""
        graph = Graph()
        copies: dict[Node, Node] = {}
        handed_out: dict[Node, Any] = {}
        result: Any = None
        for node in self._module.graph.nodes:
            if node.op == "output":
                result = map_arg(node.args[0], copies.__getitem__)
                continue
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node in self._needed:
                # A view of what is written to later would show what it is then.
                handed_out[node] = _cloned(graph, node, copies[node]) if self._changed else copies[node]
        graph.output((result, tuple(handed_out[node] for node in self._needed)))
        for node in graph.nodes:
            node.meta = {}  # the sizes of this trace, which are not those of every run
        return GraphModule(self._module, graph)


def _needed(nodes: Sequence[Node]) -> dict[Node, None]:
    """Calls whose values dumped nodes take or give, in their order."""
    calls: dict[Node, None] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source.op == "call_function":
                calls.setdefault(source)
        calls.setdefault(node)
    return calls


def _cloned(graph: Graph, traced: Node, node: Node) -> Any:
    """Copies of the tensors that a node gives."""
    value = traced.meta.get("val")
    if isinstance(value, torch.Tensor):
        return graph.call_function(torch.ops.aten.clone.default, (node,))
    if isinstance(value, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in value):
        items = [graph.call_function(operator.getitem, (node, index)) for index in range(len(value))]
        return tuple(graph.call_function(torch.ops.aten.clone.default, (item,)) for item in items)
    return node


# The files of one call of a node: arguments, results, and the keyword arguments that TorchAir leaves out.
#
# {node}-{target}.INPUT.{i}.{time}.npy      argument i; .{i}.{j} for item j of a list of tensors
# {node}-{target}.OUTPUT.{i}.{time}.npy     result i
# {node}-{target}.KWARG.{name}.{time}.npy   an argument given by name (ours; TorchAir has no such file)


_ARITHMETIC = (
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.pow),
    *(operator.mod, operator.neg, math.floor, math.ceil),
)
"""Functions that stand in graphs for sums of sizes."""


def is_dumped(node: Node) -> bool:
    """Whether a node has files: calls of operators that give something, and arithmetic with symbolic sizes.

    Picking an item out of a tuple has none, and neither have inputs, constants and assertions. TorchAir
    leaves out, too, what it cannot convert to GE; here every operator is dumped.
    """
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.returns)
    return node.target in _ARITHMETIC or isinstance(node.target, torch._ops.OpOverloadPacket)


def written_arguments(node: Node) -> Iterator[Node]:
    """The nodes whose tensors an operator changes."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            if isinstance(value, Node):
                yield value


class NodeFiles:
    """Writes the files of one call; all of them carry one time."""

    def __init__(self, directory: Path, node: Node, time: str, *, keywords: bool, bfloat16: bool) -> None:
        self._directory = directory
        self._stem = f"{node.name}-{node.target}"
        self._time = time
        self._keywords = keywords
        self._bfloat16 = bfloat16

    def write_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Write what the node is called with, before it is called: it may change its arguments."""
        for index, arg in enumerate(args):
            for place, value in _items(index, arg):
                self._write(f"INPUT.{place}", as_array(value, bfloat16=self._bfloat16))
        if self._keywords:
            for name, arg in kwargs.items():
                for place, value in _items(name, arg):
                    self._write(f"KWARG.{place}", as_plain_array(value, bfloat16=self._bfloat16))

    def write_outputs(self, result: Any) -> None:
        """Write what the node gave."""
        results = result if isinstance(result, (list, tuple)) else [result]
        for index, value in enumerate(results):
            self._write(f"OUTPUT.{index}", as_array(value, bfloat16=self._bfloat16))

    def _write(self, slot: str, array: Array) -> None:
        path = self._directory / f"{self._stem}.{slot}.{self._time}.npy"
        try:
            with whole_file(path) as file:
                np.save(file, array)
        except AccError as error:
            raise CaptureError(f"FX dump: {error}") from error


def _items(place: int | str, arg: Any) -> Iterator[tuple[str, Any]]:
    """An argument, or the items of a list that begins with a tensor."""
    if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], torch.Tensor):
        for index, item in enumerate(arg):
            yield f"{place}.{index}", item
    else:
        yield str(place), arg


Array = npt.NDArray[Any]


def as_array(value: Any, *, bfloat16: bool = False) -> Array:
    """The array that stands for a value of a graph.

    With `bfloat16`, such tensors keep their two bytes, which numpy calls `V2` and our readers bfloat16.
    """
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        if plain.is_quantized:
            plain = plain.dequantize()
        if plain.layout != torch.strided:
            plain = plain.to_dense()
        plain = plain.cpu()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        if bfloat16 and plain.dtype == torch.bfloat16:
            bits: Array = plain.view(torch.int16).numpy().view("V2")
            return bits
        if plain.dtype == torch.bfloat16 or (plain.is_floating_point() and plain.element_size() == 1):
            plain = plain.to(torch.float32)
        array: Array = plain.numpy()
        return array
    try:
        with warnings.catch_warnings():
            # numpy before 1.24 makes objects of unequal things
            warnings.filterwarnings("error", "Creating an ndarray from ragged")
            return np.array(value)
    except Exception:  # noqa: BLE001 - lists of unequal things raise whatever their items raise
        return np.array(str(value))


def as_plain_array(value: Any, *, bfloat16: bool = False) -> Array:
    """The array of `as_array` without pickles: what is neither tensor nor number becomes its text."""
    array = as_array(value, bfloat16=bfloat16)
    return np.array(str(value)) if array.dtype.hasobject else array
