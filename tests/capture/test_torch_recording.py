"""The hooks while a model runs: true values, untouched results, errors, threads, counting, removal."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import acc_pytest
from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.modules import ModuleDump
from acc_pytest.errors import CaptureError
from acc_pytest.mapping.planner import plan

from .models import Raises, Stack, entries, files, tensor

ALL: dict[str, Any] = {
    "mode": ["module", "api"],
    "dump_statistics_mode": 2,
    "analyze": True,
    "dump_weight": True,
}


def test_inputs_are_those_before_the_module_ran_and_outputs_those_right_after(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.ReLU(inplace=True))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.eye(2))
        model.get_parameter("0.bias").zero_()
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        model(torch.tensor([[-1.0, 2.0]]))
    home = handle.dump_path
    assert tensor(home, "root.0/output").tolist() == [[-1, 2]]
    assert tensor(home, "root.1/input_0").tolist() == [[-1, 2]]
    assert tensor(home, "root.1/output").tolist() == [[0, 2]]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("options", [{}, {"mode": "api"}, ALL, {"dump_last_logits": True}], ids=repr)
def test_results_and_gradients_are_the_same_bits_with_and_without_dumping(
    tmp_path: Path, options: dict[str, Any], grad: bool
) -> None:
    def run(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(5)
        x = torch.randn(3, 4, requires_grad=grad)
        with torch.set_grad_enabled(grad):
            result = nn.functional.dropout(model(x), 0.5)
        if not grad:
            return [result]
        result.square().sum().backward()
        gradients = [parameter.grad for parameter in (x, *model.parameters())]
        return [result, *(gradient.clone() for gradient in gradients if gradient is not None)]

    model = Stack()
    plain = run(model)
    model.zero_grad()
    with register_hook(model, DumpConfig(tmp_path, **options)):
        hooked = run(model)
    model.zero_grad()
    after = run(model)
    for one, other, third in zip(plain, hooked, after):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
        assert torch.equal(one, third)


def test_inference_mode_and_autocast_are_no_hindrance(tmp_path: Path) -> None:
    model = Stack()
    with register_hook(model, DumpConfig(tmp_path, range(2), **ALL)) as handle:
        # each apart: torch 2.1 would give the second the weights that it cast, and kept, in inference mode
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            first = model(torch.ones(1, 4))
        with torch.autocast("cpu", torch.bfloat16):
            model(torch.ones(1, 4))
    assert first.dtype == torch.bfloat16
    assert torch.equal(tensor(handle.dump_path, "root/output"), first)
    assert tensor(handle.dump_path, "root/output").dtype == torch.bfloat16


def test_an_error_in_the_model_is_the_models_own_and_the_next_step_is_whole(tmp_path: Path) -> None:
    model = Raises()
    x = torch.ones(1, 2)
    handle = register_hook(model, DumpConfig(tmp_path, range(3), mode=["module", "api"]))
    model(x)
    with pytest.raises(ZeroDivisionError, match="mine"):
        model(x, ZeroDivisionError("mine"))
    model(x)
    home = handle.dump_path
    assert files(home, 2) == files(home, 0)
    assert "root.failing/input_0" in files(home, 1)
    assert not any("failing/output" in name or "behind" in name for name in files(home, 1))
    assert torch.equal(tensor(home, "root.failing.mul/output", 2), tensor(home, "root.failing/output", 2))
    complete = [json.loads((home / str(n) / "manifest.json").read_text())["complete"] for n in range(3)]
    assert complete == [True, False, True]
    assert json.loads((home / "model_tree.json").read_text())["type"] == "Raises"
    handle.remove()


def test_an_error_that_was_being_handled_when_the_model_was_called_is_not_the_models(tmp_path: Path) -> None:
    model = Stack()
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        try:
            raise ValueError
        except ValueError:
            model(torch.ones(1, 4))
    assert "root/output" in files(handle.dump_path)
    assert json.loads((handle.dump_path / "0" / "manifest.json").read_text())["complete"]


def test_an_interrupt_from_the_keyboard_leaves_the_hooks_usable(tmp_path: Path) -> None:
    model = Raises()
    x = torch.ones(1, 2)
    with register_hook(model, DumpConfig(tmp_path, range(4), mode=["module", "api"])) as handle:
        with pytest.raises(KeyboardInterrupt):
            model(x, KeyboardInterrupt())
        torch.ones(1).exp()  # of nobody any more
        model.before(x)
        model(x)
        model(x)
    home = handle.dump_path
    assert not any("exp" in name or "call1" in name for name in files(home, 0))
    assert not json.loads((home / "0" / "manifest.json").read_text())["complete"]
    assert files(home, 1) == files(home, 2)
    assert "root.behind/output" in files(home, 2)
    assert not (home / "3").exists()
    assert torch.overrides._get_current_function_mode() is None


def test_an_interrupted_model_whose_hooks_are_removed_leaves_nothing_behind(tmp_path: Path) -> None:
    model = Raises()
    handle = register_hook(model, DumpConfig(tmp_path, mode=["module", "api"]))
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1, 2), KeyboardInterrupt())
    handle.remove()
    assert torch.overrides._get_current_function_mode() is None
    assert "root.failing/input_0" in files(handle.dump_path)


def test_hooks_removed_while_the_model_runs_end_the_step(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity())
    handle = register_hook(model, DumpConfig(tmp_path, mode=["module", "api"]))
    model[1].register_forward_hook(lambda *_: handle.remove())
    model(torch.ones(1))
    model(torch.ones(1))
    assert torch.overrides._get_current_function_mode() is None
    assert {name.partition("/")[0] for name in files(handle.dump_path)} == {"root", "root.0", "root.1"}
    assert handle.report.steps == 1


def test_a_root_that_calls_itself_is_one_step(tmp_path: Path) -> None:
    class Recursive(nn.Module):
        def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
            return self(x + 1, depth - 1) if depth else x

    model = Recursive()
    with register_hook(model, DumpConfig(tmp_path, range(9))) as handle:
        model(torch.zeros(1))
    assert handle.token_id == 1
    assert {name.partition("/")[0] for name in files(handle.dump_path)} == {
        "root",
        "root.call1",
        "root.call2",
    }
    assert tensor(handle.dump_path, "root.call2/input_0").tolist() == [2]
    assert len(list(open_dump(str(handle.dump_path)).steps[0].tree.walk())) == 3


def test_removing_takes_everything_off_and_may_be_repeated(tmp_path: Path) -> None:
    model = Stack()
    linear, matmul, softmax = nn.functional.linear, torch.matmul, torch.Tensor.softmax
    handle = register_hook(model, DumpConfig(tmp_path, **ALL))
    other = register_hook(model, DumpConfig(tmp_path))
    model(torch.ones(1, 4))
    assert (linear, matmul, softmax) == (nn.functional.linear, torch.matmul, torch.Tensor.softmax)
    handle.remove()
    handle.remove()
    model(torch.ones(1, 4))
    assert handle.report.steps == 1
    assert other.token_id == 2
    other.remove()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_with_kwargs
        assert not module._forward_hooks_always_called
        assert not module._forward_pre_hooks_with_kwargs


def test_nothing_keeps_a_model_alive_that_is_gone(tmp_path: Path) -> None:
    model = Stack()
    register_hook(model, DumpConfig(tmp_path))
    model(torch.ones(1, 4))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_several_configs_on_one_model_do_not_disturb_each_other(tmp_path: Path) -> None:
    model = Stack()
    with (
        register_hook(model, DumpConfig(tmp_path, [0], mode="api")) as one,
        register_hook(model, DumpConfig(tmp_path, [1], ["Linear"])) as other,
    ):
        for _ in range(2):
            model(torch.ones(1, 4))
    assert {"root.layers.0.act.relu/output", "root.head.linear/input_0"} < set(files(one.dump_path))
    assert not any(name.startswith("root.head/") for name in files(one.dump_path))
    assert not (one.dump_path / "1").exists()
    assert {name.partition("/")[0].rpartition(".")[2] for name in files(other.dump_path, 1)} == {
        "linear",
        "head",
    }


def test_copies_of_a_hooked_model_are_not_hooked(tmp_path: Path) -> None:
    model = Stack()
    handle = register_hook(model, DumpConfig(tmp_path, range(9)))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(torch.ones(1, 4)), model(torch.ones(1, 4)))
    assert handle.token_id == 2
    assert handle.report.steps == 2


def test_the_count_of_tokens_can_be_given_and_read(tmp_path: Path) -> None:
    model = Stack()
    with register_hook(model, DumpConfig(tmp_path, [3, 4])) as handle:
        model(torch.ones(1, 4))
        assert handle.token_id == 1
        handle.token_id = 3
        model(torch.full((1, 4), 3.0))
        assert handle.token_id == 4
        with pytest.raises(
            CaptureError, match=r"token_id=3 is already dumped; call reset\(\) to start a new dump"
        ):
            handle.token_id = 3
        wrong: Any
        for wrong in (-1, True, "3"):
            with pytest.raises(CaptureError, match="token_id"):
                handle.token_id = wrong
    assert tensor(handle.dump_path, "root/input_0", 3)[0, 0] == 3
    assert [step.label for step in open_dump(str(handle.dump_path)).steps] == [3]


def test_a_step_is_never_written_over(tmp_path: Path) -> None:
    model = Stack()
    with register_hook(model, DumpConfig(tmp_path, range(9))) as handle:
        handle.token_id = 1
        model(torch.ones(1, 4))
        handle.token_id = 0
        model(torch.zeros(1, 4))
        with pytest.warns(UserWarning, match="step 1 was dumped before"):
            model(torch.zeros(1, 4))
    assert tensor(handle.dump_path, "root/input_0", 1)[0, 0] == 1


def test_reset_starts_a_new_dump_only_where_there_is_one_already(tmp_path: Path) -> None:
    model = Stack()
    handle = register_hook(model, DumpConfig(tmp_path, range(2), dump_weight=True))
    first = handle.dump_path
    handle.reset()
    assert handle.dump_path == first
    for value in (1.0, 2.0):
        model(torch.full((1, 4), value))
    handle.reset()
    model(torch.full((1, 4), 3.0))
    handle.remove()
    second = handle.dump_path
    assert second != first
    assert [int(tensor(home, "root/input_0")[0, 0]) for home in (first, second)] == [1, 3]
    assert (second / "weights").is_dir()
    assert not (second / "1").exists()
    assert handle.report.steps == 1


def test_reset_of_a_dump_with_a_fixed_name_is_refused(tmp_path: Path) -> None:
    model = Stack()
    with register_hook(model, DumpConfig(tmp_path, run_name="x", process_name="cpu_1")) as handle:
        model(torch.ones(1, 4))
        with pytest.raises(CaptureError, match="fixed run_name"):
            handle.reset()


def test_a_write_error_is_raised_at_the_end_of_the_step_and_the_rest_is_there(tmp_path: Path) -> None:
    model = Stack()
    handle = register_hook(model, DumpConfig(tmp_path, range(2)))
    home = handle.dump_path
    (home / "0").mkdir()
    (home / "0" / "root.layers.1").write_text("in the way")
    with pytest.raises(CaptureError, match=r"step 0 is incomplete: .*root\.layers\.1.*cannot be") as caught:
        model(torch.ones(1, 4))
    assert "\n" not in str(caught.value)
    assert "root.head/output" in files(home)
    statuses = {entry["file"]: entry["status"] for entry in entries(home)}
    assert statuses["root.layers.1/input_0.pth"] == "failed"
    assert statuses["root.layers.0/input_0.pth"] == "written"
    assert not json.loads((home / "0" / "manifest.json").read_text())["complete"]
    assert list(home.rglob(".*")) == []
    model(torch.ones(1, 4))
    assert len(files(home, 1)) == len(files(home, 0)) + 2
    handle.remove()


def test_a_write_error_of_a_step_that_failed_itself_is_raised_when_the_hooks_are_removed(
    tmp_path: Path,
) -> None:
    model = Raises()
    handle = register_hook(model, DumpConfig(tmp_path))
    (handle.dump_path / "0").mkdir()
    (handle.dump_path / "0" / "root.before").write_text("in the way")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError):
            model(torch.ones(1, 2), ZeroDivisionError())
    with pytest.raises(CaptureError, match=r"step 0 is incomplete.*root\.before"):
        handle.remove()
    handle.remove()


def test_each_thread_has_a_step_of_its_own(tmp_path: Path) -> None:
    barrier = threading.Barrier(2, timeout=20)

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            barrier.wait()
            y = self.inner(x * 1)
            barrier.wait()
            return y.exp()

    model = Slow()
    with register_hook(model, DumpConfig(tmp_path, range(2), mode=["module", "api"])) as handle:
        threads = [threading.Thread(target=model, args=(torch.full((1,), float(n)),)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    home = handle.dump_path
    assert files(home, 0) == files(home, 1)
    assert {"root.inner/input_0", "root.mul/output", "root.exp/output", "root/output"} < set(files(home, 0))
    for step in (0, 1):
        x = tensor(home, "root/input_0", step)
        assert torch.equal(tensor(home, "root.inner/input_0", step), x)
        assert torch.equal(tensor(home, "root.exp/output", step), x.exp())
    assert {tensor(home, "root/input_0", step).item() for step in (0, 1)} == {0, 1}


def test_modules_that_run_where_the_root_was_not_called_are_left_alone(tmp_path: Path) -> None:
    class Spreading(nn.Module):  # as DataParallel calls its replicas
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            results = []
            thread = threading.Thread(target=lambda: results.append(self.inner(x)))
            thread.start()
            thread.join(20)
            return results[0]

    model = Spreading()
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        model(torch.ones(1, 2))
        model.inner(torch.ones(1, 2))
    assert files(handle.dump_path) == ["root/input_0", "root/output"]


def test_tracers_see_the_model_and_not_the_hooks(tmp_path: Path) -> None:
    model = Stack()
    x = torch.ones(1, 4)
    with register_hook(model, DumpConfig(tmp_path, range(9), mode=["module", "api"])) as handle:
        traced = torch.jit.trace(model, x, check_trace=False)
        assert handle.report.steps == handle.token_id == 0
    assert torch.equal(traced(x), model(x))


def test_scripting_a_function_works_while_a_model_is_hooked(tmp_path: Path) -> None:
    with register_hook(Stack(), DumpConfig(tmp_path, mode="api")):

        def double(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) * 2

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            scripted = torch.jit.script(double)
        assert scripted(torch.ones(1)).item() == 2


def test_a_scripted_child_is_told_and_left_out_for_torch_allows_no_hooks_on_it(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    model = nn.Sequential(nn.Linear(2, 2), scripted, nn.Identity())
    with pytest.warns(UserWarning, match=r"root\.1: is scripted and not dumped"):
        handle = register_hook(model, DumpConfig(tmp_path))
    model(torch.ones(1, 2))
    handle.remove()
    assert {name.partition("/")[0] for name in files(handle.dump_path)} == {"root", "root.0", "root.2"}
    with pytest.raises(CaptureError, match="scripted"):
        register_hook(scripted, DumpConfig(tmp_path))


def test_a_hook_of_the_user_that_changes_what_a_module_gets_is_seen(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Identity())
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        model(torch.ones(1))
    assert tensor(handle.dump_path, "root.0/input_0").tolist() == [3]
    assert tensor(handle.dump_path, "root/input_0").tolist() == [1]


def test_the_report_counts_what_was_written(tmp_path: Path) -> None:
    model = Stack()
    inputs = [torch.ones(rows, 4) for rows in (1, 2, 1)]
    handle = register_hook(model, DumpConfig(tmp_path, range(2), max_elements=4))
    with pytest.warns(UserWarning, match=r"more than max_elements=4: 8 elements"):
        [model(x) for x in inputs]
    handle.remove()
    report = handle.report
    assert report.steps == 2
    assert report.tensors == len(files(handle.dump_path, 0)) + len(files(handle.dump_path, 1))
    skipped = [e for e in entries(handle.dump_path, 1) if e["status"] == "skipped"]
    assert report.skipped == {"more than max_elements=4": len(skipped)}
    assert len(skipped) + len(files(handle.dump_path, 1)) == len(files(handle.dump_path, 0))
    assert str(handle.dump_path) in repr(handle)
    assert f"{len(skipped)} tensors were not saved" in open_dump(str(handle.dump_path)).notes[-1]


class Inner(nn.Module):
    """A language model whose embedding others call too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(x)
        return made


