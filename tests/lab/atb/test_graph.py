"""Graphs: rounding after every leaf, in-place writes, views, wiring mistakes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from acc_pytest.errors import OperatorError
from acc_pytest.lab.atb import Call, Operation, graph, operation
from acc_pytest.lab.atb.graph import Cell, Execution, Scope, run

ADD, MULS = {"elewiseType": 8}, {"elewiseType": 2, "mulsParam": {"varAttr": 2.0}}


def add() -> Operation:
    return operation("ElewiseOperation", ADD, ("x", "y"), ("out",))


def double() -> Operation:
    return operation("ElewiseOperation", MULS, ("x",), ("out",))


def execute(call: Call, **tensors: torch.Tensor) -> tuple[Scope, list[Execution]]:
    scope: Scope = {name: Cell(tensor) for name, tensor in tensors.items()}
    done: list[Execution] = []
    run([call], [scope], (f"0_{call.operation.kind}",), done.append)
    return scope, done


def test_a_leaf_computes_wide_and_rounds_its_result_once() -> None:
    x, y = torch.tensor([2048.0]).half(), torch.tensor([1.5]).half()
    scope, _ = execute(Call(add(), ("x", "y"), ("out",)), x=x, y=y)
    assert scope["out"].read().dtype == torch.float16
    assert scope["out"].read().item() == 2050  # 2049.5 to even; 2048 + 1.5 in half steps of 2


def test_children_are_recorded_before_their_parent() -> None:
    top = graph("Top", ("x",), ("y",), Call(double(), ("x",), ("mid",)), Call(double(), ("mid",), ("y",)))
    _, done = execute(Call(top, ("x",), ("y",)), x=torch.ones(1))
    assert [e.path for e in done] == [
        ("0_Top", "0_ElewiseOperation"),
        ("0_Top", "1_ElewiseOperation"),
        ("0_Top",),
    ]
    assert (done[1].ids, done[1].name) == ((0, 1), "ElewiseOperation_0_1")
    assert done[-1].outputs[0].item() == 4


def test_writing_onto_an_input_reaches_the_outer_scope() -> None:
    top = graph("Top", ("x",), ("x",), Call(double(), ("x",), ("x",)))
    scope, done = execute(Call(top, ("x",), ("x",)), x=torch.ones(1))
    assert scope["x"].read().item() == 2
    leaf = done[0]
    assert [x.item() for (x,) in (leaf.before, leaf.after, leaf.stale) if x is not None] == [1, 2, 1]


def test_an_operation_sees_input_and_gives_output_in_the_shape_of_the_call() -> None:
    call = Call(double(), ("x",), ("y",), {0: lambda s: (s[0], -1)}, {0: lambda s: (s[0], 4, 3)})
    scope, done = execute(call, x=torch.ones(2, 3, 4))
    assert done[0].before[0].shape == (2, 12)
    assert scope["y"].read().shape == (2, 4, 3)


def test_an_output_that_was_never_written_has_no_stale_value() -> None:
    _, done = execute(Call(double(), ("x",), ("y",)), x=torch.ones(1))
    assert done[0].stale == (None,)


def test_a_collective_gets_all_ranks() -> None:
    param = {"rank": 0, "rankSize": 2, "allReduceType": "sum"}
    call = Call(operation("AllReduceOperation", param, ("",), ("",)), ("x",), ("y",))
    scopes: list[Scope] = [{"x": Cell(torch.full((1,), float(rank)))} for rank in (1, 2)]
    run([call] * 2, scopes, ("0_AllReduceOperation",), lambda _: None)
    assert [scope["y"].read().item() for scope in scopes] == [3, 3]


def test_a_wrong_computation_replaces_the_right_one() -> None:
    wrong = dataclasses.replace(double(), wrong=lambda right, inputs: (right(*inputs)[0] + 1,))
    scope, _ = execute(Call(wrong, ("x",), ("y",)), x=torch.ones(1))
    assert scope["y"].read().item() == 3


def test_reading_before_writing_is_a_mistake_of_the_graph() -> None:
    with pytest.raises(LookupError, match="before it is written"):
        Cell().read()


def test_a_graph_that_reads_what_nobody_made_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"graph Top: call 0 \(ElewiseOperation\) reads 'z'"):
        graph("Top", ("x",), ("y",), Call(double(), ("z",), ("y",)))


def test_a_graph_whose_output_nobody_makes_is_refused() -> None:
    with pytest.raises(OperatorError, match="graph Top: output 'w' is not made by any call"):
        graph("Top", ("x",), ("w",), Call(double(), ("x",), ("y",)))
