"""The header warns where reading the files is unsafe with the torch that is installed."""

from __future__ import annotations

import pytest

from acc_pytest.dumps.torch_model import Outline
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.metrics.native import library as native
from acc_pytest.running.pairs import header_lines, kernel_lines, outline_line
from acc_pytest.tensors import torch_file
from acc_pytest.tensors.ref import TensorRef


def plan_of(path: str) -> Plan:
    side = Operand("n", "n", "Linear", "output[0]", (TensorRef(path),))
    pair = Pair("n", 0, None, "op", "model", 0, 0, "name", "equal names", side, side)
    return Plan("g", "m", "torch", "torch", "d", (pair,), (), ("a note",), 1, 1, 1, 1)


@pytest.mark.parametrize(("path", "warned"), [("a.pth", True), ("a.pt", True), ("a.npy", False)])
def test_old_torch_and_pickled_files_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, path: str, warned: bool
) -> None:
    monkeypatch.setattr(torch_file, "pickle_advice", lambda: "this torch is old")
    lines = header_lines(plan_of(path))
    assert ("acc note: this torch is old" in lines) == warned
    assert "acc note: a note" in lines


def test_a_sound_torch_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_file, "pickle_advice", lambda: "")
    assert header_lines(plan_of("a.pth")) == [
        "acc golden: torch g (1 dumped node)",
        "acc mine: torch m (1 dumped node)",
        "acc note: a note",
        "acc mapping: 1 pair in 1 step; unmapped: 0 of golden, 0 of mine",
    ]


def test_a_missing_native_kernel_is_said_unless_it_was_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "library", lambda: native.Library({}, "it was not built"))
    monkeypatch.delenv("ACC_KERNEL", raising=False)
    assert kernel_lines() == ["acc kernel: python (it was not built)"]
    monkeypatch.setenv("ACC_KERNEL", "python")
    assert kernel_lines() == []


@pytest.mark.parametrize(
    ("model", "installed", "what"),
    [
        ("LlamaForCausalLM", True, "modules of LlamaForCausalLM"),
        ("LlamaForCausalLM", False, "linear layers (transformers are not installed)"),
        ("", True, "linear layers"),
    ],
)
def test_what_golden_outlines_is_said(
    monkeypatch: pytest.MonkeyPatch, model: str, installed: bool, what: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    said = f"acc replay: {what} of mine computed again, as golden's dump outlines them (--acc-replay=off)"
    assert outline_line(Outline(model)) == said
