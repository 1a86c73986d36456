"""Gradients inherit from what their forward call held."""

from __future__ import annotations

from pathlib import Path

import torch

from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan
from tests.dumps.msprobe_writer import RankWriter

X, Y, Z = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)


def training(home: Path) -> Path:
    """Two functions and their gradients. What arrives first is a constant, as behind a sum."""
    writer = RankWriter(home)
    one = torch.ones(3, 4)
    for name, parts in (
        ("Torch.relu.0.forward", {"input_args": [X], "input_kwargs": {}, "output": [Y]}),
        ("Tensor.pow.0.forward", {"input_args": [Y], "input_kwargs": {}, "output": [Z]}),
        ("Tensor.pow.0.backward", {"input": [one], "output": [2 * Y]}),
        ("Torch.relu.0.backward", {"input": [2 * Y], "output": [3 * X]}),
    ):
        writer.began(name)
        writer.ended(name, parts)
    return writer.write()


def test_a_gradient_is_computed_of_what_arrives_and_of_what_the_forward_call_held(tmp_path: Path) -> None:
    dump = open_dump(str(training(tmp_path)))
    made = plan(dump, dump)
    names = [f"{pair.mine.node} {pair.mine.slot}" for pair in made.pairs]
    parents = {name: {names[other] for other in made.parents[at]} for at, name in enumerate(names)}
    assert {"root.pow output[0]", "root.relu output[0]"} <= parents["root.pow.backward output[0]"]
    assert {"root.relu output[0]", "root.pow.backward output[0]"} <= parents["root.relu.backward output[0]"]
    assert not any(name in found for name, found in parents.items())
