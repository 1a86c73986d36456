"""What a step of mine began with, as far as its dump tells."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.diagnosis.golden_model.calls import ModuleCall, starts_at_zero
from acc_pytest.tensors.ref import TensorRef


@pytest.mark.parametrize(
    ("name", "values", "fresh"),
    [
        ("position_ids", torch.arange(4), True),
        ("cache_position", torch.arange(3, 7), False),
        ("position_embeddings", torch.zeros(4), False),
        ("positions", torch.arange(0), False),
        ("hidden_states", torch.arange(4), False),
    ],
)
def test_positions_from_zero_say_that_nothing_came_before(
    tmp_path: Path, name: str, values: torch.Tensor, fresh: bool
) -> None:
    torch.save(values, tmp_path / "x.pth")
    given: dict[tuple[int | str, ...], TensorRef] = {(name,): TensorRef(str(tmp_path / "x.pth"))}
    assert starts_at_zero({"root": ModuleCall("root", "root", given, {}, False)}) == fresh
