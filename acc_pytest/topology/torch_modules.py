"""Reads `model_tree.json` of torch dumps: the modules of the dumped model, as `{name, type, children}`.

A module's dotted name is also the name of its folder in every token directory. Containers that never
run (`ModuleList`, `ModuleDict`) are left out and their children take their place. Calls of torch
functions (API mode) appear only as folders, `{module}.{function}[.{n}]`, and become children of the
module that made them; so do modules that a tree written by an aborted forward pass does not mention.
A second call of a module in one step is `{module}.call1` and stands beside the module. Where the dump says in
which order things ran, that is the order; else a table of common names decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..tensors.location import read_json
from .tree import Node, Tree

MAX_DEPTH = 200
"""Deepest nesting of modules accepted; real models stay below 20."""

_LONGEST_NAME = 255
"""Bytes of a name in the file systems of Linux."""

_CALL = re.compile(r"^(.+)\.([^.\d][^.]*)(?:\.\d+)?$")
_AGAIN = re.compile(r"^(.+)\.call\d+_*$")
_CONTAINERS = frozenset({"ModuleList", "ModuleDict"})
UNKNOWN_TYPE = "Module"
"""Type of a module known only by its folder."""


def read_tree(path: Path, folders: Iterable[str] = (), ran: Mapping[str, str] | None = None) -> Tree:
    """Read `model_tree.json` and add the nodes that only `folders` (names in token directories) show.

    `ran` names what ran, in order of completion, with its type; empty or `None` where the dump does not say.
    Raises `FormatError` naming the file when it is cut or not of this format.
    """
    raw = read_json(path, "module tree", "; was the dump stopped while writing it?")
    root = _node(raw, path, 0, in_order=bool(ran))
    paths: set[str] = set()
    for node in root.walk():
        if node.path in paths:
            raise FormatError(
                f"{path}: two modules are called {node.path}; rename one of them, "
                "because each has its own folder"
            )
        paths.add(node.path)
    tree = _with_folders(root, folders, ran or {}, calls=True)
    if not ran:
        return tree
    _as_it_ran(root, {name: number for number, name in enumerate(ran)})
    return Tree(root, root.op_type)


def tree_of_folders(folders: Iterable[str]) -> Tree:
    """The tree that folder names alone suggest; types are unknown. For dumps older than `model_tree.json`."""
    root = Node(name="root", op_type=UNKNOWN_TYPE, path="root")
    _with_folders(root, folders, {}, calls=False)
    _in_execution_order(root)
    return Tree(root, root.op_type)


def _node(raw: Any, path: Path, depth: int, *, in_order: bool = False) -> Node:
    if not isinstance(raw, dict):
        raise FormatError(f"{path}: a module must be an object with name, type and children")
    name, kind, children = raw.get("name"), raw.get("type"), raw.get("children", [])
    if not isinstance(name, str) or not _is_folder(name):
        raise FormatError(f"{path}: module name {name!r:.100} cannot be the name of a folder")
    if not isinstance(kind, str):
        raise FormatError(f"{path}: `type` of module {name:.200} must be a string")
    if not isinstance(children, list):
        raise FormatError(f"{path}: `children` of module {name:.200} must be a list")
    if depth > MAX_DEPTH:
        raise FormatError(f"{path}: modules are nested more than {MAX_DEPTH} deep")
    node = Node(name=name, op_type=kind, path=name)
    parsed = [_node(child, path, depth + 1, in_order=in_order) for child in children]
    names = [child.name.rpartition(".")[2] for child in parsed]
    for index in range(len(names)) if in_order else execution_order(names):
        child = parsed[index]
        if child.op_type in _CONTAINERS:
            for inner in child.children:
                node.add(inner)
        else:
            node.add(child)
    return node


def _is_folder(name: str) -> bool:
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        return False
    return 0 < length <= _LONGEST_NAME and name not in (".", "..") and not set(name) & set("/\\\0")


def _with_folders(root: Node, folders: Iterable[str], ran: Mapping[str, str], *, calls: bool) -> Tree:
    """Hang every folder that is no node yet below the nearest module its name starts with.

    With `calls`, what a single name is left of (`softmax`, `matmul.1`) is a call of that function, and
    `call1` another call of the module itself.
    """
    nodes = {node.path: node for node in root.walk()}
    for folder in sorted(set(folders) - nodes.keys(), key=_natural):
        if not folder.startswith(root.name + "."):
            continue
        again = _AGAIN.match(folder) if calls else None
        module = nodes.get(again.group(1)) if again else None
        if module is not None and module.parent is not None:
            nodes[folder] = module.parent.add(Node(name=folder, op_type=module.op_type, path=folder))
            continue
        call = _CALL.match(folder) if calls else None
        owner = call.group(1) if call and call.group(1) in nodes else folder
        kind = ran.get(folder) or (call.group(2) if call and owner != folder else UNKNOWN_TYPE)
        while owner not in nodes:
            owner = owner.rpartition(".")[0]
        nodes[folder] = nodes[owner].add(Node(name=folder, op_type=kind, path=folder))
    return Tree(root, root.op_type)


def _as_it_ran(node: Node, places: Mapping[str, int]) -> int | None:
    """Sort everything below `node` by completion; what never ran stays behind the sibling before it.

    Returns the place of `node` itself, or of the first thing that ran in it.
    """
    keyed: list[tuple[int, int]] = []
    first: int | None = None
    last = -1
    for number, child in enumerate(node.children):
        place = _as_it_ran(child, places)
        if place is not None:
            first = place if first is None else min(first, place)
            last = place
        keyed.append((last, number))
    node.children = [node.children[number] for _, number in sorted(keyed)]
    return places.get(node.path, first)


def _in_execution_order(node: Node) -> None:
    relative = [child.name[len(node.name) + 1 :] for child in node.children]
    node.children = [node.children[index] for index in execution_order(relative)]
    for child in node.children:
        _in_execution_order(child)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort key that orders numbers inside dotted names by value, parents before children."""
    return [(not text.isdecimal(), int(text) if text.isdecimal() else 0, text) for text in name.split(".")]


