"""Dumps of whole models: every operator in them gives the output that was dumped, of its dumped inputs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from acc_pytest.operators import compute, known, operator_of
from acc_pytest.tensors.ref import TensorRef

PROBE = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "probe"
pytestmark = pytest.mark.skipif(
    not PROBE.is_dir(), reason="conformance data (../shared/conformance) is not here"
)


def tensors(directory: Path, kind: str) -> list[torch.Tensor]:
    files = {
        int(found[1]): path
        for path in directory.glob(f"{kind}tensor*.bin")
        if (found := re.match(rf"{kind}tensor(\d+)", path.name))
    }
    return [TensorRef(str(files[i])).open() for i in sorted(files)]


def operations(root: Path) -> list[Path]:
    found = {path.parent for path in root.rglob("after") if path.parent.name.split("_")[-1] in known()}
    return sorted(d for d in found if not operator_of(d.name.split("_")[-1]).collective)


@pytest.mark.parametrize("name", ["A", "A_bf16", "B_e2"])
def test_every_operator_of_a_model_repeats(name: str) -> None:
    wrong, equal, directories = [], 0, operations(PROBE / name / "atb")
    for directory in directories:
        param = json.loads((directory / "op_param.json").read_text())
        before, after = directory / "before", directory / "after"
        outputs = compute(
            directory.name.split("_")[-1], param, tensors(before if before.is_dir() else after, "in")
        )
        for mine, stored in zip(outputs, tensors(after, "out")):
            mine = mine.reshape(stored.shape)
            equal += torch.equal(mine, stored)
            # another order of the sums may round the other way: one step of the output's dtype
            step = torch.finfo(stored.dtype).eps if stored.is_floating_point() else 0.0
            error = (mine.double() - stored.double()).abs()
            if bool((error > step * stored.double().abs().clamp(min=2**-3)).any()):
                wrong.append(directory)
    assert wrong == []
    assert len(directories) > 70
    assert equal > 0.95 * len(directories)
