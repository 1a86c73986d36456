"""`--acc-weights`: checkpoints beside dumps that hold no weights are compared first."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import acc_pytest
from acc_pytest.errors import SettingsError
from acc_pytest.lab.demo import DemoPaths
from tests.slow import slow

from .conftest import QUICKER, TWO_WORKERS, dump_options, read_rows

transformers = pytest.importorskip("transformers")

State = dict[str, torch.Tensor]
K_BIAS = "model.layers.0.self_attn.k_proj.bias"
Q_WEIGHT = "model.layers.1.self_attn.q_proj.weight"


def network() -> nn.Module:
    """A tiny Llama whose norms and biases are no constants."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attention_bias=True, tie_word_embeddings=False,
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def run(model: nn.Module, file: Path) -> None:
    """Write what the linears and norms of a model give, as people save it."""
    outputs: dict[str, np.ndarray] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: outputs.__setitem__(name, output.detach().numpy().copy())

    handles = [
        module.register_forward_hook(keep(name))
        for name, module in model.named_modules()
        if not list(module.children()) and "rotary" not in name
    ]
    with torch.no_grad():
        model(torch.arange(12)[None] * 5 % 96)
    for handle in handles:
        handle.remove()
    np.savez(file, **outputs)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Golden's dump, and its checkpoint `hf`. (pytester forgets what is imported behind it.)"""
    home = tmp_path_factory.mktemp("golden")
    model: Any = network()
    model.save_pretrained(home / "hf")
    run(model, home / "golden.npz")
    return home


@pytest.fixture
def sides(golden: Path, pytester: pytest.Pytester) -> State:
    """Golden in the working directory; its weights, by which mine is made."""
    shutil.copytree(golden, pytester.path, dirs_exist_ok=True)
    return dict(network().state_dict())


def mine_of(state: State) -> None:
    """Mine, and its checkpoint. What the state lacks is zero."""
    model = network()
    zeros = {name: torch.zeros_like(values) for name, values in model.state_dict().items()}
    model.load_state_dict(zeros | state)
    run(model, Path("mine.npz"))
    save_file(state, "mine.safetensors")


def compare(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    words = ("--acc-golden=golden.npz", "--acc-mine=mine.npz", "-oacc_cache_dir=cache", "--tb=no")
    return pytester.runpytest_inprocess(*QUICKER, *words, *options)


BOTH = ("--acc-weights=golden=hf", "--acc-weights", "mine=mine.safetensors")


def weights() -> Mapping[str, str]:
    """The verdicts of weights, by mine's name."""
    rows = [row for row in read_rows("acc_report.csv") if row["layer"] == "weights"]
    return {row["my_name"]: row["verdict"] for row in rows}


@pytest.mark.usefixtures("python_with_torch")
@pytest.mark.parametrize("workers", [(), slow(TWO_WORKERS)])
def test_a_right_port_is_green(pytester: pytest.Pytester, sides: State, workers: tuple[str, ...]) -> None:
    mine_of(sides)
    result = compare(pytester, *BOTH, *workers)
    assert result.ret == 0
    assert weights() == {f"root.{name}": "pass" for name in sides}
    assert "weights:" not in result.stdout.str()


def test_swapped_rows_are_the_root(pytester: pytest.Pytester, sides: State) -> None:
    mine_of(sides | {Q_WEIGHT: sides[Q_WEIGHT].roll(16, 0)})
    result = compare(pytester, *BOTH)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert [name for name, verdict in weights().items() if verdict != "pass"] == [f"root.{Q_WEIGHT}"]
    sentence = f"*weights: q_proj lies in another order of rows in root.{Q_WEIGHT}: rows 0-15 lie at 16-31*"
    result.stdout.fnmatch_lines([sentence])
    result.stdout.fnmatch_lines(["*weight of model.layers.1.self_attn.q_proj differs*"])


def test_a_lost_bias_is_named(pytester: pytest.Pytester, sides: State) -> None:
    del sides[K_BIAS]
    mine_of(sides)
    result = compare(pytester, *BOTH)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"*weights: no weight of mine holds root.{K_BIAS}: its module has no bias*"])


