"""tree: completion order, depth and leaves."""

from __future__ import annotations

from acc_pytest.topology.tree import Node, Tree


def test_a_node_comes_after_everything_inside_it() -> None:
    root = Node("root", "M", "")
    layer = root.add(Node("layer", "L", "layer"))
    linear = layer.add(Node("linear", "Linear", "layer/linear"))
    head = root.add(Node("head", "H", "head"))
    tree = Tree(root, "m")
    assert [node.name for node in sorted(tree.walk(), key=lambda node: node.order)] == [
        "linear",
        "layer",
        "head",
        "root",
    ]
    assert [node.depth for node in (root, layer, linear, head)] == [0, 1, 2, 1]
    assert [node.is_leaf for node in (layer, linear)] == [False, True]
    assert tree.by_path["layer/linear"] is linear
