"""Tensors saved inside of captured graphs: against FX by the names of nodes, and against each other."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from acc_pytest.cli import main
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.torchair import FxDump
from acc_pytest.errors import AccError
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.lab.demo.torchair import TorchairPaths, TorchairSpec, make_torchair_demo
from acc_pytest.remote.keeping import keep
from tests.slow import slow

from .conftest import Run, read_rows

pytestmark = pytest.mark.usefixtures("replayed")

Rows = list[dict[str, str]]
MULTIPLES = {"native_layer_norm": 1}
"""Of how many of their results the graph makes use, where that is not all."""


@pytest.fixture(scope="module", autouse=True)
def demo(tmp_path_factory: pytest.TempPathFactory) -> TorchairPaths:
    """Two graphs with two steps each. For every test: see tests/e2e/test_torchair_compare.py."""
    return make_torchair_demo(tmp_path_factory.mktemp("torchair"), TorchairSpec(tokens=(5, 3), steps=2))


def calls(dump: FxDump) -> Iterator[tuple[str, str, int, torch.Tensor]]:
    """Name, target, number and value of each result of FX in the order of time."""
    found = []
    for step in dump.steps:
        for node in dump.nodes(step, dump.ranks[0]):
            entry = dump.entry(step, dump.ranks[0], node) or {}
            for slot, (name, path) in entry.items():
                if slot.kind == "output":
                    found.append((name.time, node, slot, path))
    for _, node, slot, path in sorted(found, key=lambda each: (each[0], each[2])):
        number = slot.index[0]
        assert isinstance(number, int)
        yield node.name, node.op_type, number, torch.from_numpy(np.load(path))


def save(value: torch.Tensor, home: Path, name: str, counts: Counter[str]) -> None:
    """As `torch_npu.save_npugraph_tensor` names its files."""
    path = home / f"{name}_device_0_{counts[name]}.pt"
    counts[name] += 1
    torch.save(value, path)
    os.utime(path, ns=(0, sum(counts.values()) * 1000))


def captured(fx: Path, home: Path, scaled: str = "", after: str = "") -> Path:
    """What TorchAir would have saved of a captured graph that computes what FX did; `scaled` is wrong,
    and so is `after`."""
    dump = open_dump(str(fx))
    assert isinstance(dump, FxDump)
    home.mkdir(parents=True)
    counts: Counter[str] = Counter()
    several = {
        node.name
        for step in dump.steps
        for node in step.tree.walk()
        if len([slot for slot in dump.tensors(step, dump.ranks[0], node) if slot.kind == "output"]) > 1
    }
    items: dict[tuple[str, int], str] = {}
    for name, target, number, value in calls(dump):
        wrong = value * 1.3 if name in (scaled, after) else value
        if name not in several:
            save(wrong, home, name, counts)
        elif number < next((most for word, most in MULTIPLES.items() if word in target), number + 1):
            item = items.setdefault((name, number), f"getitem_{len(items)}" if items else "getitem")
            save(wrong, home, item, counts)
    save(torch.ones(3), home, "arg0_1", counts)
    return home.parent


def rows_of(acc: Run, golden: Path, mine: Path) -> Rows:
    acc(DemoPaths(golden, mine))
    return read_rows()


def test_against_fx_every_node_meets_the_node_of_its_name(
    acc: Run, demo: TorchairPaths, tmp_path: Path
) -> None:
    root = captured(demo.golden, tmp_path / "npu" / "worldsize1_global_rank0")
    for golden, mine in ((demo.golden, root), (root, demo.golden)):
        rows = rows_of(acc, golden, mine)
        assert {row["verdict"] for row in rows} == {"pass", "unmapped"}
        assert [row["my_node"] or row["golden_node"] for row in rows if row["verdict"] == "unmapped"] == [
            "arg0_1"
        ]
        assert {row["policy"] for row in rows if row["verdict"] == "pass"} == {"name", "order"}
        assert len([row for row in rows if row["verdict"] == "pass"]) > 40


def test_a_wrong_node_is_red_and_the_first(acc: Run, demo: TorchairPaths, tmp_path: Path) -> None:
    root = captured(demo.golden, tmp_path / "npu" / "worldsize1_global_rank0", scaled="gelu")
    red = [row for row in rows_of(acc, demo.golden, root) if row["verdict"] in ("fail", "inherited")]
    assert {row["my_node"] for row in red} == {"gelu"}


def test_what_computes_from_a_wrong_node_inherits(acc: Run, demo: TorchairPaths, tmp_path: Path) -> None:
    """As golden's calls were given each other's results."""
    root = captured(demo.golden, tmp_path / "npu" / "worldsize1_global_rank0", scaled="addmm", after="gelu")
    rows = [row for row in rows_of(acc, demo.golden, root) if row["verdict"] in ("fail", "inherited")]
    assert {row["my_node"]: row["root"] for row in rows} == {"addmm": "addmm", "gelu": "addmm"}


@pytest.mark.parametrize("kept", [slow(False), True])
def test_against_each_other_by_name_and_call(
    acc: Run, demo: TorchairPaths, tmp_path: Path, kept: bool
) -> None:
    golden = captured(demo.golden, tmp_path / "golden" / "worldsize1_global_rank0")
    mine = captured(demo.golden, tmp_path / "mine" / "worldsize1_global_rank0", scaled="gelu")
    if kept:
        keep(str(mine), str(tmp_path / "kept"))
        mine = tmp_path / "kept"
    rows = rows_of(acc, golden, mine)
    assert {row["my_node"] for row in rows if row["verdict"] == "fail"} == {"gelu"}
    assert {row["golden_node"] == row["my_node"] for row in rows} == {True}
    assert "unmapped" not in {row["verdict"] for row in rows}


def test_a_dump_of_ge_is_refused(
    demo: TorchairPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = captured(demo.golden, tmp_path / "npu" / "worldsize1_global_rank0")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(["map", "-gp", str(root), "-mp", str(demo.mine)]) == 4
    assert "compare both with a dump of FX" in capsys.readouterr().err
    with pytest.raises(AccError):
        open_dump(str(tmp_path / "nothing"))
