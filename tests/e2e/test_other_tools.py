"""Dumps of SGLang and of Hugging Face's debugger under pytest: right ones are green, roots are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dumps.tool_dumps import SglangWriter, debugged, tensor, two_layers, write_pass

from .conftest import QUICKER

Write = Callable[[Path, float], object]


def _sglang(folder: Path, scale: float) -> None:
    two_layers(SglangWriter(folder / "dump_20260801_101112_123456"), scale=scale)


def _without_names(folder: Path, scale: float) -> None:
    two_layers(SglangWriter(folder), scale=scale, explicit=False)


def _passes(folder: Path, scale: float) -> None:
    hidden, home = tensor(1), folder / "TP0_PP0_Rank0_pid7"
    made = hidden.cos() * scale
    inside = {"model.embed": hidden, "model.layers.0.mlp": made, "model.norm": made + hidden}
    write_pass(home, 0, inside)
    write_pass(home, 1, {"model": made + hidden, "lm_head": (made + hidden).sin()} | inside)


def _files(folder: Path, scale: float) -> None:
    debugged(folder, layers=3, scale=scale)


def _prints(folder: Path, scale: float) -> None:
    debugged(folder, layers=3, scale=scale, prints=True)


WRITERS: dict[str, tuple[Write, str]] = {
    "sglang": (_sglang, "root.model.layers.1.mlp step 0*"),
    "sglang without names": (_without_names, "root.model.layers.1.mlp *step 0*"),
    "sglang passes": (_passes, "root.model.layers.0.mlp *step 0*"),
    "debugger": (_files, "root.model.layers.1.mlp *step 0*"),
    "debugger with prints": (_prints, "root.model.layers.1.mlp *step 0*"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_equal_dumps_are_green_and_a_fault_is_named(pytester: pytest.Pytester, name: str) -> None:
    write, root = WRITERS[name]
    here = pytester.path
    for side, scale in (("golden", 1.0), ("right", 1.0), ("wrong", 1.05)):
        write(here / side, scale)
    right = pytester.runpytest_inprocess(*QUICKER, "--acc-golden=golden", "--acc-mine=right")
    assert right.ret == 0
    wrong = pytester.runpytest_inprocess(*QUICKER, "--acc-golden=golden", "--acc-mine=wrong")
    assert wrong.ret == 1
    wrong.stdout.fnmatch_lines([f"*root cause: {root}"])


def test_dumps_of_two_tools_meet(pytester: pytest.Pytester) -> None:
    """Passes have outputs alone, so those are compared."""
    here = pytester.path
    hidden = tensor(1)
    made = hidden.cos()
    writer = SglangWriter(here / "golden")
    writer.module("model.embed", {"0": tensor(9)}, [hidden])
    writer.module("model.layers.0.mlp", {"0": hidden}, [made], layer_id=0)
    writer.module("model.norm", {"0": made}, [made + hidden])
    _passes(here / "mine", 1.05)
    result = pytester.runpytest_inprocess(*QUICKER, "--acc-golden=golden", "--acc-mine=mine")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*root cause: root.model.layers.0.mlp *"])
