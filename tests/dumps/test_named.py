"""Tensors by names: the containers that people save, the order of names, and what names say."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import Slot
from acc_pytest.dumps.named import NamedDump, order_of, scope_of

Tensors = dict[str, torch.Tensor]
IN_ORDER = [
    "model.embed_tokens",
    *(
        f"model.layers.{layer}{below}"
        for layer in (0, 1, 2, 10)
        for below in (
            ".input_layernorm",
            ".self_attn.q_proj",
            ".self_attn.q_norm",
            ".self_attn.attn",
            ".self_attn.o_proj",
            ".self_attn",
            ".post_attention_layernorm",
            ".mlp.up_proj",
            ".mlp.act_fn",
            ".mlp.down_proj",
            ".mlp",
            "",
        )
    ),
    "model.norm",
    "lm_head",
]


@pytest.mark.parametrize(
    "names",
    [
        [name for name in IN_ORDER if not name.endswith((".mlp", "self_attn")) and not name[-1].isdigit()],
        [
            "token_embd",
            "blk.0.attn_norm",
            "blk.0.attn_q",
            "blk.0.attn_output",
            "blk.0.ffn_norm",
            "blk.0.ffn_up",
            "blk.0.ffn_down",
            "blk.1.attn_norm",
            "output_norm",
            "output",
        ],
        [
            "transformer.wte",
            "transformer.h.0.ln_1",
            "transformer.h.0.attn.c_attn",
            "transformer.h.0.attn.c_proj",
            "transformer.h.0.ln_2",
            "transformer.h.0.mlp.c_fc",
            "transformer.h.0.mlp.act",
            "transformer.h.0.mlp.c_proj",
            "transformer.h.2.ln_1",
            "transformer.h.10.ln_1",
            "transformer.ln_f",
            "lm_head",
        ],
    ],
    ids=["huggingface", "llama.cpp", "gpt2"],
)
def test_names_come_in_the_order_of_a_network(names: list[str]) -> None:
    shuffled = random.Random(0).sample(names, len(names))
    assert sorted(shuffled, key=order_of) == names


def write_npy(tensors: Tensors, home: Path) -> Path:
    for name, tensor in tensors.items():
        np.save(home / f"{name}.npy", tensor.numpy())
    return home


def write_tree(tensors: Tensors, home: Path) -> Path:
    for name, tensor in tensors.items():
        path = home.joinpath(*name.split(".")).with_suffix(".pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(tensor, path)
    return home


def write_debug(tensors: Tensors, home: Path) -> Path:
    for rank in (0, 1):
        (home / "tllm_debug" / "PP_0" / f"TP_{rank}").mkdir(parents=True)
        write_npy(tensors, home / "tllm_debug" / "PP_0" / f"TP_{rank}")
    return home


def write_pt(tensors: Tensors, home: Path) -> Path:
    torch.save(tensors, home / "x.pt")
    return home / "x.pt"


def write_nested(tensors: Tensors, home: Path) -> Path:
    torch.save({"run": tensors}, home / "x.pt")
    return home


def write_npz(tensors: Tensors, home: Path) -> Path:
    arrays: dict[str, Any] = {name.replace(".", "/"): tensor.numpy() for name, tensor in tensors.items()}
    np.savez(home / "x.npz", **arrays)
    return home / "x.npz"


def write_safetensors(tensors: Tensors, home: Path) -> Path:
    pytest.importorskip("safetensors.torch").save_file(tensors, home / "x.safetensors")
    return home


WRITERS = [write_npy, write_tree, write_debug, write_pt, write_nested, write_npz, write_safetensors]


@pytest.mark.parametrize("write", WRITERS)
def test_every_container_is_one_step_in_order(tmp_path: Path, write: Callable[[Tensors, Path], Path]) -> None:
    tensors = {name: torch.full((2, 3), float(number)) for number, name in enumerate(IN_ORDER)}
    dump = open_dump(str(write(tensors, tmp_path)))
    assert isinstance(dump, NamedDump)
    assert [step.label for step in dump.steps] == [0]
    assert [rank.name for rank in dump.ranks] == (["rank0", "rank1"] if write is write_debug else ["rank0"])
    nodes = sorted(dump.steps[0].tree.walk(), key=lambda node: node.order)
    refs = {node.path: dump.tensors(dump.steps[0], dump.ranks[0], node).get(Slot("output")) for node in nodes}
    values = [(path, ref.open()[0, 0].item()) for path, ref in refs.items() if ref is not None]
    prefix = "root.run." if write is write_nested else "root."
    assert values == [(f"{prefix}{name}", float(number)) for number, name in enumerate(IN_ORDER)]
    keeps_order = write in (write_pt, write_nested, write_npz)
    assert dump.order == ("the order of saving" if keeps_order else "layer order")
    assert bool(dump.notes) is not keeps_order


def test_folders_may_say_the_step(tmp_path: Path) -> None:
    for step in (2, 10):
        (tmp_path / f"step_{step}").mkdir()
        np.save(tmp_path / f"step_{step}" / "layers.0.npy", np.full(3, step))
        np.save(tmp_path / f"step_{step}" / "layers.1.npy", np.full(3, step))
    assert [step.label for step in open_dump(str(tmp_path)).steps] == [2, 10]


def test_an_alphabetical_dict_is_not_taken_for_an_order_in_time(tmp_path: Path) -> None:
    tensors = {name: torch.ones(2) for name in sorted(IN_ORDER)}
    dump = open_dump(str(write_pt(tensors, tmp_path)))
    assert isinstance(dump, NamedDump)
    assert dump.order == "layer order"


@pytest.mark.parametrize(
    ("name", "path", "slot"),
    [
        ("layers/3/mlp", "layers.3.mlp", "output[0]"),
        ("layers.3.mlp.output", "layers.3.mlp", "output[0]"),
        ("layers.3.mlp_output_1", "layers.3.mlp", "output[1]"),
        ("layers.3.attn.input.0", "layers.3.attn", "input[0]"),
        ("output", "output", "output[0]"),
        ("logits", "lm_head", "output[0]"),
    ],
)
def test_a_name_says_module_and_slot(name: str, path: str, slot: str) -> None:
    assert (scope_of(name)[0], str(scope_of(name)[1])) == (path, slot)


@pytest.mark.parametrize("saved", ["alone", "in outputs"])
def test_hidden_states_are_embeddings_layers_and_the_final_norm(tmp_path: Path, saved: str) -> None:
    states = tuple(torch.full((2, 4), float(number)) for number in range(4))
    torch.save(
        states if saved == "alone" else {"hidden_states": states, "logits": states[0]}, tmp_path / "h.pt"
    )
    dump = open_dump(str(tmp_path / "h.pt"))
    paths = [n.path for n in dump.steps[0].tree.walk() if dump.tensors(dump.steps[0], dump.ranks[0], n)]
    names = ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"]
    assert sorted(paths) == sorted(f"root.{name}" for name in (*names, *["lm_head"][: saved != "alone"]))


def test_hidden_states_of_generate_are_steps(tmp_path: Path) -> None:
    states = [[torch.full((1, 4), float(layer)) for layer in range(4)] for _ in range(2)]
    torch.save({"hidden_states": states, "past_key_values": [[torch.ones(2)]]}, tmp_path / "h.pt")
    dump = open_dump(str(tmp_path / "h.pt"))
    assert [step.label for step in dump.steps] == [0, 1]
    assert "root.model.norm" in dump.steps[1].tree.by_path


def test_a_state_dict_is_weights(tmp_path: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)).state_dict(), tmp_path / "x.pt")
    dump = open_dump(str(tmp_path / "x.pt"))
    assert isinstance(dump, NamedDump)
    assert sorted(dump.dumped_weights(dump.ranks[0])) == ["root.0.bias", "root.0.weight"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_float32_values_that_fit_a_coarser_type_were_computed_in_it(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    values = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(dtype).float()
    torch.save(
        {"layers.0.a": values, "layers.1.a": values * 2, "layers.2.mask": torch.ones(2)}, tmp_path / "x.pt"
    )
    dump = open_dump(str(tmp_path / "x.pt"))
    name = str(dtype).removeprefix("torch.")
    assert any(name in note for note in dump.notes) is (dtype != torch.float32)


def test_files_without_layers_are_no_network(tmp_path: Path) -> None:
    for name in ("weights", "x1"):
        np.save(tmp_path / f"{name}.npy", np.zeros(2))
    assert open_dump(str(tmp_path)).kind == "tensor"


def test_shards_of_one_run_are_one_set_of_names(tmp_path: Path) -> None:
    save = pytest.importorskip("safetensors.torch").save_file
    save({"layers.0.mlp": torch.ones(2)}, tmp_path / "x-00001-of-00002.safetensors")
    save({"layers.1.mlp": torch.ones(2)}, tmp_path / "x-00002-of-00002.safetensors")
    dump = open_dump(str(tmp_path))
    assert [n.path for n in dump.steps[0].tree.walk() if n.is_leaf] == [
        "root.layers.0.mlp",
        "root.layers.1.mlp",
    ]


def test_a_module_may_be_called_output(tmp_path: Path) -> None:
    names = ["layer.0.output.dense", "layer.0.output.LayerNorm", "layer.0.output", "layer.0"]
    torch.save({name: torch.ones(2) for name in names}, tmp_path / "x.pt")
    tree = open_dump(str(tmp_path / "x.pt")).steps[0].tree
    assert {f"root.{name}" for name in names} <= set(tree.by_path)
