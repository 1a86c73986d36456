"""Roles of an ATB layer, read off programs: a line is `Type: what it reads -> what it writes`."""

from __future__ import annotations

import pytest

from acc_pytest.mapping.match import Export
from acc_pytest.mapping.roles import atb
from acc_pytest.mapping.roles.atb_graph import AtbGraph, graph_of
from acc_pytest.mapping.tables import load_tables
from acc_pytest.topology.tree import Tree

from ..trees import atb_tree

TABLES = load_tables()
ELEWISE = {"Cast": 1, "Quant": 6, "Add": 8, "Mul": 9, "Div": 10}
"""Elementwise operations by the number that ATB has for them."""


def operators(program: str) -> list[list[object]]:
    """The operators of a program, for `atb_tree`; `Swiglu` is the activation that multiplies as well."""
    made: list[list[object]] = []
    for number, line in enumerate(program.strip().splitlines()):
        kind, _, rest = line.strip().partition(": ")
        inputs, _, outputs = rest.partition("->")
        param: dict[str, object] = {"elewiseType": ELEWISE[kind]} if kind in ELEWISE else {}
        if kind == "Swiglu":
            kind, param = "Activation", {"activationType": 6}
        kind = "Elewise" if kind in ELEWISE else kind
        name, op_type = f"{kind}Operation_0_{number}", f"{kind}Operation"
        made.append([name, op_type, inputs.split(), outputs.split(), param])
    return made


def graph(tree: Tree) -> AtbGraph:
    return graph_of(tree, TABLES, lambda leaf, operand: "bias" in operand.name)


def written(export: Export) -> str:
    """The name of the tensor that an export is of."""
    [place] = export.slot.index
    assert isinstance(place, int)
    names = export.node.outputs if export.slot.kind == "output" else export.node.inputs
    return names[place]


def roles(program: str) -> dict[str, str]:
    """The roles of the tensors that a layer of these operators writes, by name; forms beside `plain` too."""
    tree = atb_tree([["Layer_0", "Layer", ["x"], ["y"], {}, operators(program)]])
    exports = atb.layer_exports(tree.root.children[0], graph(tree))
    return {
        written(export): export.role if export.form == "plain" else f"{export.role} {export.form}"
        for export in exports
        if export.node.is_leaf and export.slot.kind == "output"
    }


PROJECTIONS = """
    RmsNorm: x w -> n
    Linear: n wq -> q
    Linear: n wk -> k
    Linear: n wv -> v
"""
ATTENTION = f"""{PROJECTIONS}
    SelfAttention: q k v -> c
    Linear: c wo -> o
    Add: o x -> r
    RmsNorm: r w -> m
""".replace("\n\n", "\n")
BEFORE_MLP = {
    "n": "input_norm", "q": "q", "k": "k", "v": "v", "c": "attn_core", "o": "o", "r": "attn_residual",
    "m": "post_norm",
}  # fmt: skip
AFTER_GATE = """
    Linear: p wd -> d
    Add: d r -> y
"""
AFTER = {"p": "gated", "d": "down", "y": "mlp_residual"}


def mlp_roles(program: str) -> dict[str, str]:
    """The roles of what follows an attention."""
    known = roles(ATTENTION.rstrip() + "\n" + program.strip("\n"))
    assert {name: role for name, role in known.items() if name in BEFORE_MLP} == BEFORE_MLP
    return {name: role for name, role in known.items() if name not in BEFORE_MLP}


# ---- a dense MLP ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        "Linear: m wg -> g\nLinear: m wu -> u\nActivation: g -> a\nMul: a u -> p",
        "Linear: m wu -> u\nLinear: m wg -> g\nActivation: g -> a\nMul: u a -> p",
    ],
)
def test_the_linear_that_is_activated_and_multiplied_is_the_gate(program: str) -> None:
    assert mlp_roles(program + AFTER_GATE) == {"g": "gate", "u": "up", "a": "act", **AFTER}


