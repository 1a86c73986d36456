"""Whole tensors and summands on ranks are told apart by their values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.mapping.operand_shards import OperandShards
from acc_pytest.mapping.shard_values import settled
from acc_pytest.mapping.views import RankSum, RowParallel, Whole
from acc_pytest.tensors.ref import TensorRef

torch.manual_seed(3)
PARTS = [torch.randn(6, 4), torch.randn(6, 4)]
WHOLE = PARTS[0] + PARTS[1]


def told(
    shards: list[torch.Tensor], home: Path, after: list[torch.Tensor], other: torch.Tensor = WHOLE
) -> tuple[OperandShards, str, str]:
    refs = []
    for number, tensor in enumerate(after):
        torch.save(tensor, home / f"{number}.pth")
        refs.append(TensorRef(str(home / f"{number}.pth")))
    side, words = settled(OperandShards(shards, RowParallel(tuple(refs))), OperandShards([other], Whole()))
    return side, words.note, words.suspect


def test_equal_ranks_hold_the_whole(tmp_path: Path) -> None:
    side, note, suspect = told([WHOLE, WHOLE.clone()], tmp_path, [])
    assert (side.view, note, suspect) == (Whole(), "", "")


def test_ranks_that_differ_before_a_norm_that_does_not_hold_summands(tmp_path: Path) -> None:
    side, note, suspect = told(PARTS, tmp_path, [WHOLE, WHOLE])
    assert (side.view, suspect) == (RankSum(), "")
    assert note.endswith("they are partial sums")


def test_summands_that_are_wrong_are_summed_all_the_same(tmp_path: Path) -> None:
    side, _, _ = told(PARTS, tmp_path, [WHOLE, WHOLE], other=torch.randn(6, 4))
    assert side.view == RankSum()


def test_ranks_that_still_differ_afterwards_lack_their_sum(tmp_path: Path) -> None:
    side, _, suspect = told(PARTS, tmp_path, PARTS)
    assert side.view == Whole()
    assert suspect.startswith("each rank kept its partial sum")


def test_ranks_that_differ_for_another_reason_are_not_said_to_lack_a_sum(tmp_path: Path) -> None:
    side, note, suspect = told([WHOLE, 2 * WHOLE], tmp_path, PARTS)
    assert (side.view, suspect) == (Whole(), "")
    assert "differ" in note


@pytest.mark.parametrize(("shards", "view"), [(PARTS, RankSum()), ([WHOLE, 2 * WHOLE], Whole())])
def test_where_nothing_comes_after_the_other_side_tells(
    shards: list[torch.Tensor], view: Whole | RankSum, tmp_path: Path
) -> None:
    assert told(shards, tmp_path, [])[0].view == view
