"""Ranks with prompts of their own: no tensor of one is a part of another's, however few the tokens are."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import keep_rank
from acc_pytest.mapping.planner import plan

from .data_parallel import FAULTY, Run


@pytest.mark.parametrize(
    "parallel",
    [
        Run(tokens=5),
        Run(tokens=5, steps=3, step=1),
        Run(tokens=1, steps=2, step=1),
        Run(tokens=40),
        Run(tokens=8, batch=3),
        Run(ranks=16, tokens=9),
        Run(ranks=16, tokens=1, batch=2, steps=2, step=1),
    ],
)
def test_a_fault_of_one_rank_is_seen_undiluted(
    parallel: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, mine = parallel.dumped(tmp_path, monkeypatch)
    made = plan(open_dump(golden), open_dump(mine))
    rows, diagnosis = run(made)
    assert {pair.rank for pair in made.pairs} == set(range(parallel.ranks))
    assert {(row.rank, row.step) for row in rows if row.verdict != "pass"} == {("6", parallel.step)}
    [root] = diagnosis.roots
    assert root.row.mine.node == f"root.{FAULTY}"
    assert root.row.metrics["relative_euclidean_distance"] == pytest.approx(2, rel=0.02)
    assert f"ranks: {parallel.ranks} on both sides, compared rank by rank" in made.notes


def test_ranks_with_one_prompt_are_no_parts_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden, mine = Run(same=True, steps=2).dumped(tmp_path, monkeypatch)
    rows, diagnosis = run(plan(open_dump(golden), open_dump(mine)))
    [root] = diagnosis.roots
    assert (root.row.mine.node, root.row.rank) == (f"root.{FAULTY}", "6")
    assert {row.step for row in rows if row.verdict != "pass"} == {0}


def test_a_module_that_ran_on_another_rank_only_is_compared_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, mine = Run(ranks=3, faulty=2).dumped(tmp_path, monkeypatch)
    for side in (golden, mine):
        for folder in Path(side).rglob(f"root.{FAULTY}"):
            if "cpu_3" not in folder.parts:
                shutil.rmtree(folder)
    made = plan(open_dump(golden), open_dump(mine))
    _, diagnosis = run(made)
    assert {pair.rank for pair in made.pairs if pair.mine.node == f"root.{FAULTY}" and not pair.fed} == {2}
    assert diagnosis.roots[0].row.mine.node == f"root.{FAULTY}"
    assert {left.why for left in made.unmapped} == {"incomplete"}, "the manifests name what was deleted"


def test_any_rank_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = Run().dumped(tmp_path, monkeypatch)
    for rank, faulty in ((5, False), (6, True)):
        golden, mine = map(open_dump, dumps)
        keep_rank(golden, mine, rank)
        rows, _ = run(plan(golden, mine))
        assert any(row.verdict == "fail" for row in rows) == faulty


def test_ids_of_the_other_side_tell_of_ranks_whose_ids_were_not_dumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, mine = replace(Run(), steps=2).dumped(tmp_path, monkeypatch)
    for ids in Path(mine).rglob("root*/input_0.pth"):
        if ids.parent.name in ("root", "root.embed"):
            ids.unlink()
    rows, _ = run(plan(open_dump(golden), open_dump(mine)))
    assert {row.rank for row in rows if row.verdict != "pass"} == {"6"}