@pytest.mark.parametrize("halves", ["g u", "u g"])
def test_of_a_packed_linear_the_half_that_is_activated_is_the_gate(halves: str) -> None:
    program = f"Linear: m w -> gu\nSplit: gu -> {halves}\nActivation: g -> a\nMul: a u -> p{AFTER_GATE}"
    assert mlp_roles(program) == {"gu": "mlp_in", "g": "gate", "u": "up", "a": "act", **AFTER}


def test_three_pieces_of_a_packed_linear_are_no_gate_and_up() -> None:
    assert mlp_roles("Linear: m w -> gu\nSplit: gu -> g u z\nActivation: g -> a") == {"gu": "mlp_in"}


def test_a_fused_activation_makes_the_product() -> None:
    assert mlp_roles(f"Linear: m w -> gu\nSwiglu: gu -> p{AFTER_GATE}") == {"gu": "mlp_in", **AFTER}


def test_an_mlp_without_a_gate_is_one_linear_its_activation_and_another() -> None:
    program = "Linear: m w -> h\nActivation: h -> a\nLinear: a wd -> d\nAdd: d r -> y"
    assert mlp_roles(program) == {"h": "mlp_in", "a": "act", "d": "down", "y": "mlp_residual"}


def test_a_tensor_that_is_moved_or_cast_keeps_its_role() -> None:
    program = "Linear: m wg -> g0\nTranspose: g0 -> g\nLinear: m wu -> u\nActivation: g -> a\nMul: a u -> p"
    known = mlp_roles(program + AFTER_GATE)
    assert known == {"g0": "gate", "g": "gate passing", "u": "up", "a": "act", **AFTER}


def test_what_only_quantises_is_not_compared_but_passed_through() -> None:
    program = "Quant: m -> mq\nLinear: mq wg -> g"
    assert mlp_roles(program) == {}
    known = mlp_roles("Linear: m w -> gu\nSwiglu: gu -> p\nQuant: p -> pq\nLinear: pq wd -> d\nAdd: d r -> y")
    assert known == {"gu": "mlp_in", **AFTER}


def test_a_linear_without_an_mlp_after_it_says_nothing() -> None:
    for after in ("", "\nLinear: z w2 -> z2", "\nTranspose: z -> z2"):
        program = f"Linear: m w -> z{after}"
        assert mlp_roles(program) == {}


def test_biases_are_added_after_their_products() -> None:
    program = (
        "Linear: m w -> h0\nAdd: h0 bias_1 -> h\nActivation: h -> a\nLinear: a wd -> d0\nAdd: d0 bias_2 -> d"
    )
    known = mlp_roles(f"{program}\nAdd: d r -> y")
    assert known == {
        "h0": "mlp_in unbiased", "h": "mlp_in", "a": "act", "d0": "down unbiased", "d": "down",
        "y": "mlp_residual",
    }  # fmt: skip


def test_products_of_shards_are_summed_over_ranks() -> None:
    known = mlp_roles(
        "Linear: m w -> h\nActivation: h -> a\nLinear: a wd -> d0\nAllReduce: d0 -> d\nAdd: d r -> y"
    )
    assert (known["d0"], known["d"], known["y"]) == ("down partial", "down", "mlp_residual")


def test_norms_after_attention_and_mlp_have_roles_of_their_own() -> None:
    known = roles(
        f"""{PROJECTIONS.strip()}
        SelfAttention: q k v -> c
        Linear: c wo -> o
        RmsNorm: o w -> on
        Add: on x -> r
        RmsNorm: r w -> m
        Linear: m w -> gu
        Swiglu: gu -> p
        RmsNorm: p w -> pn
        Linear: p wd -> d
        RmsNorm: d w -> dn
        Add: r dn -> y"""
    )
    assert (known["on"], known["r"], known["m"]) == ("attn_post_norm", "attn_residual", "post_norm")
    assert (known["dn"], known["y"]) == ("mlp_post_norm", "mlp_residual")
    assert "pn" not in known


