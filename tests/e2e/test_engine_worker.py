"""`register_hook` inside of the worker of an engine, against a golden of Hugging Face."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.lab.demo import DemoPaths

from .conftest import Run, read_rows
from .engine_worker import Worker

PROMPT = [5, 17, 23, 4, 41, 11]
STEPS = 2


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def golden(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with torch.no_grad(), register_hook(theirs, DumpConfig(folder, range(STEPS), run_name="hf")):
        first = theirs(torch.tensor([PROMPT]), use_cache=True)
        chosen = first.logits[:, -1:].argmax(-1)
        theirs(chosen, past_key_values=first.past_key_values, use_cache=True)
    return folder / "hf"


def served(theirs: Any, folder: Path, fault: Any = None, dtype: torch.dtype = torch.float32) -> Path:
    """What the worker dumps of a prefill and a decode step, its `forward` called as an engine does."""
    with torch.no_grad():
        worker = Worker(copy.deepcopy(theirs)).to(dtype).eval()
        if fault is not None:
            fault(worker)
        with register_hook(worker, DumpConfig(folder, range(STEPS), run_name="worker")):
            logits = worker.forward(torch.tensor(PROMPT), torch.arange(len(PROMPT)))
            worker.forward(logits.argmax(-1), torch.tensor([len(PROMPT)]))
    return folder / "worker"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_worker_is_green_in_both_steps(
    acc: Run, theirs: Any, golden: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    acc(DemoPaths(golden, served(theirs, tmp_path, dtype=dtype)))
    rows = read_rows()
    assert {row["verdict"] for row in rows} <= {"pass", "unmapped"}
    compared = {(row["step"], row["my_node"]) for row in rows if row["verdict"] == "pass"}
    modules = (
        "input_layernorm",
        "self_attn.qkv_proj",
        "self_attn.attn",
        "self_attn.o_proj",
        "mlp.gate_up_proj",
    )
    for step in ("0", "1"):
        wanted = {(step, f"root.model.layers.{layer}.{name}") for layer in (0, 1) for name in modules}
        assert wanted <= compared
        assert (step, "root.logits_processor") in compared or (step, "root") in compared


def test_norms_in_place_are_dumped_with_what_they_were_handed(theirs: Any, tmp_path: Path) -> None:
    home = next((served(theirs, tmp_path) / "torch_tensors").iterdir())
    norm = home / "0" / "root.model.layers.1.post_attention_layernorm"
    handed, residual, normed, stream = (
        torch.load(norm / f"{name}.pth", weights_only=True)
        for name in ("input_0", "input_1", "output_0", "output_1")
    )
    torch.testing.assert_close(handed + residual, stream)
    assert not torch.equal(handed, normed)


def scaled(worker: Worker) -> None:
    worker.model.layers[1].mlp.down_proj.weight.mul_(1.05)  # type: ignore[union-attr, operator]


class UpFirst(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = x.chunk(2, -1)
        return nn.functional.silu(gate) * up


def swapped(worker: Worker) -> None:
    worker.model.layers[1].mlp.act_fn = UpFirst()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fault", "root"),
    [
        (scaled, "weight of model.layers.1.mlp.down_proj differs: relative L2 "),
        (swapped, "root.model.layers.1.mlp.act_fn "),
    ],
)
def test_what_the_worker_does_wrong_is_the_root(
    acc: Run, theirs: Any, golden: Path, tmp_path: Path, fault: Any, root: str
) -> None:
    result = acc(DemoPaths(golden, served(theirs, tmp_path, fault)))
    result.stdout.fnmatch_lines([f"root cause: {root}*"])