class Outer(nn.Module):
    """Calls the embedding of its language model, then its tower, then the language model."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.inner = nn.Sequential(nn.Linear(4, 4)), Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(self.inner.embed(x) + self.tower(x))
        return made


def test_a_module_that_is_called_from_elsewhere_ran_there(tmp_path: Path) -> None:
    model = Outer()
    with torch.no_grad(), register_hook(model, DumpConfig(tmp_path)) as handle:
        model(torch.ones(2, 4))
    dump = open_dump(str(handle.dump_path))
    assert isinstance(dump, ModuleDump)
    calls = {event.call.node.path: event.call.inside for event in dump.calls(dump.steps[0]).events}
    inside = {path: around.node.path for path, around in calls.items() if around is not None}
    assert inside == {
        "root.inner.embed": "root",
        "root.tower": "root",
        "root.tower.0": "root.tower",
        "root.inner": "root",
        "root.inner.head": "root.inner",
    }


# Models whose `forward` is called directly, as SGLang's workers do.


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        if scale == 0:
            raise ValueError("nothing to scale")
        result: torch.Tensor = self.norm(self.linear(x)) * scale
        return result


def files_of_step(dump: Path) -> list[str]:
    return sorted(str(path.relative_to(dump)) for path in dump.rglob("*.pth"))


def dumped(folder: Path, model: nn.Module, *, direct: bool) -> Path:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    with register_hook(model, DumpConfig(folder, range(2), run_name="run", process_name="cpu_0")) as handle:
        call = model.forward if direct else model
        call(x, scale=2.0)
        call(x + 1)
    return handle.dump_path


def test_a_direct_call_is_dumped_as_a_call_of_the_model_is(tmp_path: Path) -> None:
    model = Scaled()
    called = dumped(tmp_path / "called", model, direct=False)
    direct = dumped(tmp_path / "direct", model, direct=True)
    assert files_of_step(direct) == files_of_step(called)
    assert {"0/root.linear/output.pth", "1/root/output.pth"} <= set(files_of_step(direct))
    for name in files_of_step(direct):
        assert torch.equal(*(torch.load(dump / name, weights_only=True) for dump in (called, direct))), name
    manifests = [(dump / "0" / "manifest.json").read_text() for dump in (called, direct)]
    assert ["started" in text for text in manifests] == [True, True]
    assert [len(open_dump(str(dump.parents[1])).steps) for dump in (called, direct)] == [2, 2]


def test_a_direct_call_that_raises_ends_its_step(tmp_path: Path) -> None:
    model = Scaled()
    config = DumpConfig(tmp_path, range(3), run_name="run", process_name="cpu_0")
    with register_hook(model, config) as handle:
        with pytest.raises(ValueError, match="nothing to scale"):
            model.forward(torch.ones(1, 4), scale=0)
        model.forward(torch.ones(1, 4))
    assert not (handle.dump_path / "0" / "root" / "output.pth").exists()
    assert (handle.dump_path / "1" / "root" / "output.pth").exists()


def test_the_model_has_its_own_forward_back(tmp_path: Path) -> None:
    model = Scaled()
    signature = inspect.signature(model.forward)
    with register_hook(model, DumpConfig(tmp_path)):
        assert inspect.signature(model.forward) == signature
    assert "forward" not in vars(model)

    def other(x: torch.Tensor) -> torch.Tensor:
        return x

    model.forward = other  # type: ignore[assignment]
    with register_hook(model, DumpConfig(tmp_path)):
        assert torch.equal(model(torch.ones(2)), torch.ones(2))
    assert model.forward is other


def test_two_handles_dump_one_direct_call_each(tmp_path: Path) -> None:
    model = Scaled()
    first = register_hook(model, DumpConfig(tmp_path, run_name="first"))
    second = register_hook(model, DumpConfig(tmp_path, run_name="second"))
    model.forward(torch.ones(1, 4))
    first.remove()
    second.remove()
    assert files_of_step(first.dump_path) == files_of_step(second.dump_path) != []
    model.forward(torch.ones(1, 4))
    assert (first.token_id, second.token_id) == (1, 1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_call_their_own_forward(tmp_path: Path, copied) -> None:  # type: ignore[no-untyped-def]
    model = Scaled()
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        other = copied(model)
        with torch.no_grad():
            other.linear.weight.zero_()
            other.linear.bias.zero_()
        assert torch.equal(other.forward(torch.ones(1, 4)), torch.zeros(1, 4))
        assert handle.token_id == 0


# Several processes, and one that is killed: no talking to each other, nothing half-written.


HERE = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, sys, torch
from torch import nn
from acc_pytest import DumpConfig, register_hook
torch.set_num_threads(1)
torch.manual_seed(0)
layer = lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True))
model = nn.Sequential(*(layer() for _ in range(4)))
handle = register_hook(model, DumpConfig(sys.argv[1], range(100_000)))
print(os.getpid(), handle.dump_path, flush=True)
for step in range(int(sys.argv[2])):
    model(torch.full((32, 64), float(step)))
"""