def test_an_mlp_beside_the_attention_reads_the_same_norm() -> None:
    known = roles(
        f"""{PROJECTIONS.strip()}
        SelfAttention: q k v -> c
        Linear: c wo -> o
        Linear: n w -> h
        Activation: h -> a
        Linear: a wd -> d
        Add: o x -> r
        Add: d r -> y"""
    )
    assert (known["h"], known["d"], known["r"], known["y"]) == (
        "mlp_in", "down", "attn_residual", "mlp_residual",
    )  # fmt: skip


def test_an_add_whose_kind_is_not_said_is_a_residual_too_but_not_of_three() -> None:
    start = f"{PROJECTIONS.strip()}\nSelfAttention: q k v -> c\nLinear: c wo -> o\n"
    assert roles(f"{start}Elewise: o x -> r")["r"] == "attn_residual"
    assert "r" not in roles(f"{start}Elewise: o x x2 -> r")
    assert "r" not in roles(f"{start}Mul: o x -> r")


# ---- a mixture of experts ---------------------------------------------------------------------------

ROUTER = "Linear: m wr -> logits\nSoftmax: logits -> p\n"
CHOICE = "Sort: p -> best index\nReduce: best -> s\nDiv: best s -> w\n"


def expert(name: str) -> str:
    """An expert whose tensors end with this name."""
    e = name
    return (
        f"Linear: m wg{e} -> g{e}\nLinear: m wu{e} -> u{e}\nActivation: g{e} -> a{e}\n"
        f"Mul: a{e} u{e} -> p{e}\nLinear: p{e} wd{e} -> d{e}\n"
    )


def of_expert(name: str, prefix: str) -> dict[str, str]:
    tensors = {"g": "gate", "u": "up", "a": "act", "p": "gated", "d": "down"}
    return {f"{letter}{name}": f"{prefix}.{role}" for letter, role in tensors.items()}


def test_experts_are_numbered_in_their_order_and_their_sum_is_the_result() -> None:
    weighed = "Mul: dA w -> sA\nMul: dB w -> sB\nAdd: sA sB -> t\nAdd: t r -> y"
    program = f"{ROUTER}{CHOICE}{expert('A')}{expert('B')}{weighed}"
    assert mlp_roles(program) == {
        "logits": "router", "p": "routing", "best": "chosen", "index": "router_index", "w": "router_weight",
        **of_expert("A", "expert.0"), **of_expert("B", "expert.1"), "t": "down", "y": "mlp_residual",
    }  # fmt: skip


def test_the_sum_of_experts_over_ranks_is_the_result() -> None:
    program = f"{ROUTER}{expert('A')}{expert('B')}Mul: dA p -> sA\nMul: dB p -> sB\nAdd: sA sB -> t0\n"
    known = mlp_roles(f"{program}AllReduce: t0 -> t\nAdd: t r -> y")
    assert known["y"] == "mlp_residual"
    assert known["t"] == "down"


@pytest.mark.parametrize("order", ["SAB", "ASB", "ABS"])
def test_an_expert_that_no_router_weighs_is_shared(order: str) -> None:
    experts = "".join(map(expert, order))
    program = (
        f"{ROUTER}{experts}Mul: dA p -> sA\nMul: dB p -> sB\nAdd: sA sB -> t0\nAdd: t0 dS -> t\nAdd: t r -> y"
    )
    expected = {**of_expert("S", "shared"), **of_expert("A", "expert.0"), **of_expert("B", "expert.1")}
    known = mlp_roles(program)
    assert {name: known[name] for name in expected} == expected
    assert (known["t"], known["y"]) == ("down", "mlp_residual")


def test_where_no_expert_is_weighed_none_is_shared() -> None:
    known = mlp_roles(f"{ROUTER}{expert('A')}{expert('B')}Add: dA dB -> t\nAdd: t r -> y")
    expected = {**of_expert("A", "expert.0"), **of_expert("B", "expert.1")}
    assert {name: known[name] for name in expected} == expected


