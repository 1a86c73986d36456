"""Logs of DebugMode as dumps: modules, operators, steps, and the names of golden."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest.dumps import Dump, Slot, open_dump
from acc_pytest.dumps.debug_mode import DebugModeDump
from acc_pytest.dumps.graph_capture import GraphCaptureDump
from acc_pytest.errors import DumpError

HASH = "  # {'hash': 1.0}"
LOG = (
    "[nn.Mod] M",
    "  [nn.Mod] M.a",
    f"    aten::mul.Tensor(t$0: f32[2])  ->  t$1: f32[2]{HASH}",
    f"    aten::mul.Tensor(t$1: f32[2])  ->  t$2: f32[2]{HASH}",
    "  [nn.Mod] M.a",
    f"    aten::mul.Tensor(t$2: f32[2])  ->  t$3: f32[2]{HASH}",
    f"  aten::add(t$3: f32[2])  ->  t$4: f32[2]{HASH}",
)


def opened(path: Path, *lines: str, other: Dump | None = None) -> Dump:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines))
    return open_dump(str(path), golden=other)


def paths(dump: Dump, step: int = 0) -> list[str]:
    return [node.path for node in dump.steps[step].tree.walk()]


def test_operators_are_nodes_below_their_modules(tmp_path: Path) -> None:
    dump = opened(tmp_path / "log.txt", *LOG)
    assert isinstance(dump, DebugModeDump)
    assert (dump.kind, dump.name) == ("debug_mode", "log")
    assert paths(dump) == [
        "root",
        "root.a",
        "root.a.mul",
        "root.a.mul_1",
        "root.a.call1",
        "root.a.call1.mul",
        "root.add",
    ]
    tree = dump.steps[0].tree
    assert (tree.root.op_type, tree.by_path["root.a.mul"].op_type) == ("M", "aten.mul.Tensor")
    node = tree.by_path["root.a.mul_1"]
    assert [str(slot) for slot in dump.tensors(dump.steps[0], dump.ranks[0], node)] == [
        "input[0]",
        "output[0]",
    ]


def test_each_run_of_the_model_is_a_step(tmp_path: Path) -> None:
    dump = opened(tmp_path / "log.txt", *LOG, *LOG)
    assert [step.label for step in dump.steps] == [0, 1]
    assert paths(dump, 1) == paths(dump, 0)


def test_functions_of_torch_are_no_nodes(tmp_path: Path) -> None:
    """Where they are logged, the lines of a module are indented as far as the module itself."""
    dump = opened(
        tmp_path / "log.txt",
        "[nn.Mod] M",
        "torch._tensor.register_hook(t$0: f32[2])  ->  <handle>",
        "  [nn.Mod] M.a",
        "  torch.mul(t$0: f32[2])  ->  t$1: f32[2]",
        f"      aten::mul.Tensor(t$0: f32[2])  ->  t$1: f32[2]{HASH}",
        "  [nn.Mod] M.b",
        "  torch.neg(t$1: f32[2])  ->  t$2: f32[2]",
        f"      aten::neg(t$1: f32[2])  ->  t$2: f32[2]{HASH}",
        "torch.add(t$2: f32[2])  ->  t$3: f32[2]",
        f"    aten::add.Tensor(t$2: f32[2])  ->  t$3: f32[2]{HASH}",
    )
    assert paths(dump) == ["root", "root.a", "root.a.mul", "root.b", "root.b.neg", "root.add"]


def test_without_modules_the_model_is_a_flat_list(tmp_path: Path) -> None:
    dump = opened(tmp_path / "log.txt", *(line.strip() for line in LOG if "nn.Mod" not in line))
    assert paths(dump) == ["root", "root.mul", "root.mul_1", "root.mul_2", "root.add"]


def test_operators_of_mine_have_the_names_of_golden(tmp_path: Path) -> None:
    golden = opened(tmp_path / "golden.txt", *LOG)
    cast = f"    aten::mul.Tensor(t$7: f32[3])  ->  t$8: f32[3]{HASH}"
    mine = opened(tmp_path / "mine.txt", *LOG[:2], cast, *LOG[2:], other=golden)
    assert paths(mine)[2:5] == ["root.a.mul_2", "root.a.mul", "root.a.mul_1"]


@pytest.mark.parametrize("at", [".", "log.txt"])
def test_the_directory_of_one_log_is_that_log(tmp_path: Path, at: str) -> None:
    opened(tmp_path / "log.txt", *LOG)
    (tmp_path / "notes.txt").write_text("nothing")
    assert open_dump(str(tmp_path / at)).kind == "debug_mode"


def test_of_several_logs_one_has_to_be_named(tmp_path: Path) -> None:
    opened(tmp_path / "a.txt", *LOG)
    opened(tmp_path / "b.txt", *LOG)
    with pytest.raises(DumpError, match="holds 2 dumps; give the path of one of them"):
        open_dump(str(tmp_path))


def test_a_log_without_norms_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="log_tensor_hashes"):
        opened(tmp_path / "log.txt", "[nn.Mod] M", "  aten::add(t: f32[2])  ->  t: f32[2]")


def test_what_nests_too_deeply_is_refused(tmp_path: Path) -> None:
    lines = ["  " * depth + f"[nn.Mod] M{'.a' * depth}" for depth in range(300)]
    with pytest.raises(DumpError, match="nests calls"):
        opened(tmp_path / "log.txt", *lines, "  " * 300 + f"aten::add(t: f32[2])  ->  t: f32[2]{HASH}")


def test_a_text_that_is_no_log_is_no_dump(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="neither a dump nor a tensor file"):
        opened(tmp_path / "log.txt", "Traceback (most recent call last):")


@pytest.fixture
def debug_mode() -> Callable[[nn.Module, torch.Tensor], str]:
    module = pytest.importorskip("torch.utils._debug_mode", reason="this torch has no DebugMode")
    if not hasattr(module.DebugMode, "log_tensor_hashes"):
        pytest.skip("DebugMode of this torch logs no norms")

    def run(model: nn.Module, given: torch.Tensor) -> str:
        mode = module.DebugMode(record_nn_module=True, record_ids=True)
        with torch.no_grad(), mode, module.DebugMode.log_tensor_hashes(hash_inputs=True):
            model(given)
        return str(mode.debug_string())

    return run


def test_what_torch_writes_is_read(
    tmp_path: Path, debug_mode: Callable[[nn.Module, torch.Tensor], str]
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    given = torch.randn(2, 8)
    dump = opened(tmp_path / "log.txt", debug_mode(model, given))
    last = [node for node in dump.steps[0].tree.walk() if "layer_norm" in node.op_type]
    assert [node.path for node in last] == ["root.1.native_layer_norm"]
    tensors = dump.tensors(dump.steps[0], dump.ranks[0], last[0])
    made = {str(slot): ref.header().statistics for slot, ref in tensors.items()}["output[0]"]
    assert made is not None
    assert made.l1norm == pytest.approx(float(model(given).detach().double().abs().sum()))


# Names of tensors saved inside of captured graphs: node, device, call, rank.


def save(path: Path, value: float = 0.0, time: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        torch.save(torch.full((2,), value), file)
    os.utime(path, ns=(time, time))
    return path


def opened_capture(path: Path) -> GraphCaptureDump:
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
    dump = opened_capture(tmp_path / "run" / at)
    assert dump.kind == "graph_capture"
    assert [(rank.index, rank.name) for rank in dump.ranks] == [(0, "worldsize1_global_rank0")]
    assert [step.label for step in dump.steps] == [0, 1, 2]
    assert (nodes(dump), nodes(dump, 1)) == (["add", "mul_1"], ["add"])
    assert [value(dump, step, "add") for step in range(3)] == [1, 2, 4]


def test_nodes_stand_in_the_order_of_their_times(tmp_path: Path) -> None:
    save(tmp_path / "z_device_0_0.pt", time=1)
    save(tmp_path / "a_device_0_0.pt", time=2)
    assert nodes(opened_capture(tmp_path)) == ["z", "a"]


def test_ranks_are_those_of_the_directories(tmp_path: Path) -> None:
    for rank in (1, 0):
        save(tmp_path / f"worldsize2_global_rank{rank}" / f"add_device_{rank}_0.pt", rank)
    dump = opened_capture(tmp_path)
    assert [rank.index for rank in dump.ranks] == [0, 1]
    assert [value(dump, 0, "add", rank) for rank in (0, 1)] == [0, 1]


def test_without_such_directories_devices_are_ranks(tmp_path: Path) -> None:
    save(tmp_path / "add_device_3_0.pt", 3)
    save(tmp_path / "add_device_7_0.pt", 7)
    dump = opened_capture(tmp_path)
    assert [(rank.index, rank.name) for rank in dump.ranks] == [(3, "device3"), (7, "device7")]
    assert [value(dump, 0, "add", rank) for rank in (0, 1)] == [3, 7]


def test_a_file_that_was_replaced_has_no_number(tmp_path: Path) -> None:
    save(tmp_path / "hidden_device_0.pth", 5)
    assert value(opened_capture(tmp_path), 0, "hidden") == 5


def test_files_of_torch_may_have_the_suffix_of_atb(tmp_path: Path) -> None:
    save(tmp_path / "hidden_device_0_0.bin", 5)
    assert value(opened_capture(tmp_path), 0, "hidden") == 5


def test_tensors_without_a_name_are_numbered_by_their_time(tmp_path: Path) -> None:
    save(tmp_path / "tensor_20260101000000002_device_0_0.pt", 2)
    save(tmp_path / "tensor_20260101000000001_device_0_0.pt", 1)
    dump = opened_capture(tmp_path)
    assert [value(dump, step, "tensor") for step in (0, 1)] == [1, 2]


def test_other_tensors_beside_them_make_a_directory_of_plain_files(tmp_path: Path) -> None:
    save(tmp_path / "hidden_device_0_0.pt")
    save(tmp_path / "mine.pt")
    assert open_dump(str(tmp_path)).kind == "tensor"


def test_a_broken_file_costs_its_own_tensor(tmp_path: Path) -> None:
    save(tmp_path / "a_device_0_0.pt", 1)
    (tmp_path / "b_device_0_0.pt").write_bytes(b"cut")
    assert value(opened_capture(tmp_path), 0, "a") == 1


def test_two_such_dumps_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(tmp_path / name / "worldsize1_global_rank0" / "a_device_0_0.pt")
    with pytest.raises(DumpError, match=r"one \(captured graph\)"):
        open_dump(str(tmp_path))