RANKS = f"""
import os, sys
ranks = []
for rank in (2, 0, 1):  # process ids do not sort as ranks do
    ranks.append(os.fork())
    if not ranks[-1]:
        os.environ |= {{"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank)}}
        break
else:
    ended = [os.waitpid(rank, 0)[1] for rank in ranks]
    print(*ranks, flush=True)
    sys.exit(any(ended))
{PROGRAM}
"""


def started(program: str, folder: Path, steps: int) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("ATB_TIMESTAMP", "WORLD_SIZE", "RANK")}
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(steps)],
        cwd=HERE,
        env=clean | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_killed_process_leaves_whole_files_only_and_a_dump_that_can_be_compared(
    tmp_path: Path, python_with_torch: None
) -> None:
    process = started(PROGRAM, tmp_path, 100_000)
    assert process.stdout is not None
    number, folder = process.stdout.readline().rstrip("\n").split(" ", 1)
    home = Path(folder)
    deadline = time.monotonic() + 60
    while not (home / "5" / "manifest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(int(number), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    found = [path for path in home.rglob("*") if path.is_file()]
    visible = [path for path in found if not path.name.startswith(".")]
    assert len(visible) > 100
    for path in visible:
        if path.suffix in (".pth", ".pt"):
            torch.load(path, weights_only=True)
        elif path.suffix == ".npz":
            assert len(np.load(path).files) > 0
        else:
            json.loads(path.read_bytes())
    dump = open_dump(str(tmp_path))
    assert len(dump.steps) >= 6
    mapped = plan(dump, open_dump(str(tmp_path)))
    whole = [step for step in dump.steps if (home / step.directory / "manifest.json").exists()]
    assert len([pair for pair in mapped.pairs if pair.step == 0]) >= 12
    assert {pair.step for pair in mapped.pairs} >= {step.label for step in whole}
    for pair in (pair for pair in mapped.pairs if pair.fed not in ("weight", "buffer")):
        for ref in (*pair.golden.refs, *pair.mine.refs):
            ref.open()


def test_ranks_find_one_directory_and_one_order_without_talking(
    tmp_path: Path, python_with_torch: None
) -> None:
    launcher = started(RANKS, tmp_path, 1)
    said, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    (root,) = tmp_path.iterdir()
    dump = open_dump(str(root))
    pids = dict(zip(said.splitlines()[-1].split(), (2, 0, 1)))
    assert [pids[rank.name.rpartition("_")[2]] for rank in dump.ranks] == [0, 1, 2]
    manifest = json.loads((root / "torch_tensors" / dump.ranks[1].name / "manifest.json").read_text())
    assert {key: manifest["process"][key] for key in ("rank", "world_size", "local_rank")} == {
        "rank": 1,
        "world_size": 3,
        "local_rank": 1,
    }


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_a_process_group_is_neither_made_nor_used(tmp_path: Path, python_with_torch: None) -> None:
    code = (
        "import sys, torch; from acc_pytest import DumpConfig, register_hook\n"
        "model = torch.nn.Linear(1, 1)\n"
        "with register_hook(model, DumpConfig(sys.argv[1])): model(torch.ones(1))\n"
        "assert not torch.distributed.is_initialized()"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": "2"},  # the other never comes
        cwd=Path(acc_pytest.__file__).parents[1],
        timeout=120,
        check=True,
    )
