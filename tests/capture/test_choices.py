"""What the code of modules chose stands in a dump of modules, where it was not asked for functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.modules import ModuleDump


class Routed(nn.Module):
    """Chooses twice with `topk`, once each with `argmax` and `max`, and calls other functions."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        first, second = shares.topk(2).indices, torch.topk(shares, 3, dim=0).values
        best, which = shares.max(-1)
        return first.sum() + second.sum() + shares.argmax(-1).sum() + (best / shares.max() + which).sum()


def dumped(path: Path, **options: Any) -> ModuleDump:
    with torch.no_grad(), register_hook(nn.Sequential(Routed()), DumpConfig(path, **options)) as handle:
        handle._model(torch.randn(5, 4))
    found = open_dump(str(handle.dump_path))
    assert isinstance(found, ModuleDump)
    return found


CALLS = ["root.0.topk", "root.0.topk.1", "root.0.argmax", "root.0.max"]


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({}, CALLS),
        ({"choices": False}, []),
        ({"module_list": [nn.Linear]}, []),
        ({"module_list": [Routed]}, CALLS),
        ({"layer_name": "root.0"}, CALLS),
        ({"dump_last_logits": True}, []),
        ({"mode": ["module", "api"], "api_list": ["softmax"], "choices": False}, ["root.0.softmax"]),
    ],
)
def test_choices_of_dumped_modules_are_dumped(
    tmp_path: Path, options: dict[str, Any], calls: list[str]
) -> None:
    found = dumped(tmp_path, **options)
    nodes = [node.path for node in found.steps[0].tree.walk()]
    assert sorted(set(nodes) - {"root", "root.0", "root.0.gate"}) == sorted(calls)
    assert found.choices(found.ranks[0]) == {path for path in calls if "softmax" not in path}


def test_of_a_dump_of_functions_none_is_unasked(tmp_path: Path) -> None:
    found = dumped(tmp_path, mode=["module", "api"])
    assert any(node.path == "root.0.topk" for node in found.steps[0].tree.walk())
    assert not found.choices(found.ranks[0])


def test_what_was_chosen_from_and_what_are_in_it(tmp_path: Path) -> None:
    found = dumped(tmp_path)
    step, rank = found.steps[0], found.ranks[0]
    node = step.tree.by_path["root.0.topk"]
    tensors = {str(slot): ref.open() for slot, ref in found.tensors(step, rank, node).items()}
    shares, values, places = (tensors[name] for name in ("input[0]", "output[0]", "output[1]"))
    assert torch.equal(shares.gather(-1, places), values)
    assert places.shape == (5, 2)
