"""Experts that the code of a network chooses, two of whose logits are equal but for a rounding: in dumps that
hold what was chosen, and in those that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.lab.demo import DemoPaths
from tests.mapping.test_implied_choices import dumped, network

from .conftest import Run, read_rows

MANY = 200


def near() -> Any:
    """The router tells its second and third expert apart by what bfloat16 does not hold."""
    made: Any = network().bfloat16().float()
    weight = made.layers[1].gate.weight.data
    weight[2] = weight[1] * (1 + 2**-12)
    return made


@pytest.mark.parametrize(("choices", "name"), [(False, "gate[chosen]"), (True, "topk[1]")])
def test_another_expert_is_a_tie_and_a_fault_beside_it_is_named(
    acc: Run, tmp_path: Path, choices: bool, name: str
) -> None:
    """Also where what was chosen is only in the dump of one side."""
    dumped(near(), tmp_path / "golden", MANY, choices=choices)
    dumped(near().bfloat16(), tmp_path / "mine", MANY, dtype=torch.bfloat16, choices=choices)
    right = acc(DemoPaths(tmp_path / "golden", tmp_path / "mine", ()))
    assert right.ret == pytest.ExitCode.OK
    (choice,) = [row for row in read_rows() if row["test_id"].endswith(name)]
    assert choice["verdict"] == "tie"
    spoiled = near()
    spoiled.layers[1].experts[3].register_forward_hook(lambda _module, _given, result: result * 1.5)
    dumped(spoiled.bfloat16(), tmp_path / "spoiled", MANY, dtype=torch.bfloat16, choices=True)
    wrong = acc(DemoPaths(tmp_path / "golden", tmp_path / "spoiled", ()))
    assert wrong.ret == pytest.ExitCode.TESTS_FAILED
    wrong.stdout.fnmatch_lines(["root cause: root.layers.1.experts.3 *"])