_PLACES: tuple[str, ...] = (
    "embed_tokens wte word_embeddings word_embedding embedding embeddings tok_embeddings embed_in embed",
    "wpe position_embeddings embed_positions pos_emb token_type_embeddings patch_embed",
    "word_embeddings_layernorm embed_layer_norm embeddings_layernorm",
    "input_layernorm ln_1 ln1 norm1 attention_norm attn_norm pre_attention_layernorm layernorm_before",
    "q_proj wq to_q query q_a_proj qkv qkv_proj query_key_value w_pack c_attn wqkv in_proj qkv_layer",
    "q_a_layernorm",
    "q_b_proj",
    "k_proj wk to_k key kv_a_proj_with_mqa",
    "kv_a_layernorm",
    "v_proj wv to_v value kv_b_proj",
    "q_norm q_layernorm query_layernorm",
    "k_norm k_layernorm key_layernorm",
    "rotary_emb rotary_pos_emb rope rotary rotary_embedding",
    "core_attention core_attn inner_attention inner_attn",
    "attention_dropout attn_dropout attn_drop",
    "self_attn self_attention attn attention linear_attn",
    "post_attention_layernorm ln_2 ln2 norm2 ffn_norm post_attention_norm layernorm_after pre_mlp_layernorm",
    "pre_feedforward_layernorm",
    "gate router",
    "gate_proj gate_up_proj gate_and_up_proj w1 dense_h_to_4h c_fc fc1 fc_in linear_fc1 up_gate_proj",
    "up_proj w3",
    "act act_fn activation activation_fn activation_func gelu gelu_impl silu",
    "w2",
    "experts",
    "shared_expert shared_experts",
    "shared_expert_gate",
    "model transformer backbone language_model layers h blocks block layer encoder decoder",
    "mlp feed_forward feedforward ffn moe block_sparse_moe",
    "down_proj dense_4h_to_h fc2 fc_out linear_fc2",
    "o_proj wo out_proj dense to_out c_proj",
    "post_feedforward_layernorm post_mlp_layernorm",
    "norm final_layernorm ln_f norm_f final_norm final_layer_norm",
    "lm_head output_layer embed_out output score classifier",
)

_PLACE = {name: place for place, names in enumerate(_PLACES) for name in names.split()}


def execution_order(names: Sequence[str]) -> list[int]:
    """Indices of `names` (relative to their parent, in registration order) in the order they run.

    `layers.3` is the fourth item of the list `layers`; items sort by value. A name the table does not
    know stays behind the sibling registered before it.
    """
    keys: list[tuple[int, int]] = []
    place = -1
    for name in names:
        first, *numbers = name.split(".")
        place = _PLACE.get(first.lower(), place)
        number = numbers[0] if numbers else first
        # a number of more digits than an index has is a name
        keys.append((place, int(number) if number.isdecimal() and len(number) < 10 else -1))
    return sorted(range(len(names)), key=keys.__getitem__)


# Names of functions of torch in the names of nodes, however the program called them.


_OPERATORS = {
    "truediv": "div",
    "itruediv": "div_",
    "rtruediv": "div",
    "rdiv": "div",
    "idiv": "div_",
    "setitem": "setitem_",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
} | {
    form.format(name): base.format(name)
    for name in ("add", "sub", "mul", "pow", "matmul", "mod", "floordiv")
    for form, base in (("r{}", "{}"), ("i{}", "{}_"))
}
"""Names of operators without their underscores, as the functions that do the same are called."""


def function_name(name: str) -> str:
    """`__add__` is `add`, as `torch.add` is; an overload of an operator of a library, `rms_norm.default`, is
    `rms_norm`."""
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        return _OPERATORS.get(name, name)
    return name.partition(".")[0]
