"""A graph computed in another dtype: casts of inputs, of dtypes in the graph, and of results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule
from torch.fx.node import Node

from acc_pytest.capture.fx_backend.runs import InDtype, is_dumped, written_arguments

aten = torch.ops.aten


def made(
    *calls: tuple[Any, tuple[Any, ...], dict[str, Any]], traced: torch.dtype | None = None
) -> GraphModule:
    """A graph of calls, `"x"` standing for its input and a number for the result of that call."""
    graph = Graph()
    values: dict[Any, Node] = {"x": graph.placeholder("x")}
    for number, (target, args, kwargs) in enumerate(calls):
        given = tuple(values.get(arg, arg) if isinstance(arg, (str, int)) else arg for arg in args)
        values[number] = graph.call_function(target, given, kwargs)
    result = values[len(calls) - 1]
    if traced is not None:
        result.meta["val"] = torch.empty(0, dtype=traced)
    graph.output((result, None))
    return GraphModule(torch.nn.Module(), graph)


def run(module: GraphModule, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> Any:
    return InDtype(module, lambda _node: None, dtype).run(x)


def test_inputs_are_computed_with_in_the_dtype_and_results_cast_back() -> None:
    third = torch.tensor([1 / 3], dtype=torch.bfloat16)
    module = made((aten.mul.Tensor, ("x", 3.0), {}), traced=torch.bfloat16)
    result, nothing = run(module, third)
    assert nothing is None
    assert result.dtype == torch.bfloat16
    (wide, _) = run(made((aten.mul.Tensor, ("x", 3.0), {})), third)
    assert wide.dtype == torch.float32
    assert wide.item() == third.float().item() * 3


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (aten._to_copy.default, ("x",), {"dtype": torch.bfloat16}),
        (aten.full.default, ([2], 1 / 3), {"dtype": torch.float16}),
        (aten.sum.dim_IntList, ("x", [0]), {"dtype": torch.bfloat16}),
    ],
)
def test_floating_dtypes_in_the_graph_are_replaced(target: Any, args: Any, kwargs: Any) -> None:
    result, _ = run(made((target, args, kwargs)), torch.ones(2), torch.float64)
    assert result.dtype == torch.float64


def test_other_dtypes_stay() -> None:
    result, _ = run(made((aten._to_copy.default, ("x",), {"dtype": torch.int32})), torch.ones(2))
    assert result.dtype == torch.int32
    result, _ = run(made((aten.add.Tensor, ("x", 1), {})), torch.ones(2, dtype=torch.int64))
    assert result.dtype == torch.int64


@pytest.mark.parametrize("target", [aten._softmax.default, aten._log_softmax.default])
def test_a_softmax_that_widened_half_has_nothing_to_widen(target: Any) -> None:
    x = torch.randn(3, dtype=torch.float16)
    result, _ = run(made((target, ("x", -1, True), {})), x)
    assert torch.equal(result, target(x.float(), -1, False))


def test_what_the_graph_writes_reaches_the_tensor_of_the_program() -> None:
    x = torch.ones(2, dtype=torch.bfloat16)
    module = made((aten.mul.Tensor, ("x", 2.5), {}), (aten.copy_.default, ("x", 0), {}))
    run(module, x)
    assert torch.equal(x, torch.full((2,), 2.5, dtype=torch.bfloat16))
    # A tensor that is in the dtype already is written by the graph itself.
    wide = torch.ones(2)
    run(module, wide)
    assert torch.equal(wide, torch.full((2,), 2.5))


def test_what_a_call_writes_is_known_by_its_schema() -> None:
    module = made((aten.add.Tensor, ("x", 1), {}), (aten.add_.Tensor, ("x", 0), {}))
    x, add, add_, output = module.graph.nodes
    assert [list(written_arguments(node)) for node in (x, add, add_, output)] == [[], [], [x], []]
    assert [is_dumped(node) for node in (x, add, add_, output)] == [False, True, True, False]
