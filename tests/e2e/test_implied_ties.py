"""Experts that a network's own code chooses, two of whose logits are equal but for a rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.demo import DemoPaths
from tests.mapping.test_implied_choices import dumped, network

from .conftest import Run, read_rows

MANY = 200


def near() -> Any:
    """The router tells its second and third expert apart by what bfloat16 does not hold."""
    made: Any = network().bfloat16().float()
    weight = made.layers[1].gate.weight.data
    weight[2] = weight[1] * (1 + 2**-12)
    return made


def test_another_expert_is_a_tie_and_a_fault_beside_it_is_named(acc: Run, tmp_path: Path) -> None:
    dumped(near(), tmp_path / "golden", MANY)
    dumped(near().bfloat16(), tmp_path / "mine", MANY, dtype=torch.bfloat16)
    right = acc(DemoPaths(tmp_path / "golden", tmp_path / "mine", ()))
    assert right.ret == pytest.ExitCode.OK
    (choice,) = [row for row in read_rows() if row["test_id"].endswith("[chosen]")]
    assert choice["verdict"] == "tie"
    spoiled = near()
    spoiled.layers[1].experts[3].register_forward_hook(lambda _module, _given, result: result * 1.5)
    dumped(spoiled.bfloat16(), tmp_path / "spoiled", MANY, dtype=torch.bfloat16)
    wrong = acc(DemoPaths(tmp_path / "golden", tmp_path / "spoiled", ()))
    assert wrong.ret == pytest.ExitCode.TESTS_FAILED
    wrong.stdout.fnmatch_lines(["root cause: root.layers.1.experts.3 *"])
