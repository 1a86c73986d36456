"""Forms of an ATB layer's tensors: slots of a cache, pieces of heads, biases and sums that come later."""

from __future__ import annotations

from acc_pytest.mapping.roles import atb
from acc_pytest.mapping.roles.atb_graph import graph_of
from acc_pytest.mapping.tables import load_tables

from ..trees import atb_tree

TABLES = load_tables()


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


PROJECTIONS = [
    operator("RmsNorm", 0, "x weight_0", "a"),
    *[operator("Linear", n + 1, f"a weight_{n + 1}", role) for n, role in enumerate("qkv")],
]


def test_a_paged_cache_holds_what_was_written_at_its_slots() -> None:
    found = layer_roles(
        *PROJECTIONS,
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
        *PROJECTIONS,
        operator("KvCache", 4, "k v kcache vcache", "kcache vcache"),
        operator("SelfAttention", 5, "q k v", "c"),
    )
    assert not [key for key in found if "KvCache" in key[0]]


def test_a_rotation_of_a_part_of_the_head() -> None:
    found = layer_roles(
        *PROJECTIONS,
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
        *PROJECTIONS,
        operator("Split", 4, "q", "q0 q1"),
        operator("Rope", 6, "q0", "qt kt"),
        operator("SelfAttention", 9, "qt kt v", "c"),
    )
    assert found["5_RopeOperation", 1] == ("k_rope", "plain", [])


def test_operators_that_write_nothing_have_no_roles() -> None:
    """A broken topology; an attention and a product without output say nothing of what follows them."""
    found = layer_roles(
        *PROJECTIONS,
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
        *PROJECTIONS,
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
        *PROJECTIONS,
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
