"""Tensors inside of experts: rows meet by token and expert, whatever order they are in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps.base import Dump
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair

from .engine_families import Grouped, LogitsAlone, ScaledLater, Shuffled, golden, model_of
from .engine_parts import Prompts, Ranks
from .served import Fault, Spec, both


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Dump]:
    """The model, and the hooks' dump of it: a kernel for all experts, sorted by one."""
    model = model_of("mixtral")
    return model, golden(model, Prompts(), tmp_path_factory.mktemp("golden"))


INSIDE = Spec(experts=4, inside=True, moe="block_sparse_moe", layers=1, lengths=(6, 9))


@pytest.mark.parametrize("engine", [Grouped, Shuffled, LogitsAlone])
def test_rows_of_two_kernels_meet_by_token_and_expert(
    engine: type[Grouped], mixtral: tuple[Any, Dump], tmp_path: Path
) -> None:
    model, side = mixtral
    made = plan(side, engine(model, Prompts(ranks=2), tmp_path).dump())
    rows, _ = run(made)
    assert {row.verdict for row in rows} == {"pass"}
    kernels = [pair for pair in made.pairs if pair.golden.experts is not None]
    assert {pair.mine.node.rpartition(".")[2] for pair in kernels} == {"gate_up_proj"}
    assert "rows by token and expert" in open_pair(kernels[0]).notes


def test_a_module_for_each_expert_meets_rows_of_one_kernel(tmp_path: Path) -> None:
    spec = replace(INSIDE, ranks=2)
    made = plan(*both(spec, tmp_path))
    rows, _ = run(made)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []
    inside = Counter(
        pair.mine.node.rpartition(".")[2] for pair in made.pairs if pair.golden.experts is not None
    )
    assert inside == {"w13": 2 * spec.experts, "act_fn": spec.experts, "w2": spec.experts}


def test_a_wrong_kernel_is_the_root(tmp_path: Path) -> None:
    _, diagnosis = run(plan(*both(INSIDE, tmp_path, Fault("expert", layer=0))))
    assert diagnosis.roots[0].row.mine.node == "root.model.layers.0.block_sparse_moe.experts.w13"


def test_choices_of_a_token_have_no_order(mixtral: tuple[Any, Dump], tmp_path: Path) -> None:
    class LeastFirst(Grouped):
        def router(self, path: str, source: str, x: Ranks) -> list[tuple[Any, Any, Any]]:
            given = super().router(path, source, x)
            return [(logits, shares.flip(-1), chosen.flip(-1)) for logits, shares, chosen in given]

    model, side = mixtral
    rows, _ = run(plan(side, LeastFirst(model, Prompts(), tmp_path).dump()))
    assert {row.verdict for row in rows} == {"pass"}
    assert {row.mine.slot for row in rows if row.mine.node.endswith("topk")} == {"output[0]", "output[1]"}


def test_weights_of_experts_that_are_scaled_later_meet_scaled_ones(tmp_path: Path) -> None:
    model = model_of("deepseek_v2")
    mine = ScaledLater(model, Prompts(), tmp_path / "mine").dump()
    rows, _ = run(plan(golden(model, Prompts(), tmp_path / "golden"), mine))
    assert {row.verdict for row in rows} == {"pass"}
    assert [row.mine.slot for row in rows if row.mine.node.endswith("topk")] == ["output[0]", "output[1]"]


def test_rows_in_an_order_that_nothing_tells_are_not_judged(
    mixtral: tuple[Any, Dump], tmp_path: Path
) -> None:
    class Unknown(Shuffled):
        index_dumped = False

    model, side = mixtral
    rows, diagnosis = run(plan(side, Unknown(model, Prompts(), tmp_path).dump()))
    assert not diagnosis.roots
    left = {row.sentence for row in rows if row.verdict != "pass"}
    assert left == {"nothing tells which row is which token at which expert"}