def test_experts_may_pack_gate_and_up() -> None:
    packed = "".join(
        f"Linear: m w{e} -> gu{e}\nSwiglu: gu{e} -> p{e}\nLinear: p{e} wd{e} -> d{e}\n" for e in "AB"
    )
    known = mlp_roles(f"{ROUTER}{packed}Mul: dA p -> sA\nMul: dB p -> sB\nAdd: sA sB -> t\nAdd: t r -> y")
    for number, e in enumerate("AB"):
        assert (known[f"gu{e}"], known[f"p{e}"], known[f"d{e}"]) == (
            f"expert.{number}.mlp_in", f"expert.{number}.gated", f"expert.{number}.down",
        )  # fmt: skip


def test_a_router_may_choose_among_its_logits() -> None:
    known = mlp_roles("Linear: m wr -> logits\nSort: logits -> best index")
    assert known == {"logits": "router", "best": "chosen", "index": "router_index"}


def test_only_what_comes_from_the_router_is_of_it() -> None:
    known = mlp_roles(
        "Softmax: r -> z\nSort: r -> z1 z2\nDiv: r z1 -> z3\nActivation: r -> z4\nSplit: r -> z5 z6"
    )
    assert known == {}


# ---- before the attention ---------------------------------------------------------------------------


def before(program: str) -> dict[str, str]:
    return roles(f"RmsNorm: x w -> n\n{program.strip()}\nSelfAttention: q k v -> c")


def test_a_packed_projection_is_cut_into_its_parts() -> None:
    expected = {"n": "input_norm", "q": "q", "k": "k", "v": "v", "c": "attn_core"}
    assert before("Linear: n w -> qkv\nSplit: qkv -> q k v") == {**expected, "qkv": "qkv"}
    twice = before("Linear: n w -> qkv\nSplit: qkv -> q kv\nSplit: kv -> k v")
    assert twice == {**expected, "qkv": "qkv", "kv": "kv"}
    beside = before("Linear: n wq -> q\nLinear: n w -> kv\nSplit: kv -> k v")
    assert beside == {**expected, "kv": "kv"}


def test_norms_of_query_and_key_are_told_from_that_of_the_layer() -> None:
    known = before(
        """Linear: n wq -> q0
        RmsNorm: q0 w -> q
        Linear: n wk -> k0
        RmsNorm: k0 w -> k
        Linear: n wv -> v"""
    )
    assert (known["n"], known["q0"], known["q"]) == ("input_norm", "q", "q_norm")
    assert (known["k0"], known["k"], known["v"]) == ("k", "k_norm", "v")


def test_projections_of_low_rank_come_in_two_linears() -> None:
    known = before(
        """Linear: n wqa -> qa
        RmsNorm: qa w -> qn
        Linear: qn wqb -> q
        Linear: n wkva -> kva
        RmsNorm: kva w -> kvn
        Linear: kvn wkvb -> kv
        Split: kv -> k v"""
    )
    assert (known["qa"], known["qn"], known["q"]) == ("q_a", "q_norm", "q")
    assert (known["kva"], known["kvn"], known["kv"]) == ("kv_a", "kv_norm", "kv")
    assert (known["k"], known["v"]) == ("k", "v")


def test_rotated_tensors_are_named_by_the_input_at_their_place() -> None:
    known = before(
        "Linear: n wq -> q0\nLinear: n wk -> k0\nLinear: n wv -> v\nRope: q0 k0 cos sin length -> q k"
    )
    assert (known["q0"], known["k0"], known["q"], known["k"]) == ("q", "k", "q_rope", "k_rope")


def test_what_is_moved_or_biased_before_the_attention_keeps_its_role() -> None:
    known = before(
        """Linear: n wq -> q0
        Add: q0 bias_q -> q
        Linear: n wk -> k0
        Transpose: k0 -> k
        Linear: n wv -> v0
        Mul: v0 s -> v"""
    )
    assert (known["q0"], known["q"]) == ("q unbiased", "q")
    assert (known["k0"], known["k"]) == ("k", "k passing")
    assert (known["v0"], "v" in known) == ("v", False)


