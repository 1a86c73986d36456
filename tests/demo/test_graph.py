"""The tiny graph: rounding after every leaf, in-place writes, wiring mistakes."""

from __future__ import annotations

import pytest
import torch

from acc_pytest.demo.graph import Call, Cell, Operation, Record, Scope, graph, run


def execute(
    operation: Operation, outputs: tuple[str, ...], **tensors: torch.Tensor
) -> tuple[Scope, list[Record]]:
    scope: Scope = {name: Cell(tensor) for name, tensor in tensors.items()}
    records: list[Record] = []
    run([Call(operation, tuple(tensors), outputs)], [scope], ("0_Top",), torch.float16, records.append)
    return scope, records


def leaf(compute: object, inputs: int = 1, writes: tuple[int, ...] = ()) -> Operation:
    return Operation("Leaf", ("",) * inputs, ("",), {}, compute=compute, writes=writes)  # type: ignore[arg-type]


def test_a_leaf_computes_wide_and_rounds_its_result() -> None:
    third = torch.tensor([1.0], dtype=torch.float16)
    scope, _ = execute(leaf(lambda x: x / 3 + (x.dtype == torch.float32)), ("y",), x=third)
    assert torch.equal(scope["y"].read(), torch.tensor([1 / 3 + 1]).half())


def test_children_are_recorded_before_their_parent() -> None:
    double = leaf(lambda x: x * 2)
    top = graph("Top", ("x",), ("y",), Call(double, ("x",), ("mid",)), Call(double, ("mid",), ("y",)))
    _, records = execute(top, ("y",), x=torch.ones(1))
    assert [r.path for r in records] == [("0_Top", "0_Leaf"), ("0_Top", "1_Leaf"), ("0_Top",)]
    assert records[-1].outputs[0].item() == 4


def test_writing_onto_an_input_reaches_the_outer_scope() -> None:
    grow = leaf(lambda x: (x, x + 1), writes=(0,))
    top = graph("Top", ("cache",), ("y",), Call(grow, ("cache",), ("y",)))
    scope, records = execute(top, ("y",), cache=torch.zeros(1))
    assert scope["cache"].read().item() == 1
    assert (records[0].before[0].item(), records[0].after[0].item()) == (0, 1)


def test_an_operation_sees_its_input_in_the_shape_of_the_call() -> None:
    scope: Scope = {"x": Cell(torch.ones(2, 3, 4))}
    seen: list[Record] = []
    call = Call(leaf(lambda x: x), ("x",), ("y",), {0: lambda shape: (shape[0], -1)})
    run([call], [scope], ("0_Leaf",), torch.float16, seen.append)
    assert seen[0].before[0].shape == (2, 12)


def test_a_collective_gets_all_ranks() -> None:
    total = Operation(
        "Sum", ("",), ("",), {}, compute=lambda parts: [sum(parts)] * len(parts), collective=True
    )
    scopes: list[Scope] = [{"x": Cell(torch.full((1,), float(rank)))} for rank in (1, 2)]
    run([Call(total, ("x",), ("y",))] * 2, scopes, ("0_Sum",), torch.float16, lambda _: None)
    assert [scope["y"].read().item() for scope in scopes] == [3, 3]


def test_reading_before_writing_is_a_mistake_of_the_graph() -> None:
    with pytest.raises(LookupError, match="before it is written"):
        Cell().read()


def test_a_leaf_without_computation_is_a_mistake_of_the_graph() -> None:
    with pytest.raises(TypeError, match="neither calls nor a computation"):
        execute(Operation("Hollow", ("",), ("",)), ("y",), x=torch.ones(1))
