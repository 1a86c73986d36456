"""`acc_fx_dump` and `acc_ge_dump`, in a pytest run of their own."""

from __future__ import annotations

import pytest

from .conftest import QUICKER

FX = """
import pytest, torch
from torch import nn

@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU()).requires_grad_(False)

def test_opened(model, acc_fx_dump, tmp_path):
    x = torch.randn(2, 4)
    dumping = acc_fx_dump(model, dynamic=False)
    assert torch.allclose(dumping(x), model(x))
    dumping(x + 1)
    dumping(x[:1])
    dump = dumping.dump
    assert dump.kind == "fx" and dumping.path.is_relative_to(tmp_path)
    assert [step.directory for step in dump.steps] == ["graph_1/0", "graph_1/1", "graph_2/0"]
    assert torch.equal(dumping.tensors("addmm")["input[1]"], x)
    assert torch.equal(dumping.tensors("relu", step=1)["output[0]"], model(x + 1))
    assert dumping.tensors("relu", graph=2)["output[0]"].shape == (1, 3)
    with pytest.raises(KeyError):
        dumping.tensors("relu", step=2)

def test_options_of_the_backend(model, acc_fx_dump):
    dumping = acc_fx_dump(model, filter="relu", steps=[1], rank=1, world_size=2)
    for _ in range(2):
        dumping(torch.ones(2, 4))
    (step,) = dumping.dump.steps
    assert step.label == 1 and [node.name for node in step.tree.walk() if node.path] == ["relu"]
    assert dumping.tensors("relu", step=1, rank=1)

def test_two_models(model, acc_fx_dump):
    first, second = acc_fx_dump(model), acc_fx_dump(lambda x: x.sin())
    first(torch.ones(2, 4)), second(torch.ones(2))
    assert first.path != second.path
    assert set(second.tensors("sin")) == {"input[0]", "output[0]"}

@pytest.mark.parametrize("number", range(12))
def test_often(model, acc_fx_dump, number):
    dumping = acc_fx_dump(model)
    dumping(torch.ones(2, 4))
    assert dumping.tensors("relu")
"""


@pytest.fixture(autouse=True)
def here(pytester: pytest.Pytester) -> None:
    """In a directory of its own."""
    pytester.makeini("[pytest]")


def run(pytester: pytest.Pytester, code: str) -> pytest.RunResult:
    """In a process of its own: pytester forgets modules, and torch's registries cannot be filled twice."""
    pytester.makepyfile(code)
    return pytester.runpytest_subprocess(*QUICKER, "-p", "no:cacheprovider", timeout=300)


@pytest.mark.usefixtures("python_with_torch")
def test_the_fx_fixture_dumps_into_the_tests_directory(pytester: pytest.Pytester) -> None:
    run(pytester, FX).assert_outcomes(passed=15)


WRONG = {
    "acc_fx_dump(sine, max_bytes=1000)(torch.ones(300))": "*has * bytes, more than max_bytes=1000; *",
    "acc_fx_dump(sine, steps=[])": "acc_fx_dump: steps must be whole numbers >= 0*",
    "acc_fx_dump(sine).dump": "*DumpError: *acc_fx_dump0: *",
    "acc_ge_dump(sine)": "acc_ge_dump: TorchAir cannot be imported (*); install torch_npu and CANN, or *",
    "acc_ge_dump(sine, dump_mode='some')": "acc_ge_dump: dump_mode must be one of *, got 'some'",
}


@pytest.mark.usefixtures("python_with_torch")
def test_what_goes_wrong_is_one_sentence(pytester: pytest.Pytester) -> None:
    tests = [
        f"def test_{number}(acc_fx_dump, acc_ge_dump):\n    {call}\n" for number, call in enumerate(WRONG)
    ]
    result = run(pytester, "import torch\ndef sine(x):\n    return x.sin()\n" + "".join(tests))
    result.assert_outcomes(failed=len(WRONG))
    for said in WRONG.values():
        result.stdout.fnmatch_lines([said.replace("[", "[[]")])


