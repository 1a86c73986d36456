"""SglangPasses: files of SGLang's forward hooks, one for each pass."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import Dump, Slot, open_dump
from acc_pytest.dumps.sglang import SglangPasses
from acc_pytest.errors import AccError, DumpError

from .tool_dumps import tensor, write_pass


def inside(number: int) -> dict[str, object]:
    """What a file has of its own pass: all but what the model does after its layers."""
    return {
        "model.embed": tensor(number),
        "model.layers.0.norm": [tensor(number + 1), tensor(number + 2)],
        "model.layers.0.mlp": tensor(number + 3),
        "model.forward_batch_info.input_ids": torch.arange(3),
        "model.forward_batch_info.positions": torch.arange(3),
    }


def after(number: int) -> dict[str, object]:
    """What stands in the file of the next pass."""
    return {"model": tensor(number + 4), "logits_processor": tensor(number + 5)}


def passes(folder: Path, count: int = 3, first: int = 0) -> Path:
    for number in range(first, first + count):
        head = after(10 * (number - 1)) if number else {}
        write_pass(folder, number, head | inside(10 * number))
    return folder


def opened(path: Path) -> SglangPasses:
    dump = open_dump(str(path))
    assert isinstance(dump, SglangPasses)
    return dump


def slots(dump: Dump, step: int = 0) -> dict[str, list[str]]:
    at = dump.steps[step]
    found = {node.path: dump.tensors(at, dump.ranks[0], node) for node in at.tree.walk()}
    return {path: [str(slot) for slot in tensors] for path, tensors in found.items() if tensors}


def value(dump: Dump, path: str, step: int, index: int = 0, rank: int = 0) -> torch.Tensor:
    at = dump.steps[step]
    return dump.tensors(at, dump.ranks[rank], at.tree.by_path[path])[Slot("output", (index,))].open()


def test_it_opens_at_every_depth(tmp_path: Path) -> None:
    home = passes(tmp_path / "out" / "TP0_PP0_Rank0_pid77")
    for path in (tmp_path, tmp_path / "out", home):
        dump = opened(path)
        assert dump.kind == "sglang-passes"
        assert [step.label for step in dump.steps] == [0, 1, 2]
        assert [rank.name for rank in dump.ranks] == ["rank0"]


def test_what_a_pass_did_last_is_in_the_next_file_and_belongs_to_it(tmp_path: Path) -> None:
    dump = opened(passes(tmp_path / "TP0_PP0_Rank0_pid77").parent)
    for step in (0, 1):
        assert torch.equal(value(dump, "root.model", step), tensor(10 * step + 4))
        assert torch.equal(value(dump, "root.logits_processor", step), tensor(10 * step + 5))
        assert torch.equal(value(dump, "root.model.embed", step), tensor(10 * step))
    assert slots(dump, 2)["root.model"] == ["input[input_ids]", "input[positions]"]
    assert "root.logits_processor" not in slots(dump, 2)
    assert dump.notes == ("pass 2: what the model did after its layers was not written any more",)


def test_lists_and_batches_are_slots(tmp_path: Path) -> None:
    dump = opened(passes(tmp_path / "TP0_PP0_Rank0_pid77").parent)
    assert slots(dump) == {
        "root.model": ["input[input_ids]", "input[positions]", "output[0]"],
        "root.model.embed": ["output[0]"],
        "root.model.layers.0.norm": ["output[0]", "output[1]"],
        "root.model.layers.0.mlp": ["output[0]"],
        "root.logits_processor": ["output[0]"],
    }
    assert torch.equal(value(dump, "root.model.layers.0.norm", 1, 1), tensor(12))
    began = [event.call.node.path for event in dump.calls(dump.steps[0]).events if not event.ends]
    assert began == [
        "root.model",
        "root.model.embed",
        "root.model.layers.0.norm",
        "root.model.layers.0.mlp",
        "root.logits_processor",
    ]


def test_a_tower_before_the_model_belongs_to_its_own_pass(tmp_path: Path) -> None:
    home = tmp_path / "TP0_PP0_Rank0_pid77"
    for number in range(2):
        tower = {"visual.patch": tensor(50 + number)}
        write_pass(home, number, (after(0) if number else {}) | tower | inside(10 * number))
    dump = opened(tmp_path)
    assert torch.equal(value(dump, "root.visual.patch", 1), tensor(51))
    assert torch.equal(value(dump, "root.logits_processor", 0), tensor(5))


def test_passes_without_the_first_one(tmp_path: Path) -> None:
    dump = opened(passes(tmp_path / "TP0_PP0_Rank0_pid77", first=3).parent)
    assert [step.label for step in dump.steps] == [2, 3, 4, 5]
    assert list(slots(dump)) == ["root.model", "root.logits_processor"]
    assert torch.equal(value(dump, "root.logits_processor", 1), tensor(35))


def test_ranks_are_directories_in_numeric_order(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        passes(tmp_path / f"TP{rank}_PP0_Rank{rank}_pid{90 - rank}", 2)
    dump = opened(tmp_path)
    assert [rank.name for rank in dump.ranks] == ["rank0", "rank2", "rank10"]
    assert [rank.name for rank in opened(tmp_path / "TP2_PP0_Rank2_pid88").ranks] == ["rank2"]


def test_directories_of_two_runs_ask_for_one(tmp_path: Path) -> None:
    for process in (1, 2):
        passes(tmp_path / f"TP0_PP0_Rank0_pid{process}")
    with pytest.raises(DumpError, match="several runs"):
        open_dump(str(tmp_path))
    assert len(opened(tmp_path / "TP0_PP0_Rank0_pid2").steps) == 3


def test_a_broken_pass_is_left_out(tmp_path: Path) -> None:
    home = passes(tmp_path / "TP0_PP0_Rank0_pid77")
    (home / "Pass00001.pt").write_bytes(b"PK\x03\x04")
    dump = opened(tmp_path)
    assert [step.label for step in dump.steps] == [0, 1, 2]
    assert "a pass is left out" in dump.notes[0]
    assert list(slots(dump, 1)) == ["root.model", "root.logits_processor"]
    for file in home.iterdir():
        file.write_bytes(b"PK\x03\x04")
    with pytest.raises(DumpError, match="no file of these forward passes can be read"):
        open_dump(str(tmp_path))


def test_odd_values_are_no_tensors(tmp_path: Path) -> None:
    home = tmp_path / "TP0_PP0_Rank0_pid77"
    odd = {"a": "text", 3: tensor(1), "b": [None, tensor(2)], "c": {"x": tensor(3)}, "/../d": tensor(4)}
    write_pass(home, 0, inside(0) | odd)  # type: ignore[arg-type]
    dump = opened(tmp_path)
    assert torch.equal(value(dump, "root.b", 0), tensor(2))
    assert torch.equal(value(dump, "root./../d", 0), tensor(4))
    assert "root.a" not in slots(dump)


def test_damaged_files_give_typed_errors(tmp_path: Path) -> None:
    sound = passes(tmp_path / "sound" / "TP0_PP0_Rank0_pid77")
    chance = random.Random(3)
    for number in range(80):
        home = tmp_path / str(number) / sound.name
        home.mkdir(parents=True)
        for file in sound.iterdir():
            content = bytearray(file.read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            (home / file.name).write_bytes(content)
        try:
            dump = opened(home.parent)
            for step in dump.steps:
                dump.calls(step)
                for node in step.tree.walk():
                    for ref in dump.tensors(step, dump.ranks[0], node).values():
                        ref.open()
        except AccError:
            continue
