"""Which files of a layer are aliases."""

from __future__ import annotations

import json

from acc_pytest.lab.atb.graph import Call, graph, layer_json, operation
from acc_pytest.lab.atb.probe.e4 import alias_table

ADD = operation("ElewiseOperation", {"elewiseType": 8}, ("x", "y"), ("z",))


def test_a_name_seen_before_is_an_alias_of_its_first_file() -> None:
    inner = graph("Inner", ("a", "b"), ("c",), Call(ADD, ("a", "b"), ("c",)))
    outer = graph("Layer", ("p", "q"), ("s",), Call(inner, ("p", "q"), ("r",)), Call(ADD, ("r", "p"), ("s",)))
    assert alias_table(layer_json(outer, "Layer_3")) == {
        "3_0_intensor0": "3_intensor0.bin",
        "3_0_intensor1": "3_intensor1.bin",
        "3_0_0_intensor0": "3_intensor0.bin",
        "3_0_0_intensor1": "3_intensor1.bin",
        "3_0_outtensor0": "3_0_0_outtensor0.bin",
        "3_1_intensor0": "3_0_0_outtensor0.bin",
        "3_1_intensor1": "3_intensor0.bin",
        "3_outtensor0": "3_1_outtensor0.bin",
    }


def test_a_leaf_that_writes_onto_its_input_makes_a_new_file() -> None:
    block = graph("Layer", ("x", "y"), ("x",), Call(ADD, ("x", "y"), ("x",)), Call(ADD, ("x", "y"), ("x",)))
    table = alias_table(
        json.dumps(
            {
                "opName": "Layer_0",
                "opType": "Layer",
                "inTensors": ["x", "y"],
                "outTensors": ["x"],
                "nodes": [
                    {"opName": f"A_0_{i}", "opType": "A", "inTensors": ["x", "y"], "outTensors": ["x"]}
                    for i in range(len(block.calls))
                ],
            }
        )
    )
    assert table["0_0_intensor0"] == "0_intensor0.bin"
    assert "0_0_outtensor0" not in table
    assert table["0_1_intensor0"] == "0_0_outtensor0.bin"
    assert table["0_outtensor0"] == "0_1_outtensor0.bin"


def test_a_layer_of_more_than_a_thousand_nodes_has_no_aliases() -> None:
    def layer(nodes: int) -> str:
        child = {"opName": "A", "opType": "A", "inTensors": ["x"], "outTensors": ["x"]}
        root = {"opName": "L_0", "opType": "L", "inTensors": ["x"], "nodes": [child] * nodes}
        return json.dumps(root)

    assert alias_table(layer(999))
    assert alias_table(layer(1000)) == {}