def port_of(state: State) -> State:
    """The weights of a port that has names of its own, and packs."""
    names = {
        "model.layers": "blocks", "model.embed_tokens": "tok", "lm_head": "out", "model.norm": "ln",
        "self_attn.q_proj": "att.wqkv", "self_attn.o_proj": "att.wo", "mlp.gate_proj": "ff.w13",
        "mlp.down_proj": "ff.w2", "input_layernorm": "n1", "post_attention_layernorm": "n2",
    }  # fmt: skip
    mine = {}
    for name, values in state.items():
        if "q_proj" in name:
            values = torch.cat([state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        elif "gate_proj" in name:
            values = torch.cat([values, state[name.replace("gate", "up")]])
        if not any(part in name for part in ("k_proj", "v_proj", "up_proj")):
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
            mine[name] = values
    return mine


def test_a_packed_port_of_other_names_is_green(pytester: pytest.Pytester, sides: State) -> None:
    mine_of(sides)
    torch.save({"model": port_of(sides)}, "port.pth")
    result = compare(pytester, "--acc-weights=golden=hf", "--acc-weights=mine=port.pth")
    assert result.ret == 0
    assert len([row for row in read_rows("acc_report.csv") if row["layer"] == "weights"]) == len(sides)
    assert set(weights().values()) == {"pass"}
    assert "not compared" not in result.stdout.str()


def test_weights_beside_a_dump_of_atb_are_compared(pytester: pytest.Pytester, clean: DemoPaths) -> None:
    q, k = torch.randn(32, 32), torch.randn(32, 32)
    torch.save({"model.layers.0.q.weight": q, "model.layers.0.k.weight": k}, "golden.pth")
    torch.save({"layers.0.qk.weight": torch.cat([q, k + 1])}, "mine.pth")
    words = ("--acc-weights=golden=golden.pth", "--acc-weights=mine=mine.pth", "-oacc_cache_dir=cache")
    result = pytester.runpytest_inprocess(*QUICKER, *dump_options(clean), *words)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    rows = [row for row in read_rows("acc_report.csv") if row["layer"] == "weights"]
    assert [row["verdict"] for row in rows] == ["pass", "fail"]


def test_an_ini_file_names_checkpoints_beside_it(pytester: pytest.Pytester, sides: State) -> None:
    mine_of(sides)
    pytester.makeini("[pytest]\nacc_weights =\n    golden=hf\n    mine=mine.safetensors\n")
    home = pytester.path
    pytester.mkdir("below")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home / "below")
        words = (f"--acc-golden={home}/golden.npz", f"--acc-mine={home}/mine.npz", "-oacc_cache_dir=cache")
        assert pytester.runpytest_inprocess(*QUICKER, *words).ret == 0
        assert set(weights().values()) == {"pass"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hf"], "--acc-weights must be golden=PATH or mine=PATH, each once, got hf"),
        (["other=hf"], "--acc-weights must be golden=PATH or mine=PATH, each once, got other=hf"),
        (["mine="], "--acc-weights must be golden=PATH or mine=PATH, each once, got mine="),
        (
            ["mine=a", "mine=b"],
            "--acc-weights must be golden=PATH or mine=PATH, each once, got mine=a, mine=b",
        ),
        (["golden=absent"], "--acc-weights: absent: no such file or directory; correct the path"),
        (["golden=cut.pth"], "cut.pth: is a damaged torch file (*); was it truncated[?]"),
        (["golden=cut.safetensors"], "cut.safetensors: its tensors end at byte *; was it truncated[?]"),
    ],
)
def test_what_is_wrong_with_the_option_is_told(
    pytester: pytest.Pytester, words: list[str], sentence: str
) -> None:
    for side in ("golden", "mine"):
        np.savez(f"{side}.npz", ones=np.ones(4))
    torch.save({"ones": torch.ones(64)}, "cut.pth")
    save_file({"ones": torch.ones(64)}, "cut.safetensors")
    for file in map(Path, ("cut.pth", "cut.safetensors")):
        file.write_bytes(file.read_bytes()[:-99])
    result = compare(pytester, *(f"--acc-weights={word}" for word in words))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {sentence}"])


def test_the_python_api_takes_a_dict(pytester: pytest.Pytester, sides: State) -> None:
    mine_of(sides | {Q_WEIGHT: sides[Q_WEIGHT].roll(16, 0)})
    paths = {"golden": Path("hf"), "mine": "mine.safetensors"}
    result = acc_pytest.compare("golden.npz", "mine.npz", weights=paths, cache_dir="cache")
    assert [root.name for root in result.roots] == [f"root.{Q_WEIGHT}"]
    with pytest.raises(SettingsError, match="must be golden=PATH or mine=PATH"):
        acc_pytest.compare("golden.npz", "mine.npz", weights={"theirs": "hf"})
