"""A graph run node by node on the device of its tensors, each call dumped: what TorchAir does.

With a `dtype`, the same graph is computed in that dtype: floating inputs are cast, dtypes written in the
graph are replaced, and results are cast back, so that the program around notices nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter
from torch.fx.node import Node, map_aggregate

from ...errors import CaptureError
from .files import NodeFiles, written_arguments

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
            cast = self._cast(result)
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

    def _cast(self, value: Any) -> Any:
        wide = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != self._dtype
        return value.to(self._dtype) if wide else value

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