def test_a_layer_without_attention_has_no_roles() -> None:
    assert roles("RmsNorm: x w -> n\nLinear: n w -> q") == {}


def test_position_tables_are_inputs_of_the_first_rotation() -> None:
    program = f"""{PROJECTIONS.replace("-> q", "-> q0").replace("-> k", "-> k0")}
        Rope: q0 k0 cos sin length -> q k
        SelfAttention: q k v -> c
        Rope: c c cos2 sin2 length -> z z2""".strip()
    tree = atb_tree([["Layer_0", "Layer", ["x"], ["y"], {}, operators(program.replace("\n\n", "\n"))]])
    exports = atb.layer_exports(tree.root.children[0], graph(tree))
    tables = {
        (export.slot.kind, written(export)): export.role for export in exports if export.form == "table"
    }
    assert tables == {("input", "cos"): "cos", ("input", "sin"): "sin"}


def test_a_composite_shows_what_its_last_operator_wrote() -> None:
    inside = operators(ATTENTION.strip())
    layer = ["Layer_0", "Layer", ["x"], ["m"], {}, [["Attention_0", "Attention", ["x"], ["m"], {}, inside]]]
    tree = atb_tree([layer])
    exports = atb.layer_exports(tree.root.children[0], graph(tree))
    composites = [(export.node.op_type, export.role) for export in exports if not export.node.is_leaf]
    assert composites == [("Attention", "post_norm"), ("Layer", "post_norm")]


# ---- outside of layers ------------------------------------------------------------------------------


def model_roles(program: str, layer: str = PROJECTIONS + "SelfAttention: q k v -> y") -> dict[str, str]:
    """The roles of what a program around `(layer)` writes."""
    first, marker, last = program.partition("(layer)")
    spec = operators(first)
    if marker:
        spec.append(
            ["Layer_0", "Layer", ["x"], ["y"], {}, operators(layer.replace("\n    SelfA", "\nSelfA"))]
        )
        spec += operators(last)
    tree = atb_tree(spec)
    layers = [node for node in tree.root.children if node.op_type == "Layer"]
    return {
        written(export): export.role if export.form == "plain" else f"{export.role} {export.form}"
        for export in atb.model_exports(tree, layers, graph(tree))
    }


def test_a_model_embeds_looks_up_positions_and_ends_in_logits() -> None:
    program = """Gather: embedding_weight ids -> e
        RmsNorm: e w -> x
        Gather: cos_table positions -> cos
        Gather: sin_table positions -> sin
        Transpose: e -> et
        (layer)
        RmsNorm: y w -> f
        Gather: f last -> one
        Linear: one w -> logits
        AllGather: logits -> all"""
    assert model_roles(program) == {
        "e": "embed", "x": "embed_norm", "cos": "cos table", "sin": "sin table", "et": "embed passing",
        "f": "final_norm", "one": "final_norm passing", "logits": "lm_head", "all": "lm_head passing",
    }  # fmt: skip


def test_the_embedding_is_told_by_the_name_of_its_weight_or_of_what_it_is_in() -> None:
    def looked_up(op_type: str, table: str) -> str:
        inside = operators(f"Gather: {table} ids -> e")
        tree = atb_tree([["E_0", op_type, [table], ["e"], {}, inside]])
        exports = atb.model_exports(tree, [], graph(tree))
        return exports[0].role if exports else ""

    layer_after = """Gather: WEIGHT_0 ids -> e
        (layer)"""
    assert model_roles(layer_after) == {"e": "embed"}
    assert model_roles(layer_after.replace("WEIGHT_0", "table")) == {"e": "cos table"}
    assert looked_up("WordEmbedding", "table") == "", "without layers nothing is before them"


