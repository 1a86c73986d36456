"""Names of tensors saved inside of captured graphs: node, device, call, rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import Slot, open_dump
from acc_pytest.dumps.graph_capture import GraphCaptureDump
from acc_pytest.errors import DumpError


def save(path: Path, value: float = 0.0, time: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        torch.save(torch.full((2,), value), file)
    os.utime(path, ns=(time, time))
    return path


def opened(path: Path) -> GraphCaptureDump:
    dump = open_dump(str(path))
    assert isinstance(dump, GraphCaptureDump)
    return dump


def nodes(dump: GraphCaptureDump, step: int = 0) -> list[str]:
    return [node.path for node in dump.steps[step].tree.root.children]


def value(dump: GraphCaptureDump, step: int, node: str, rank: int = 0) -> float:
    tree = dump.steps[step].tree
    tensors = dump.tensors(dump.steps[step], dump.ranks[rank], tree.by_path[node])
    return float(tensors[Slot("output")].open()[0])


@pytest.mark.parametrize("at", ["", "worldsize1_global_rank0"])
def test_a_file_is_a_call_of_a_node(tmp_path: Path, at: str) -> None:
    home = tmp_path / "run" / "worldsize1_global_rank0"
    save(home / "mul_1_device_0_0.pt", 3, time=3)
    save(home / "add_device_0_0.pt", 1, time=1)
    save(home / "add_device_0_1.pt", 2, time=2)
    save(home / "add_device_0_10.pt", 4, time=4)
    dump = opened(tmp_path / "run" / at)
    assert dump.kind == "graph_capture"
    assert [(rank.index, rank.name) for rank in dump.ranks] == [(0, "worldsize1_global_rank0")]
    assert [step.label for step in dump.steps] == [0, 1, 2]
    assert (nodes(dump), nodes(dump, 1)) == (["add", "mul_1"], ["add"])
    assert [value(dump, step, "add") for step in range(3)] == [1, 2, 4]


def test_nodes_stand_in_the_order_of_their_times(tmp_path: Path) -> None:
    save(tmp_path / "z_device_0_0.pt", time=1)
    save(tmp_path / "a_device_0_0.pt", time=2)
    assert nodes(opened(tmp_path)) == ["z", "a"]


def test_ranks_are_those_of_the_directories(tmp_path: Path) -> None:
    for rank in (1, 0):
        save(tmp_path / f"worldsize2_global_rank{rank}" / f"add_device_{rank}_0.pt", rank)
    dump = opened(tmp_path)
    assert [rank.index for rank in dump.ranks] == [0, 1]
    assert [value(dump, 0, "add", rank) for rank in (0, 1)] == [0, 1]


def test_without_such_directories_devices_are_ranks(tmp_path: Path) -> None:
    save(tmp_path / "add_device_3_0.pt", 3)
    save(tmp_path / "add_device_7_0.pt", 7)
    dump = opened(tmp_path)
    assert [(rank.index, rank.name) for rank in dump.ranks] == [(3, "device3"), (7, "device7")]
    assert [value(dump, 0, "add", rank) for rank in (0, 1)] == [3, 7]


def test_a_file_that_was_replaced_has_no_number(tmp_path: Path) -> None:
    save(tmp_path / "hidden_device_0.pth", 5)
    assert value(opened(tmp_path), 0, "hidden") == 5


def test_files_of_torch_may_have_the_suffix_of_atb(tmp_path: Path) -> None:
    save(tmp_path / "hidden_device_0_0.bin", 5)
    assert value(opened(tmp_path), 0, "hidden") == 5


def test_tensors_without_a_name_are_numbered_by_their_time(tmp_path: Path) -> None:
    save(tmp_path / "tensor_20260101000000002_device_0_0.pt", 2)
    save(tmp_path / "tensor_20260101000000001_device_0_0.pt", 1)
    dump = opened(tmp_path)
    assert [value(dump, step, "tensor") for step in (0, 1)] == [1, 2]


def test_other_tensors_beside_them_make_a_directory_of_plain_files(tmp_path: Path) -> None:
    save(tmp_path / "hidden_device_0_0.pt")
    save(tmp_path / "mine.pt")
    assert open_dump(str(tmp_path)).kind == "tensor"


def test_a_broken_file_costs_its_own_tensor(tmp_path: Path) -> None:
    save(tmp_path / "a_device_0_0.pt", 1)
    (tmp_path / "b_device_0_0.pt").write_bytes(b"cut")
    assert value(opened(tmp_path), 0, "a") == 1


def test_two_such_dumps_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(tmp_path / name / "worldsize1_global_rank0" / "a_device_0_0.pt")
    with pytest.raises(DumpError, match=r"one \(captured graph\)"):
        open_dump(str(tmp_path))
