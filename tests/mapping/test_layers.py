"""Repeated layers are found for any number, depth and mixture of types."""

from __future__ import annotations

from acc_pytest.mapping.layers import align_layers, find_layers
from acc_pytest.mapping.tables import load_tables
from acc_pytest.topology.tree import Node, Tree

from .trees import atb_tree, torch_node

TABLES = load_tables()


def torch_model(count: int, experts: int = 0, tower: str = "model") -> Node:
    layers = []
    for number in range(count):
        path = f"root.{tower}.layers.{number}"
        children = [torch_node(f"{path}.mlp", "MLP")]
        if experts:
            each = [
                torch_node(f"{path}.experts.{e}", "Expert", torch_node(f"{path}.experts.{e}.w1", "Linear"))
                for e in range(experts)
            ]
            children.append(torch_node(f"{path}.experts", "ModuleList", *each))
        layers.append(torch_node(path, "Layer", *children))
    return torch_node(f"root.{tower}", "Model", torch_node(f"root.{tower}.layers", "ModuleList", *layers))


def atb_layers(*types: str) -> Tree:
    return atb_tree(
        [
            [
                f"{t}_{n}",
                t,
                ["x"],
                ["x"],
                {},
                [[f"SelfAttentionOperation_{n}_0", "SelfAttentionOperation", ["x"], ["x"]]],
            ]
            for n, t in enumerate(types)
        ]
    )


def test_eight_torch_layers_and_one_alone() -> None:
    for count in (1, 8):
        tree = Tree(torch_node("root", "Top", torch_model(count)), "m")
        assert [layer.label for layer in find_layers(tree, TABLES)] == [f"layers.{n}" for n in range(count)]


def test_a_list_of_experts_is_no_list_of_layers() -> None:
    tree = Tree(torch_node("root", "Top", torch_model(3, experts=4)), "m")
    assert len(find_layers(tree, TABLES)) == 3


def test_dense_and_moe_layers_count_in_one_row() -> None:
    layers = find_layers(atb_layers("Dense_layer", "Dense_layer", "Moe_layer", "Moe_layer"), TABLES)
    assert [layer.node.op_type for layer in layers] == [
        "Dense_layer",
        "Dense_layer",
        "Moe_layer",
        "Moe_layer",
    ]


def test_without_attention_the_most_repeated_composite_is_the_layer() -> None:
    spec = [
        [f"Block_{n}", "Block", ["x"], ["x"], {}, [["Op", "LinearOperation", ["x"], ["x"]]]] for n in range(3)
    ]
    assert len(find_layers(atb_tree([["Head_9", "Head", ["x"], ["y"]], *spec]), TABLES)) == 3
    assert find_layers(atb_tree([["Head_9", "Head", ["x"], ["y"]]]), TABLES) == []


def test_two_towers_keep_their_names_and_align_by_length() -> None:
    tree = Tree(torch_node("root", "Top", torch_model(2, tower="visual"), torch_model(3, tower="model")), "m")
    golden = find_layers(tree, TABLES)
    assert [layer.label for layer in golden][:3] == ["visual.layers.0", "visual.layers.1", "model.layers.0"]
    mine = find_layers(atb_layers("L", "L", "L"), TABLES)
    pairs, note = align_layers(golden, mine)
    assert (pairs[0][0].label, pairs[0][1].label) == ("model.layers.0", "layers.0")
    assert "only the 3 of `model`" in note
    swapped, _ = align_layers(mine, golden)
    assert swapped[0][1].label == "model.layers.0"


def test_unequal_numbers_map_the_common_ones_and_say_so() -> None:
    golden, mine = find_layers(atb_layers(*"LLL"), TABLES), find_layers(atb_layers(*"LL"), TABLES)
    pairs, note = align_layers(golden, mine)
    assert len(pairs) == 2
    assert note == "layers: golden has 3, mine 2; the first 2 are mapped"
