"""torch_modules: model_tree.json in execution order, containers left out, functions added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.errors import FormatError
from acc_pytest.topology.torch_modules import MAX_DEPTH, execution_order, read_tree, tree_of_folders


def module(name: str, kind: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "children": list(children)}


def saved(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "model_tree.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def llama() -> dict[str, Any]:
    """As the constructor registers it: attention and MLP before both norms."""
    at = "root.model.layers.0"
    attention = module(
        f"{at}.self_attn", "Attention", *(module(f"{at}.self_attn.{n}", "Linear") for n in "ovkq")
    )
    layer = module(
        at,
        "Layer",
        attention,
        *(module(f"{at}.{n}", "X") for n in ("mlp", "input_layernorm", "post_attention_layernorm")),
    )
    layers = module("root.model.layers", "ModuleList", layer, module("root.model.layers.1", "Layer"))
    inner = module(
        "root.model", "Model", layers, module("root.model.norm", "N"), module("root.model.embed_tokens", "E")
    )
    return module("root", "Llama", module("root.lm_head", "Linear"), inner)


def test_siblings_run_in_the_order_of_the_table_not_of_registration(tmp_path: Path) -> None:
    tree = read_tree(saved(tmp_path, llama()))
    assert [node.path for node in tree.root.children] == ["root.model", "root.lm_head"]
    assert [node.path for node in tree.by_path["root.model"].children] == [
        "root.model.embed_tokens",
        "root.model.layers.0",
        "root.model.layers.1",
        "root.model.norm",
    ]
    assert [node.path.rpartition(".")[2] for node in tree.by_path["root.model.layers.0"].children] == [
        "input_layernorm",
        "self_attn",
        "post_attention_layernorm",
        "mlp",
    ]
    assert tree.model == tree.root.op_type == "Llama"
    assert "root.model.layers" not in tree.by_path


@pytest.mark.parametrize(
    ("registered", "run"),
    [
        ("lm_head model", "model lm_head"),
        ("o_proj rotary_emb v_proj k_proj q_proj q_norm", "q_proj k_proj v_proj q_norm rotary_emb o_proj"),
        ("query_key_value dense core_attention", "query_key_value core_attention dense"),
        ("down_proj act_fn up_proj gate_proj", "gate_proj up_proj act_fn down_proj"),
        ("shared_experts experts gate", "gate experts shared_experts"),
        ("dense_h_to_4h dense_4h_to_h gelu_impl", "dense_h_to_4h gelu_impl dense_4h_to_h"),
        ("kv_b_proj o_proj q_a_proj q_b_proj q_a_layernorm kv_a_proj_with_mqa kv_a_layernorm",
         "q_a_proj q_a_layernorm q_b_proj kv_a_proj_with_mqa kv_a_layernorm kv_b_proj o_proj"),
        ("first second third", "first second third"),
        ("self_attn dropout mlp input_layernorm", "input_layernorm self_attn dropout mlp"),
        ("10 9 2", "2 9 10"),
        ("norm layers.10 layers.9 embed_tokens", "embed_tokens layers.9 layers.10 norm"),
        ("ln_f h.0 wte", "wte h.0 ln_f"),
    ],
)  # fmt: skip
def test_the_table_knows_common_names_and_leaves_the_rest_where_it_was(registered: str, run: str) -> None:
    names = registered.split()
    assert [names[index] for index in execution_order(names)] == run.split()


def test_folders_add_functions_below_their_caller_and_modules_an_aborted_tree_lacks(tmp_path: Path) -> None:
    folders = ["root.ln", "root.ln.rsqrt", "root.ln.rsqrt.1", "root.deep.er", "root.deep.er.still", "weights"]
    tree = read_tree(saved(tmp_path, module("root", "M", module("root.ln", "Norm"))), folders)
    assert [(node.path, node.op_type) for node in tree.walk()][1:] == [
        ("root.ln", "Norm"),
        ("root.ln.rsqrt", "rsqrt"),
        ("root.ln.rsqrt.1", "rsqrt"),
        ("root.deep.er", "Module"),
        ("root.deep.er.still", "still"),
    ]


def test_another_call_of_a_module_stands_beside_it_and_has_its_type(tmp_path: Path) -> None:
    content = module("root", "M", module("root.ln", "Norm"), module("root.head", "Linear"))
    tree = read_tree(saved(tmp_path, content), ["root.ln", "root.ln.call1", "root.call1", "root.ln.call"])
    assert [(node.path, node.op_type) for node in tree.walk()] == [
        ("root", "M"),
        ("root.ln", "Norm"),
        ("root.ln.call", "call"),
        ("root.head", "Linear"),
        ("root.call1", "call1"),
        ("root.ln.call1", "Norm"),
    ]


def test_what_ran_is_in_its_order_and_the_rest_stays_behind_its_neighbour(tmp_path: Path) -> None:
    layers = module(
        "root.layers",
        "ModuleList",
        *(module(f"root.layers.{n}", "Layer", module(f"root.layers.{n}.x", "X")) for n in range(3)),
    )
    content = module(
        "root",
        "M",
        layers,
        module("root.lm_head", "Head"),
        module("root.spare", "Spare"),
        module("root.norm", "Norm"),
    )
    ran = {
        "root.norm": "Norm",
        "root.layers.2.x": "X",
        "root.layers.0": "Layer",
        "root.mul": "mul",
        "root.lm_head": "Head",
    }
    tree = read_tree(saved(tmp_path, content), ["root.mul", "root.norm"], ran)
    assert [node.path for node in tree.root.children] == [
        "root.norm",
        "root.layers.2",
        "root.layers.0",
        "root.layers.1",
        "root.mul",
        "root.lm_head",
        "root.spare",
    ]
    orders = [tree.by_path[path].order for path in ran]
    assert orders == sorted(orders)


def test_the_type_of_a_module_that_only_its_folder_shows_is_the_one_that_ran(tmp_path: Path) -> None:
    path = saved(tmp_path, module("root", "M"))
    tree = read_tree(path, ["root.a.b"], {"root.a.b": "Linear", "root": "M"})
    assert tree.by_path["root.a.b"].op_type == "Linear"


def test_folders_alone_give_a_tree_in_execution_order() -> None:
    folders = ["root.lm_head", "root", "root.h.10", "root.h.9", "root.h.9.mlp", "root.wte"]
    assert [node.path for node in tree_of_folders(folders).walk()] == [
        "root",
        "root.wte",
        "root.h.9",
        "root.h.9.mlp",
        "root.h.10",
        "root.lm_head",
    ]


def nested(depth: int) -> dict[str, Any]:
    content = module("root.x", "X")
    for _ in range(depth):
        content = module("root.x", "X", content)
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"name": "root", "ty', "not a readable module tree"),
        ("[" * 100_000, "not a readable module tree"),
        ([], "a module must be an object"),
        ({"type": "X"}, "module name None"),
        ({"name": "root/../../etc", "type": "X"}, "cannot be the name of a folder"),
        ({"name": "..", "type": "X"}, "cannot be the name of a folder"),
        ({"name": "\ud800", "type": "X"}, "cannot be the name of a folder"),
        ({"name": "x" * 256, "type": "X"}, "cannot be the name of a folder"),
        ('{"name": "root", "type": "X", "seen": ' + "9" * 5000 + "}", "a whole number of 5000 digits"),
        ({"name": "root", "type": 3}, r"`type` of module root must be a string"),
        ({"name": "root", "type": "X", "children": {}}, "`children` of module root must be a list"),
        ({"name": "root", "type": "X", "children": [1]}, "a module must be an object"),
        (nested(MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} deep"),
    ],
)
def test_broken_trees_name_the_file(tmp_path: Path, content: Any, message: str) -> None:
    path = saved(tmp_path, content)
    with pytest.raises(FormatError, match=message) as error:
        read_tree(path)
    assert str(path) in str(error.value)


def test_a_tree_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        read_tree(tmp_path)
