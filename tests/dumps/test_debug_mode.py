"""Logs of DebugMode as dumps: modules, operators, steps, and the names of golden."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest.dumps import Dump, open_dump
from acc_pytest.dumps.debug_mode import DebugModeDump
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
