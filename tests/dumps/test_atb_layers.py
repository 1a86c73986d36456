"""Dumps of the first probes, which wrote layer reports and no model report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.atb import AtbDump, models_of
from acc_pytest.lab.demo.make import DemoSpec, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.topology.atb import ReportedOperation


def layers(*kinds: str) -> list[ReportedOperation]:
    """Top-level operations; what is called a layer has an operation in it."""
    inside = ReportedOperation("LinearOperation_0_0", "LinearOperation", {}, (), (), ())
    return [
        ReportedOperation(f"{kind}_{number}", kind, {}, (), (), (inside,) if "layer" in kind else ())
        for number, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        ("Gather Prefill_layer Norm Gather Decoder_layer Norm", [3, 3]),
        ("Gather Prefill_layer Slice Norm Gather Decoder_layer Norm", [4, 3]),
        ("Gather Gather Gather layer layer Norm Linear", [7]),
        ("layer layer layer layer", [4]),
        ("Gather layer layer Norm", [4]),
        ("Gather layer layer Norm Gather layer layer Norm", [4, 4]),
    ],
)
def test_a_second_model_begins_as_the_first_one_did(kinds: str, sizes: list[int]) -> None:
    assert [len(model.operations) for model in models_of(layers(*kinds.split()))] == sizes


def planned(golden: Path, mine: Path) -> Plan:
    opened = open_dump(str(golden))
    return plan(opened, open_dump(str(mine), golden=opened))


@pytest.mark.parametrize(
    "spec",
    [
        DemoSpec(layers=2, decode_steps=2),
        DemoSpec(family="chatglm", layers=2, decode_steps=1, ranks=2),
    ],
    ids=lambda spec: spec.family,
)
def test_layer_reports_alone_give_all_pairs_and_what_they_compute_from(
    spec: DemoSpec, tmp_path: Path
) -> None:
    paths = make_demo(tmp_path, spec)
    whole = planned(paths.golden, paths.mine)
    for reports in paths.mine.glob("*/model"):
        shutil.rmtree(reports)
    again = planned(paths.golden, paths.mine)
    assert [(pair.id, pair.golden, pair.mine) for pair in again.pairs] == [
        (pair.id, pair.golden, pair.mine) for pair in whole.pairs
    ]
    assert again.parents == whole.parents
    assert any(note.startswith("no model report: ") for note in again.notes)


def test_the_first_place_of_layer_reports_is_known_too(tmp_path: Path) -> None:
    paths = make_demo(tmp_path, DemoSpec(layers=1, decode_steps=0, warmup=False))
    (root,) = paths.mine.glob("*dump*")
    shutil.rmtree(root / "model")
    (root / "layer").rename(root / "operation_graph")
    dump = open_dump(str(paths.mine))
    assert isinstance(dump, AtbDump)
    assert {node.op_type for tree in dump.models for node in tree.walk()} > {"LinearOperation"}