NPU = """
import sys, types
from dataclasses import dataclass, field
from pathlib import Path
import torch
from acc_pytest.lab.demo.torchair.records import WrittenTensor, write_record

@dataclass
class Options:
    type: object = None
    path: object = None
    enable_dump: bool = False
    dump_mode: str = "all"
    dump_path: object = None
    dump_step: object = None
    dump_layer: object = None

class CompilerConfig:
    def __init__(self):
        self.debug = types.SimpleNamespace(graph_dump=Options(), data_dump=Options())
        self.fusion_config = types.SimpleNamespace(fusion_switch_file=None)
        self.dump_config = Options()

def get_npu_backend(compiler_config):
    def backend(module, inputs):
        def run(*args):
            results = module(*args)
            folder = Path(compiler_config.dump_config.dump_path, "20261120203000/0/graph_1/1/0")
            sides = ([WrittenTensor(tensor) for tensor in side] for side in (args, results))
            write_record(folder / "Sin.Sin.1.2.1763670000000140", "Sin", *sides, 1763670000000140)
            return results
        return run
    return backend

torchair = types.ModuleType("torchair")
configs = types.ModuleType("torchair.configs")
compiler_config = types.ModuleType("torchair.configs.compiler_config")
compiler_config.CompilerConfig = CompilerConfig
torchair.get_npu_backend = get_npu_backend
sys.modules |= {module.__name__: module for module in (torchair, configs, compiler_config)}

def test_ge(acc_ge_dump, tmp_path):
    dumping = acc_ge_dump(lambda x: x.sin(), dump_mode="output")
    x = torch.ones(3)
    assert torch.equal(dumping(x), x.sin())
    assert dumping.dump.kind == "ge" and dumping.path.is_relative_to(tmp_path)
    assert torch.equal(dumping.tensors("Sin")["output[0]"], x.sin())
"""


@pytest.mark.usefixtures("python_with_torch")
def test_the_ge_fixture_compiles_with_torchairs_backend(pytester: pytest.Pytester) -> None:
    run(pytester, NPU).assert_outcomes(passed=1)


# The fixture `acc_torch_dump`, in a pytest run of its own.


TEST = """
import pytest, torch
from torch import nn

@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True))

def test_opened(model, acc_torch_dump, tmp_path):
    x = torch.randn(2, 4)
    plain = model(x)
    with acc_torch_dump(model, token_range=range(2)) as dumping:
        assert torch.equal(model(x), plain)
        model(x[:1])
    model(x)
    dump = dumping.dump
    assert dump.kind == "torch" and [step.label for step in dump.steps] == [0, 1]
    assert dumping.path.is_relative_to(tmp_path)
    assert torch.equal(dumping.tensors("root")["output[0]"], plain)
    assert dumping.tensors("root.0", step=1)["input[0]"].shape == (1, 4)
    assert str(dumping.handle.report).startswith("12 tensors")

def test_budgets(model, acc_torch_dump):
    with pytest.warns(UserWarning, match="max_elements=6"):
        dumping = acc_torch_dump(model, max_elements=6)
        model(torch.randn(2, 4))
    assert "input[0]" not in dumping.tensors("root.0") and "output[0]" in dumping.tensors("root.0")
    assert any("2 tensors were not saved: more than max_elements=6" in note for note in dumping.dump.notes)

def test_bytes(model, acc_torch_dump):
    with pytest.warns(UserWarning, match="max_bytes=40"), acc_torch_dump(model, max_bytes=40) as dumping:
        model(torch.randn(2, 4))
    assert dumping.handle.report.nbytes <= 40
    assert list(dumping.tensors("root")) == ["input[0]"]

def test_two_models(model, acc_torch_dump):
    other = nn.Linear(4, 1)
    with acc_torch_dump(model) as first, acc_torch_dump(other) as second:
        model(torch.zeros(1, 4)), other(torch.zeros(1, 4))
    assert first.path.parents[2] != second.path.parents[2]
    assert first.dump.steps[0].tree.model == "Sequential" and second.dump.steps[0].tree.model == "Linear"

HANDLES = []

def test_left_on(model, acc_torch_dump):
    HANDLES.append((model, acc_torch_dump(model)))

def test_ended():
    model, dumping = HANDLES.pop()
    model(torch.zeros(1, 4))
    assert dumping.handle.report.steps == 0
    assert not model._forward_hooks and not model[0]._forward_pre_hooks
"""


def test_the_fixture_dumps_into_the_tests_directory_within_its_budgets(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    pytester.makepyfile(TEST)
    pytester.runpytest_inprocess(*QUICKER).assert_outcomes(passed=6)


def test_the_path_is_not_an_option(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import torch
        def test_it(acc_torch_dump):
            acc_torch_dump(torch.nn.Linear(1, 1), dump_path="elsewhere")
    """)
    result = pytester.runpytest_inprocess(*QUICKER)
    result.stdout.fnmatch_lines(["*TypeError*multiple values for*dump_path*"])
