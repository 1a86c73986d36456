"""Modules that engines fuse: what they do is told by how many tensors they take and give, and how wide."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from acc_pytest.dumps.base import Slot
from acc_pytest.mapping.match import Export
from acc_pytest.mapping.roles.torch import Fused
from acc_pytest.mapping.tables import ModuleRole
from acc_pytest.topology.tree import Node

from ..trees import torch_node

IN, OUT, SECOND = Slot("input", (0,)), Slot("output", (0,)), Slot("output", (1,))
ACTIVATION = "mlp.act_fn"
Shapes = Mapping[tuple[str, Slot], tuple[int, ...]]


def fused(node: Node, shapes: Shapes) -> Fused:
    """A module of which those slots were dumped that have a shape; outputs count by number."""
    dumped = [slot for path, slot in shapes if path == node.path]
    flat = [slot for slot in dumped if slot.kind == "output"]
    return Fused(node, dumped, flat, lambda node, slot: shapes.get((node.path, slot)))


def activation(op_type: str, shapes: Shapes, neighbour: str = "mlp.gate_up_proj") -> bool:
    """Whether an activation beside that neighbour multiplies."""
    node = torch_node(ACTIVATION, op_type)
    torch_node("mlp", "Mlp", torch_node("mlp.other", "Linear"), torch_node(neighbour, "Linear"), node)
    return fused(node, shapes).multiplies()


@pytest.mark.parametrize(("given", "multiplies"), [(16, True), (8, False), (24, False)])
def test_an_activation_that_gives_half_of_what_it_takes_multiplies(given: int, multiplies: bool) -> None:
    shapes = {(ACTIVATION, IN): (3, given), (ACTIVATION, OUT): (3, 8)}
    assert activation("SiLU", shapes) is multiplies
    assert activation("SiluAndMul", shapes) is multiplies, "shapes say more than names"


@pytest.mark.parametrize("op_type", ["SiluAndMul", "GeluAndMul", "SwiGLU", "SwigluOAI", "GeGLU"])
def test_without_shapes_the_name_of_an_activation_says_that_it_multiplies(op_type: str) -> None:
    assert activation(op_type, {})
    assert not activation("SiLU", {})


def test_without_its_input_an_activation_is_held_against_the_packed_linear_beside_it() -> None:
    shapes = {(ACTIVATION, OUT): (3, 8), ("mlp.gate_up_proj", OUT): (3, 16)}
    assert activation("SiLU", shapes)
    assert not activation("SiLU", shapes, "mlp.up_proj")
    assert not activation("SiLU", {**shapes, ("mlp.gate_up_proj", OUT): (3, 8)})
    assert not activation("SiLU", {("mlp.gate_up_proj", OUT): (3, 16)}), "nothing says what it gives"
    assert not activation("SiLU", {**shapes, (ACTIVATION, IN): ()}, "mlp.up_proj")
    assert not fused(torch_node("act", "SiLU"), {("act", OUT): (3, 8)}).multiplies(), "alone"


def rotary(shapes: Shapes, *inputs: tuple[int | str, ...]) -> bool:
    node = torch_node("rope", "Rotary")
    outputs = [slot for _, slot in shapes]
    dumped = [*(Slot("input", index) for index in inputs), *outputs]
    return Fused(node, dumped, outputs, lambda node, slot: shapes.get((node.path, slot))).turns()


def test_a_rotary_module_that_takes_query_and_key_turns_them() -> None:
    assert rotary({}, (0,), (1,), (2,))
    assert rotary({}, ("positions",), ("query",), ("key",))
    assert rotary({}, ("q",), ("k",))
    assert not rotary({}, (0,), (1,)), "hidden states and positions"
    assert not rotary({("rope", OUT): (3, 8), ("rope", SECOND): (3, 4)}, (0,), (1,))


@pytest.mark.parametrize(
    ("first", "second", "turns"),
    [
        ((3, 32), (3, 8), True),  # fewer key heads than query heads
        ((3, 32), (3, 32), True),  # rows of tokens, as engines have them
        ((1, 4, 3, 8), (1, 2, 3, 8), True),
        ((1, 3, 8), (1, 3, 8), False),  # cos and sin
    ],
)
def test_without_inputs_a_rotary_module_is_told_by_what_it_gives(
    first: tuple[int, ...], second: tuple[int, ...], turns: bool
) -> None:
    assert rotary({("rope", OUT): first, ("rope", SECOND): second}) is turns
    assert not rotary({("rope", OUT): first})


def result(shapes: Shapes, *, beside: bool = True, repeats: bool = False) -> Export:
    """The first output of a layer, under a rule for one that may return the residual beside it."""
    rule = ModuleRole(re.compile(""), residual_beside=beside, repeats=repeats)
    return fused(torch_node("layer", "Layer"), shapes).result(OUT, "mlp_residual", rule)


def test_a_layer_that_returns_two_tensors_of_one_shape_has_yet_to_add_them() -> None:
    two = {("layer", OUT): (3, 8), ("layer", SECOND): (3, 8)}
    split = result(two)
    assert (split.role, split.form, split.slot) == ("mlp_residual", "split", OUT)
    [other] = split.companions
    assert (other.node, other.slot, other.role) == (split.node, SECOND, "mlp_residual")
    assert result({**two, ("layer", Slot("output", (2,))): (5,)}).form == "split"
    assert result(two, beside=False).form == "plain"
    assert result({**two, ("layer", SECOND): (3, 4)}).form == "plain", "attention weights"
    assert result({("layer", OUT): (3, 8)}, repeats=True).form == "repeated"


def test_two_outputs_of_unknown_shapes_are_not_added() -> None:
    node = torch_node("layer", "Layer")
    unknown = Fused(node, [OUT, SECOND], [OUT, SECOND], lambda node, slot: None)
    assert unknown.result(OUT, "o", ModuleRole(re.compile(""), residual_beside=True)).form == "plain"
