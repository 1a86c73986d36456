"""Attributes before numbers, in a run and as `acc diff-config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, cli, register_hook
from acc_pytest.lab.demo import DemoPaths

from .conftest import Run

pytestmark = pytest.mark.usefixtures("replayed")

LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 10000.0}


class Layered(nn.Module):
    """Two layers, of which the norm of the second has this epsilon."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16, each)) for each in (1e-5, eps)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def dump(home: Path, name: str, eps: float) -> Path:
    """The dump of such a model."""
    model = Layered(eps)
    with torch.no_grad(), register_hook(model, DumpConfig(home, run_name=name)):
        model(torch.randn(2, 16, generator=torch.Generator().manual_seed(1)))
    return home / name


@pytest.mark.parametrize(("eps", "failing"), [(1.0001e-5, False), (1e-1, True)], ids=["green", "red"])
def test_an_epsilon_is_named_whatever_the_numbers_say(
    acc: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], eps: float, failing: bool
) -> None:
    paths = DemoPaths(dump(tmp_path, "golden", 1e-5), dump(tmp_path, "mine", eps))
    result = acc(paths)
    assert bool(result.parseoutcomes().get("failed")) == failing
    line = f"acc note: 1 of layers.1: eps 1e-05 in golden, {eps:.6g} in mine (computed)"
    assert line in result.outlines
    capsys.readouterr()
    assert cli.main(["diff-config", str(paths.golden), str(paths.mine)]) == 1
    [head, line] = capsys.readouterr().out.splitlines()
    assert head.split() == ["setting", "golden", "mine", "computed?"]
    assert line.split("  ")[0] == "1 of layers.1: eps"
    assert line.split()[-3:] == ["1e-05", f"{eps:.6g}", "yes"]


@pytest.fixture
def configs(tmp_path: Path) -> list[Path]:
    """Directories of Hugging Face: the model, in other words, with another epsilon, kept otherwise."""
    homes = []
    changes: list[dict[str, object]] = [
        {},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
        {"rms_norm_eps": 1e-6},
        {"torch_dtype": "float16"},
    ]
    for number, change in enumerate(changes):
        home = tmp_path / f"hf{number}"
        home.mkdir()
        (home / "config.json").write_text(json.dumps({**LLAMA, "torch_dtype": "bfloat16", **change}))
        homes.append(home)
    return homes


def test_configurations_are_compared_and_only_computed_differences_fail(
    configs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    golden, *mine = map(str, configs)
    codes = [cli.main(["diff-config", golden, side]) for side in mine]
    assert codes == [0, 1, 0]
    assert capsys.readouterr().out.splitlines() == [
        "no setting differs",
        "setting       golden  mine   computed?",
        "rms_norm_eps  1e-05   1e-06  yes",
        "setting      golden    mine     computed?",
        "torch_dtype  bfloat16  float16  no",
    ]
    assert cli.main(["diff-config", f"{golden}/config.json", mine[1]]) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            '{"task": "statistics"}',
            "states nothing of a model; give a config.json or a dump of register_hook",
        ),
        ("{", "cannot be read: Expecting property name"),
        (None, "no such file or directory"),
    ],
)
def test_what_holds_no_configuration_is_refused(
    configs: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    sentence: str,
) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    assert cli.main(["diff-config", str(configs[0]), str(file)]) == 4
    error = " ".join(capsys.readouterr().err.split())
    assert sentence in error
