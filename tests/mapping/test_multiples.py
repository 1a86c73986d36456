"""A side is multiplied by what its own side multiplies it by next, where the other side's is a multiple."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.mapping.operand_shards import OperandShards
from acc_pytest.mapping.pair import Operand
from acc_pytest.mapping.shard_sources import multiplied
from acc_pytest.mapping.views import Whole
from acc_pytest.tensors.ref import TensorRef

torch.manual_seed(0)
HERE, BESIDE = torch.randn(6, 8), torch.randn(6, 8)


def times(home: Path, after: list[torch.Tensor], other: torch.Tensor, here: torch.Tensor = HERE) -> float:
    """What `here` is multiplied by beside `other`, where its side makes `after` of it."""
    refs = []
    for number, tensor in enumerate((here, *after)):
        torch.save(tensor, home / f"{number}.pth")
        refs.append((TensorRef(str(home / f"{number}.pth")),))
    operand = Operand("node", "node", "Type", "output[0]", refs[0], onward=tuple(refs))
    made, note = multiplied(OperandShards([here], Whole()), operand, OperandShards([other], Whole()))
    assert bool(note) == (made.shards[0] is not here)
    return float(made.shards[0][0, 0] / here[0, 0])


def test_the_number_is_that_of_the_next_tensor(tmp_path: Path) -> None:
    assert times(tmp_path, [3 * HERE], 3 * HERE) == pytest.approx(3)


def test_what_is_added_to_the_next_tensor_tells_its_own_share(tmp_path: Path) -> None:
    total = 1.1 * (2.5 * HERE + BESIDE)  # all of it is off by a tenth, and that is not the number's fault
    assert times(tmp_path, [total, BESIDE], 2.5 * HERE) == pytest.approx(2.5)


def test_a_side_that_is_nearer_as_it_is_stays_so(tmp_path: Path) -> None:
    assert times(tmp_path, [3 * HERE], HERE) == 1


def test_a_number_that_is_wrong_stays_wrong(tmp_path: Path) -> None:
    assert times(tmp_path, [4 * HERE], 5 * HERE) == pytest.approx(4)


@pytest.mark.parametrize("after", [BESIDE, HERE[:3], HERE * torch.inf, torch.zeros(6, 8, dtype=torch.int64)])
def test_what_is_no_multiple_tells_nothing(after: torch.Tensor, tmp_path: Path) -> None:
    assert times(tmp_path, [after], 3 * HERE) == 1
