"""The fixture `acc_torch_dump`, in a pytest run of its own."""

from __future__ import annotations

import pytest

from .conftest import QUICKER

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