@pytest.mark.parametrize(
    ("op_type", "role"),
    [("WordEmbedding", "embed"), ("PositionalEmbedding", "cos"), ("Gathering", "cos")],
)
def test_an_embedding_inside_of_a_composite_is_told_by_it(op_type: str, role: str) -> None:
    spec = [["E_0", op_type, ["table", "ids"], ["e"], {}, operators("Gather: table ids -> e")]]
    spec.append(["Layer_0", "Layer", ["x"], ["y"], {}, operators("RmsNorm: x w -> y")])
    tree = atb_tree(spec)
    exports = atb.model_exports(tree, tree.root.children[1:], graph(tree))
    assert [export.role for export in exports] == [role, role], "of the operator, and of what it is in"


def test_a_linear_before_the_layers_has_no_role() -> None:
    assert model_roles("Linear: ids w -> e\n(layer)\nAdd: y y2 -> z") == {}


# Forms of an ATB layer's tensors: slots of a cache, pieces of heads, biases and sums that come later.


def operator(op_type: str, index: int, inputs: str, outputs: str, **param: object) -> list[object]:
    return [f"{op_type}Operation_0_{index}", f"{op_type}Operation", inputs.split(), outputs.split(), param]


def layer_roles(*operators: list[object]) -> dict[tuple[str, int | str], tuple[str, str, list[str]]]:
    """Roles of an ATB layer: {(type and number, output): (role, form, slots beside)}."""
    tree = atb_tree([["Layer_0", "Layer", ["x"], ["out"], {}, list(operators)]])
    graph = graph_of(tree, TABLES, lambda leaf, operand: "bias" in operand.name)
    layer = tree.root.children[0]
    return {
        (e.node.path.rpartition("/")[2], e.slot.index[0]): (
            e.role,
            e.form,
            [f"{b.node.path.rpartition('/')[2]} {b.slot}" for b in e.companions],
        )
        for e in atb.layer_exports(layer, graph)
        if e.node.is_leaf and e.slot.kind == "output"
    }


FORMS_OF_PROJECTIONS = [
    operator("RmsNorm", 0, "x weight_0", "a"),
    *[operator("Linear", n + 1, f"a weight_{n + 1}", role) for n, role in enumerate("qkv")],
]


def test_a_paged_cache_holds_what_was_written_at_its_slots() -> None:
    found = layer_roles(
        *FORMS_OF_PROJECTIONS,
        operator("Rope", 4, "q k cos sin length", "qr kr"),
        operator("ReshapeAndCache", 5, "kr v kcache vcache slots", "kcache vcache"),
        operator("PagedAttention", 6, "qr kcache vcache table length", "c"),
    )
    assert found["5_ReshapeAndCacheOperation", 0] == (
        "k_rope",
        "paged",
        ["5_ReshapeAndCacheOperation input[4]"],
    )
    assert found["5_ReshapeAndCacheOperation", 1] == ("v", "paged", ["5_ReshapeAndCacheOperation input[4]"])
    assert found["6_PagedAttentionOperation", 0][0] == "attn_core"


def test_a_cache_writer_that_does_not_say_where_is_not_compared() -> None:
    found = layer_roles(
        *FORMS_OF_PROJECTIONS,
        operator("KvCache", 4, "k v kcache vcache", "kcache vcache"),
        operator("SelfAttention", 5, "q k v", "c"),
    )
    assert not [key for key in found if "KvCache" in key[0]]


def test_a_rotation_of_a_part_of_the_head() -> None:
    found = layer_roles(
        *FORMS_OF_PROJECTIONS,
        operator("Split", 4, "q", "q0 q1"),
        operator("Split", 5, "k", "k0 k1"),
        operator("Rope", 6, "q0 k0 cos sin length", "qt kt"),
        operator("Concat", 7, "qt q1", "qr"),
        operator("Concat", 8, "kt k1", "kr"),
        operator("SelfAttention", 9, "qr kr v", "c"),
    )
    pieces = ["5_SplitOperation output[0]", "5_SplitOperation output[1]"]
    assert found["5_SplitOperation", 0] == ("k", "head_part", pieces)
    assert found["5_SplitOperation", 1] == ("k", "head_part", pieces)
    assert found["6_RopeOperation", 1] == ("k_rope", "head_part", pieces)
    assert found["8_ConcatOperation", 0] == ("k_rope", "plain", [])
    assert found["7_ConcatOperation", 0] == ("q_rope", "plain", [])


