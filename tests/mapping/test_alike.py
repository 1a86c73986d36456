"""A family that no table knows: no module is called as in the other dump, nor as in any model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from acc_pytest.diagnosis.run import run
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan

from .renamed import GOLDEN, MINE, renamed
from .served import RIGHT, Engine, Fault, Recorded, Spec, hugging_face_records

NO_COUNTERPART = {("golden", "rotary_emb"), ("golden", "bend"), ("mine", "phase")}
"""Tables, a half of what the engine multiplies at once, and a query whose tables nobody handed over."""


def both(spec: Spec, home: Path, fault: Fault = RIGHT) -> tuple[Recorded, Recorded]:
    golden = hugging_face_records(replace(spec, ranks=1), home / "golden")
    engine = Engine(spec, home / "mine", fault)
    engine.run()
    return renamed([golden], GOLDEN, home / "golden"), renamed(engine.records, MINE, home / "mine")


def alone(made: Plan) -> set[tuple[str, str]]:
    return {(left.side, left.node.rpartition(".")[2]) for left in made.unmapped}


def test_values_tell_what_has_no_name_in_common(tmp_path: Path) -> None:
    made = plan(*both(Spec(ranks=2, dtype=torch.bfloat16), tmp_path))
    rows, _ = run(made)
    assert {row.verdict for row in rows} == {"pass"}
    assert alone(made) == NO_COUNTERPART
    packs = {(pair.golden.node, pair.mine.node) for pair in made.pairs if "three" in pair.mine.node}
    assert {(g.rpartition(".")[2], m.rpartition(".")[2]) for g, m in packs} == {
        (each, "three") for each in "abc"
    }


def test_the_packed_side_may_be_golden(tmp_path: Path) -> None:
    mine, golden = both(Spec(), tmp_path)
    made = plan(golden, mine)
    rows, _ = run(made)
    assert {row.verdict for row in rows} == {"pass"}
    assert alone(made) == {("mine" if side == "golden" else "golden", name) for side, name in NO_COUNTERPART}


def test_a_layer_that_is_wrong_is_told_by_another_one(tmp_path: Path) -> None:
    made = plan(*both(Spec(), tmp_path, Fault("norm", layer=1)))
    _, diagnosis = run(made)
    assert diagnosis.roots[0].row.mine.node == "root.model.stages.1.scale2"
    assert alone(made) == NO_COUNTERPART


def test_what_only_looks_alike_in_shape_does_not_meet(tmp_path: Path) -> None:
    golden, _ = both(Spec(), tmp_path / "one")
    _, other = both(Spec(seed=9), tmp_path / "other")
    assert not [pair for pair in plan(golden, other).pairs if pair.policy == "values"]
