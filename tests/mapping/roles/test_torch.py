"""Roles of a torch model's tensors, read off the names of its modules and their slots."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from acc_pytest.dumps.base import Slot
from acc_pytest.mapping.layers import find_layers
from acc_pytest.mapping.match import Export
from acc_pytest.mapping.roles import torch
from acc_pytest.mapping.roles.torch import Fused
from acc_pytest.mapping.tables import ModuleRole, load_tables
from acc_pytest.topology.tree import Node, Tree

from ..trees import torch_node

TABLES = load_tables()
OUT = Slot("output", (0,))
Dumped = Mapping[str, Sequence[Slot]]
"""The slots of modules by their names."""


def module_roles(dumped: Dumped, op_type: str = "Block") -> dict[tuple[str, str], tuple[str, str]]:
    """Roles of a torch layer whose modules dumped these slots: {(module, slot): (role, form)}."""
    layer = torch_node(
        "root.layers.0", op_type, *(torch_node(f"root.layers.0.{name}", "M") for name in dumped)
    )
    root = torch_node("root", "Model", layer)
    slots = {f"root.layers.0.{name}": slots for name, slots in dumped.items()}
    [found] = find_layers(Tree(root, "Model"), TABLES)
    exports = torch.layer_exports(found, TABLES, lambda node: slots.get(node.path, ()))
    return {(found.below(e.node), str(e.slot)): (e.role, e.form) for e in exports}


def model_roles(dumped: Dumped) -> dict[tuple[str, str], tuple[str, str]]:
    """The same of modules outside of layers, by their paths."""
    root = torch_node("root", "Model", *(torch_node(f"root.{name}", "M") for name in dumped if name))
    slots = {f"root.{name}" if name else "root": slots for name, slots in dumped.items()}
    exports = torch.model_exports(Tree(root, "Model"), [], TABLES, lambda node: slots.get(node.path, ()))
    return {(e.node.path, str(e.slot)): (e.role, e.form) for e in exports}


def test_a_cache_that_goes_by_names_holds_key_and_value() -> None:
    key, value = (Slot("output", ("past_key_values", part)) for part in ("key", "value"))
    found = module_roles({"self_attn": [OUT, Slot("output", (1,)), value, key]})
    assert found["self_attn", "output[past_key_values][key]"] == ("k_rope", "cache")
    assert found["self_attn", "output[past_key_values][value]"] == ("v", "cache")
    assert found["self_attn", "output[0]"] == ("o", "plain")


def test_the_projections_of_another_attention_are_not_those_of_the_layers_own() -> None:
    modules = module_roles({"self_attn.q_proj": [OUT], "encoder_attn.q_proj": [OUT]})
    assert modules["self_attn.q_proj", "output[0]"] == ("q", "plain")
    assert modules["encoder_attn.q_proj", "output[0]"] == ("cross.q", "plain")


def test_other_named_outputs_are_no_cache() -> None:
    found = module_roles({"self_attn": [OUT, Slot("output", ("extra", "weights"))]})
    assert found == {("self_attn", "output[0]"): ("o", "plain")}


def test_an_input_given_by_keyword_has_its_role_too() -> None:
    by_name = Slot("input", ("hidden_states",))
    found = module_roles({"self_attn.o_proj": [OUT, by_name], "post_attention_layernorm": [by_name]})
    assert found["self_attn.o_proj", "input[hidden_states]"] == ("attn_core", "plain")
    assert found["post_attention_layernorm", "input[hidden_states]"] == ("attn_residual", "plain")


def test_of_several_inputs_the_first_is_what_a_module_works_on() -> None:
    first, second, by_name = Slot("input", (0,)), Slot("input", (1,)), Slot("input", ("hidden_states",))
    found = module_roles({"self_attn.o_proj": [by_name, second, first]})
    assert found == {("self_attn.o_proj", "input[0]"): ("attn_core", "plain")}
    assert module_roles({"self_attn.o_proj": [second]}) == {}


def test_a_router_that_chooses_returns_logits_weights_and_experts() -> None:
    found = module_roles({"mlp.gate": [Slot("output", (n,)) for n in range(3)]})
    assert [role for role, _ in found.values()] == ["router", "router_weight", "router_index"]


def test_a_router_without_choice_returns_logits() -> None:
    assert module_roles({"mlp.gate": [OUT]}) == {("mlp.gate", "output[0]"): ("router", "plain")}


def test_experts_in_one_module_are_the_block_unless_an_expert_is_shared() -> None:
    alone = module_roles({"mlp": [OUT], "mlp.experts": [OUT]})
    assert alone["mlp.experts", "output[0]"] == ("down", "plain")
    beside = module_roles({"mlp": [OUT], "mlp.experts": [OUT], "mlp.shared_experts": [OUT]})
    assert beside["mlp.experts", "output[0]"] == ("routed", "plain")


def test_an_expert_hands_on_what_its_last_linear_computed() -> None:
    found = module_roles({"mlp.experts.1": [OUT], "mlp.experts.1.down_proj": [OUT]})
    assert found["mlp.experts.1", "output[0]"] == ("expert.1.down", "repeated")
    assert found["mlp.experts.1.down_proj", "output[0]"] == ("expert.1.down", "plain")


def test_the_rotated_query_is_an_input_of_the_first_product() -> None:
    query = Slot("input", (0,))
    for name in ("scaled_dot_product_attention", "matmul"):
        found = module_roles({f"self_attn.{name}": [query, Slot("input", (1,)), OUT]})
        assert found == {(f"self_attn.{name}", "input[0]"): ("q_rope", "cache")}
    assert not module_roles({"self_attn.matmul.1": [query, OUT]})


def test_models_hand_on_what_their_last_modules_computed() -> None:
    found = model_roles(
        {
            "": [Slot("output", ("logits",)), Slot("output", ("past_key_values", "0", "key"))],
            "model": [Slot("output", ("last_hidden_state",))],
            "model.norm": [OUT],
            "lm_head": [OUT],
        }
    )
    assert found["root", "output[logits]"] == ("lm_head", "repeated")
    assert found["root.model", "output[last_hidden_state]"] == ("final_norm", "repeated")
    assert found["root.model.norm", "output[0]"] == ("final_norm", "plain")
    assert found["root.lm_head", "output[0]"] == ("lm_head", "plain")


def tables(dumped: Dumped, **model: Sequence[Slot]) -> list[tuple[str, str, str, str, int | None]]:
    """The position tables of a model with these modules in its layer, and these beside it."""
    layer = torch_node("root.layers.0", "Block", *(torch_node(f"root.layers.0.{n}", "M") for n in dumped))
    root = torch_node("root", "Model", *(torch_node(f"root.{name}", "M") for name in model), layer)
    slots = {f"root.layers.0.{name}": slots for name, slots in dumped.items()}
    slots |= {f"root.{name}": slots for name, slots in model.items()}
    tree = Tree(root, "Model")
    layers = find_layers(tree, TABLES)
    exports = torch.model_exports(tree, layers, TABLES, lambda node: slots.get(node.path, ()))
    return [(e.node.path, str(e.slot), e.role, e.form, e.component) for e in exports]


def test_position_tables_are_two_outputs_or_one_with_both() -> None:
    two = [OUT, Slot("output", (1,))]
    module = "root.layers.0.rotary_emb"
    assert tables({"rotary_emb": two, "mlp": [OUT]}) == [
        (module, "output[0]", "cos", "table", None),
        (module, "output[1]", "sin", "table", None),
    ]
    assert tables({"rotary_emb": [Slot("input", (0,)), OUT]}) == [
        (module, "output[0]", "cos", "table", 0),
        (module, "output[0]", "sin", "table", 1),
    ]


def test_position_tables_of_the_model_come_before_those_of_its_first_layer() -> None:
    two = [OUT, Slot("output", (1,))]
    found = tables({"rotary_emb": two}, rotary_emb=two)
    assert [path for path, *_ in found] == ["root.rotary_emb"] * 2


def test_the_core_of_an_attention_reads_the_rotated_query() -> None:
    found = module_roles({"attn.core_attention": [Slot("input", (0,)), Slot("input", (1,)), OUT]})
    assert found == {
        ("attn.core_attention", "input[0]"): ("q_rope", "plain"),
        ("attn.core_attention", "output[0]"): ("attn_core", "plain"),
    }


def test_an_attention_that_adds_the_residual_returns_the_sum() -> None:
    layer = torch_node("root.layers.0", "Block", torch_node("root.layers.0.attention", "BloomAttention"))
    tree = Tree(torch_node("root", "Model", layer), "Model")
    [found] = find_layers(tree, TABLES)
    [export] = torch.layer_exports(found, TABLES, lambda node: [OUT] if node.is_leaf else [])
    assert export.role == "attn_residual"


# Modules that engines fuse: what they do is told by how many tensors they take and give, and how wide.


IN, FUSED_OUT, SECOND = Slot("input", (0,)), Slot("output", (0,)), Slot("output", (1,))
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
    shapes = {(ACTIVATION, IN): (3, given), (ACTIVATION, FUSED_OUT): (3, 8)}
    assert activation("SiLU", shapes) is multiplies
    assert activation("SiluAndMul", shapes) is multiplies, "shapes say more than names"


@pytest.mark.parametrize("op_type", ["SiluAndMul", "GeluAndMul", "SwiGLU", "SwigluOAI", "GeGLU"])
def test_without_shapes_the_name_of_an_activation_says_that_it_multiplies(op_type: str) -> None:
    assert activation(op_type, {})
    assert not activation("SiLU", {})


def test_without_its_input_an_activation_is_held_against_the_packed_linear_beside_it() -> None:
    shapes = {(ACTIVATION, FUSED_OUT): (3, 8), ("mlp.gate_up_proj", FUSED_OUT): (3, 16)}
    assert activation("SiLU", shapes)
    assert not activation("SiLU", shapes, "mlp.up_proj")
    assert not activation("SiLU", {**shapes, ("mlp.gate_up_proj", FUSED_OUT): (3, 8)})
    assert not activation("SiLU", {("mlp.gate_up_proj", FUSED_OUT): (3, 16)}), "nothing says what it gives"
    assert not activation("SiLU", {**shapes, (ACTIVATION, IN): ()}, "mlp.up_proj")
    assert not fused(torch_node("act", "SiLU"), {("act", FUSED_OUT): (3, 8)}).multiplies(), "alone"


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
    assert not rotary({("rope", FUSED_OUT): (3, 8), ("rope", SECOND): (3, 4)}, (0,), (1,))


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
    assert rotary({("rope", FUSED_OUT): first, ("rope", SECOND): second}) is turns
    assert not rotary({("rope", FUSED_OUT): first})


def result(shapes: Shapes, *, beside: bool = True, repeats: bool = False) -> Export:
    """The first output of a layer, under a rule for one that may return the residual beside it."""
    rule = ModuleRole(re.compile(""), residual_beside=beside, repeats=repeats)
    return fused(torch_node("layer", "Layer"), shapes).result(FUSED_OUT, "mlp_residual", rule)


def test_a_layer_that_returns_two_tensors_of_one_shape_has_yet_to_add_them() -> None:
    two = {("layer", FUSED_OUT): (3, 8), ("layer", SECOND): (3, 8)}
    split = result(two)
    assert (split.role, split.form, split.slot) == ("mlp_residual", "split", FUSED_OUT)
    [other] = split.companions
    assert (other.node, other.slot, other.role) == (split.node, SECOND, "mlp_residual")
    assert result({**two, ("layer", Slot("output", (2,))): (5,)}).form == "split"
    fewer_rows = {("layer", FUSED_OUT): (2, 6, 8), ("layer", SECOND): (2, 3, 8)}
    assert result(fewer_rows).form == "split"
    assert result(two, beside=False).form == "plain"
    assert result({**two, ("layer", SECOND): (3, 4)}).form == "plain", "attention weights"
    assert result({("layer", FUSED_OUT): (3, 8)}, repeats=True).form == "repeated"


def test_two_outputs_of_unknown_shapes_are_not_added() -> None:
    node = torch_node("layer", "Layer")
    unknown = Fused(node, [FUSED_OUT, SECOND], [FUSED_OUT, SECOND], lambda node, slot: None)
    assert unknown.result(FUSED_OUT, "o", ModuleRole(re.compile(""), residual_beside=True)).form == "plain"