def test_a_rotation_that_writes_more_than_it_reads() -> None:
    found = layer_roles(
        *FORMS_OF_PROJECTIONS,
        operator("Split", 4, "q", "q0 q1"),
        operator("Rope", 6, "q0", "qt kt"),
        operator("SelfAttention", 9, "qt kt v", "c"),
    )
    assert found["5_RopeOperation", 1] == ("k_rope", "plain", [])


def test_operators_that_write_nothing_have_no_roles() -> None:
    """A broken topology; an attention and a product without output say nothing of what follows them."""
    found = layer_roles(
        *FORMS_OF_PROJECTIONS,
        operator("SelfAttention", 4, "q k v", ""),
        operator("Linear", 5, "x weight_5", ""),
        operator("RmsNorm", 6, "x weight_6", "n"),
        operator("Linear", 7, "n weight_7", ""),
        operator("Linear", 8, "n weight_8", "g"),
        operator("Transpose", 9, "g", ""),
    )
    assert found["1_LinearOperation", 0][0] == "q"


def test_a_product_lacks_the_bias_that_is_added_after_the_sum_over_ranks() -> None:
    found = layer_roles(
        *FORMS_OF_PROJECTIONS,
        operator("SelfAttention", 4, "q k v", "c"),
        operator("Linear", 5, "c weight_5", "product"),
        operator("AllReduce", 6, "product", "sum"),
        operator("Elewise", 7, "sum bias_7", "o", elewiseType=8),
        operator("Elewise", 8, "o x", "r", elewiseType=8),
    )
    bias = ["7_ElewiseOperation input[1]"]
    assert found["5_LinearOperation", 0] == ("o", "partial_unbiased", bias)
    assert found["6_AllReduceOperation", 0] == ("o", "unbiased", bias)
    assert found["7_ElewiseOperation", 0] == ("o", "plain", [])
    assert found["8_ElewiseOperation", 0][0] == "attn_residual"


def mixture(*routing: list[object]) -> dict[tuple[str, int | str], tuple[str, str, list[str]]]:
    return layer_roles(
        *FORMS_OF_PROJECTIONS,
        operator("SelfAttention", 4, "q k v", "c"),
        operator("Linear", 5, "c weight_5", "o"),
        operator("Elewise", 6, "o x", "r", elewiseType=8),
        operator("RmsNorm", 7, "r weight_7", "n"),
        operator("Linear", 8, "n weight_8", "logits"),
        operator("Softmax", 9, "logits", "p"),
        *routing,
    )


def test_a_router_chooses_and_divides_by_the_sum() -> None:
    found = mixture(
        operator("Sort", 10, "p", "best places"),
        operator("Reduce", 11, "best", "sum"),
        operator("Elewise", 12, "best sum", "w", elewiseType=10),
    )
    assert found["8_LinearOperation", 0][0] == "router"
    assert found["10_SortOperation", 0][0] == "chosen"
    assert found["10_SortOperation", 1][0] == "router_index"
    assert found["12_ElewiseOperation", 0][0] == "router_weight"


def test_a_product_with_one_is_a_copy() -> None:
    one, half = ({"elewiseType": 2, "mulsParam": {"varAttr": factor}} for factor in (1.0, 0.5))
    assert TABLES.kind_of("ElewiseOperation", one) == "passing"
    assert TABLES.kind_of("ElewiseOperation", half) == "scale"
    assert TABLES.kind_of("ElewiseOperation", {"elewiseType": 2}) == "scale"
