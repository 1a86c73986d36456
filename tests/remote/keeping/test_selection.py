"""A part of a dump is kept: some steps, ranks or nodes, what the run was fed, and what says what it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import Dump, open_dump
from acc_pytest.errors import SettingsError
from acc_pytest.remote.keeping import DumpPart, Kept, keep
from tests.dumps.msprobe_writer import RankWriter, record
from tests.dumps.test_msprobe import Model
from tests.dumps.tool_dumps import SglangWriter, tensor, write_pass


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    """A torch dump of two steps on two ranks."""
    root = tmp_path / "msit_dump_20260101_000000"
    names = ("root.embed", "root.a", "root.b")
    children = [{"name": name, "type": "Linear", "children": []} for name in names]
    tree = {"name": "root", "type": "Model", "children": children}
    for rank in ("cpu0_7", "cpu1_8"):
        home = root / "torch_tensors" / rank
        for step in ("0", "1"):
            for name in names:
                (home / step / name).mkdir(parents=True)
                torch.save(torch.randn(2, 3), home / step / name / "output.pth")
            torch.save(torch.arange(3), home / step / "root.embed" / "input_0.pth")
        (home / "model_tree.json").write_text(json.dumps(tree))
    return root


def kept(dump: Path, steps: str = "", ranks: str = "", nodes: str = "") -> tuple[Kept, Dump]:
    """The part, as it was kept and as it opens."""
    selection = DumpPart.of(steps.split(), ranks.split(), nodes.split())
    made = keep(str(dump), str(dump.parent / "part"), selection=selection)
    return made, open_dump(made.path)


def held(dump: Dump) -> dict[tuple[object, str, str], list[str]]:
    """The slots of each step, rank and node."""
    found: dict[tuple[object, str, str], list[str]] = {}
    for step in dump.steps:
        for rank in dump.ranks:
            for node in step.tree.walk():
                slots = dump.tensors(step, rank, node)
                if slots:
                    found[step.label, rank.name, node.path] = [str(slot) for slot in slots]
    return found


def test_other_steps_and_ranks_are_gone(two_ranks: Path) -> None:
    made, part = kept(two_ranks, steps="1", ranks="1")
    assert [step.label for step in part.steps] == [1]
    assert [rank.name for rank in part.ranks] == ["cpu1_8"]
    assert len(held(part)) == 3
    assert (made.files, made.notes) == (5, ())


def test_of_other_nodes_what_the_run_was_fed_is_kept(two_ranks: Path) -> None:
    _, part = kept(two_ranks, nodes="*.b", ranks="0")
    assert held(part) == {
        (0, "cpu0_7", "root.embed"): ["input[0]"],
        (0, "cpu0_7", "root.b"): ["output[0]"],
        (1, "cpu0_7", "root.embed"): ["input[0]"],
        (1, "cpu0_7", "root.b"): ["output[0]"],
    }


def test_numbers_come_as_lists_and_stretches(two_ranks: Path) -> None:
    assert DumpPart.of(["0,3-5", "warmup"], ["2"], []) == DumpPart((0, 3, 4, 5, "warmup"), (2,))
    _, part = kept(two_ranks, steps="0-1", ranks="0,1")
    assert len(held(part)) == 12


def test_a_path_inside_the_dump_means_all_of_it(two_ranks: Path) -> None:
    selection = DumpPart(steps=(0,))
    keep(str(two_ranks / "torch_tensors/cpu0_7/1"), str(two_ranks.parent / "part"), selection=selection)
    part = open_dump(str(two_ranks.parent / "part"))
    assert [step.label for step in part.steps] == [0]
    assert len(part.ranks) == 2


@pytest.mark.parametrize(
    ("steps", "ranks", "nodes", "said"),
    [
        ("2", "", "", "--step 2: .* has none of that name; choose of 0, 1"),
        ("", "7", "", "--rank 7: .* has none of that name; choose of 0, 1"),
        ("", "", "*.b *.c", r"--node \*\.c: .* has no such node"),
        ("", "", "root", "holds no tensor of node root"),
        ("one", "", "", "--step must be numbers such as 0,3-5, got 'one'"),
        ("", "3-1", "", "--rank must be numbers such as 0,3-5, got '3-1'"),
        ("", "0-999999999", "", "--rank must be numbers"),
    ],
)
def test_a_selection_of_nothing_is_an_error(
    two_ranks: Path, steps: str, ranks: str, nodes: str, said: str
) -> None:
    for name in ("cpu0_7", "cpu1_8"):
        for step in ("0", "1"):
            os.remove(two_ranks / "torch_tensors" / name / step / "root.embed/input_0.pth")
    with pytest.raises(SettingsError, match=said):
        kept(two_ranks, steps, ranks, nodes)
    assert not (two_ranks.parent / "part").exists()


def test_steps_of_msprobe_go_with_their_records(tmp_path: Path) -> None:
    for step in (0, 1):
        writer = RankWriter(tmp_path / "dump" / f"step{step}" / "proc1")
        record(writer, Model(width=4), [[torch.randn(2, 4)]]).write()
    made, part = kept(tmp_path / "dump", steps="1")
    assert [step.label for step in part.steps] == [1]
    assert part.notes == made.notes == ()


def test_passes_of_one_step_are_numbered_by_those_that_are_left(tmp_path: Path) -> None:
    writer = SglangWriter(tmp_path / "dump")
    for seed in range(3):
        for path in ("model.norm", "lm_head"):
            writer.module(path, {"0": tensor(seed)}, [tensor(seed + 5)])
    made, part = kept(tmp_path / "dump", steps="2")
    assert made.notes == ("steps have other numbers without those before them: 0",)
    assert len(held(part)) == 2


def test_tensors_that_share_a_file_are_counted(tmp_path: Path) -> None:
    write_pass(tmp_path / "dump/TP0_PP0_Rank0_pid7", 0, {"a": torch.randn(3), "b": torch.randn(3)})
    made, part = kept(tmp_path / "dump", nodes="root.a")
    assert made.notes == ("not selected, and kept in the same files, whole or as statistics: 1 tensors",)
    assert len(held(part)) == 2
