"""Summands that mine saved by name: their sum over ranks meets what the module of one rank gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.views import RankSum
from tests.dumps.tool_dumps import SglangWriter, tensor

MLP = "model.layers.0.mlp"


def of_one_rank(home: Path) -> None:
    writer = SglangWriter(home)
    hidden, made = tensor(1), tensor(2)
    writer.module("model.embed", {"0": tensor(9)}, [hidden])
    writer.module(f"{MLP}.down_proj", {"0": hidden}, [made], layer_id=0)
    writer.module("lm_head", {"0": made}, [made.sin()])


def of_two(home: Path, *, reduced: bool = True, dims: str = "t h[tp:partial]", inside: bool = True) -> None:
    hidden, made, first = tensor(1), tensor(2), tensor(3)
    for rank, part in enumerate((first, made - first)):
        writer = SglangWriter(home, rank, 2)
        result = made if reduced else part
        writer.module("model.embed", {"0": tensor(9)}, [hidden])
        writer.enter(f"{MLP}.down_proj", {"0": hidden}, layer_id=0)
        if inside:
            writer.dump("before", part, dims=dims, layer_id=0)
        writer.leave(f"{MLP}.down_proj", [result], layer_id=0)
        if not inside:
            writer.dump("before", part, dims=dims, layer_id=0)
        writer.module("lm_head", {"0": result}, [result.sin()])


def planned(tmp_path: Path) -> Plan:
    return plan(open_dump(str(tmp_path / "golden")), open_dump(str(tmp_path / "mine")))


def places(found: Plan) -> Sequence[tuple[str, str]]:
    return [(pair.golden.node, pair.mine.node) for pair in found.pairs if pair.policy == "partial"]


@pytest.mark.parametrize("reduced", [True, False])
def test_their_sum_is_the_output_of_the_module_they_were_saved_in(tmp_path: Path, reduced: bool) -> None:
    of_one_rank(tmp_path / "golden")
    of_two(tmp_path / "mine", reduced=reduced)
    found = planned(tmp_path)
    (number,) = (number for number, pair in enumerate(found.pairs) if pair.policy == "partial")
    pair = found.pairs[number]
    assert (pair.golden.node, pair.golden.slot) == (f"root.{MLP}.down_proj", "output[0]")
    assert pair.mine.node == "root.model.layers.0.before"
    assert pair.mine.view == RankSum()
    total = torch.stack([ref.open() for ref in pair.mine.refs]).sum(0)
    assert torch.allclose(total, tensor(2), atol=1e-6)
    # A wrong product is one root: its output; nothing inherits from what was saved beside it.
    (parent,) = found.parents[number]
    assert found.pairs[parent].mine.node == f"root.{MLP}.down_proj"
    assert not any(number in parents for parents in found.parents)


@pytest.mark.parametrize("how", [{"dims": ""}, {"dims": "t h # tp:replicated"}, {"inside": False}])
def test_what_is_not_said_to_be_partial_or_was_saved_elsewhere_meets_nothing(
    tmp_path: Path, how: dict[str, str]
) -> None:
    of_one_rank(tmp_path / "golden")
    of_two(tmp_path / "mine", **how)  # type: ignore[arg-type]  # one of two keywords
    assert places(planned(tmp_path)) == []


def test_the_same_name_on_both_sides_is_met_by_its_name(tmp_path: Path) -> None:
    of_two(tmp_path / "golden")
    of_two(tmp_path / "mine", reduced=False)
    found = planned(tmp_path)
    assert places(found) == []
    assert any(pair.mine.node == "root.model.layers.0.before" for pair in found.pairs)
