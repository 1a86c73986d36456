"""docs/coming-from.md: what a user of another tool types here names the module that is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from tests.dumps.tool_dumps import SglangWriter, two_layers
from tests.shared_directory import made_once

from .test_msprobe import dumped

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text("utf-8")
BLOCKS = {
    section.partition("\n")[0]: block
    for section in PAGE.split("\n## ")[1:]
    for block in re.findall(r"[Hh]ere:\n\n```(sh|python)\n(.*?)```$", section, re.MULTILINE | re.DOTALL)
}
ROOTS = {
    "msprobe": "root.layers.1.linear",
    "SGLang's comparator": "root.model.layers.1.mlp",
    "torch.testing.assert_close": "root.middle",
    "Polygraphy": "root.middle",
    "ExecuTorch's Inspector": "root.middle",
}
"""The module that is wrong in the files of each tool."""


def _network(scale: float) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Three linears, the second with its weight times `scale`, and their outputs."""
    torch.manual_seed(5)
    model = nn.Sequential(OrderedDict((name, nn.Linear(32, 32)) for name in ("first", "middle", "last")))
    with torch.no_grad():
        model.get_parameter("middle.weight").mul_(scale)
    outputs: dict[str, torch.Tensor] = {}
    for name, module in model.named_children():
        module.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output.detach()}))
    return model, outputs


def _files(home: Path) -> Path:
    """What each tool leaves behind of a right and of a wrong run."""
    x = torch.randn(24, 32, generator=torch.Generator().manual_seed(7))
    (home / "executorch").mkdir()
    dumped(home / "golden_msprobe")
    dumped(home / "mine_msprobe", fault="layers.1.linear")
    for side, backend, scale in (("golden", "onnxrt", 1.0), ("mine", "trt", 1.1)):
        two_layers(SglangWriter(home / f"{side}_sglang"), scale=scale)
        model, outputs = _network(scale)
        with torch.no_grad(), register_hook(model, DumpConfig(home / f"{side}_torch")):
            model(x)
        torch.save(outputs, home / f"{side}.pt")
        values: dict[str, Any] = {name: output.numpy() for name, output in outputs.items()}
        np.savez(home / f"{backend}.npz", **values)
    results: dict[str, Any] = {f"addmm_{name}.out": values[name] for name in values}
    np.savez(home / "executorch" / "values.npz", **results)
    events = [{"key": key, "modules": [name]} for name, key in zip(values, results)]
    (home / "executorch" / "values.events.json").write_text(json.dumps(events))
    return home


@pytest.fixture
def here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, python_with_torch: None) -> Path:
    """A directory with the files of the page."""
    for entry in made_once(tmp_path_factory, "coming-from", _files).iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:hypothesispytest\n")
    return tmp_path


def test_each_tool_has_its_command_and_ours() -> None:
    assert BLOCKS.keys() == ROOTS.keys()
    assert PAGE.count("\n```\n") >= 2 * len(ROOTS)


@pytest.mark.parametrize("tool", ROOTS)
def test_the_module_that_is_wrong_is_named(here: Path, tool: str) -> None:
    kind, text = BLOCKS[tool]
    command = [sys.executable, "-c", text] if kind == "python" else ["bash", "-c", text]
    run = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == (kind != "python"), run.stdout + run.stderr
    roots = re.findall(r"^root cause: (?:weight of )?(\S+)", run.stdout, re.MULTILINE)
    assert [f"root.{name.removeprefix('root.')}" for name in roots] == [ROOTS[tool]], run.stdout
