"""Dumps of msprobe through the plugin: green where nothing is wrong, red at the module that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # layers import it when they are made, and pytester forgets what it imported

from tests.dumps.msprobe_writer import RankWriter, record
from tests.dumps.test_msprobe import Model

from .conftest import QUICKER

FRAME = "File /opt/m.py, line 7, in forward, \n y = f(x)"


def dumped(home: Path, dtype: torch.dtype = torch.float32, fault: str = "", **how: Any) -> Path:
    """The same model, perhaps in another dtype, with the weight of one module times 1.1."""
    torch.manual_seed(5)
    model, x = Model(width=32), torch.randn(24, 32)
    if fault:
        with torch.no_grad():
            model.get_parameter(f"{fault}.weight").mul_(1.1)
    writer = record(RankWriter(home / "step0" / "proc1", **how), model.to(dtype), [[x.to(dtype)]])
    writer.stacks["Module.layers.1.linear.Linear.forward.0"] = [
        "File /opt/m.py, line 7, in forward, \n y = f(x)"
    ]
    writer.write()
    return home


def generated(home: Path, dtype: torch.dtype = torch.float32, wrong: float = 1.0, steps: int = 1) -> Path:
    """Three calls of a model, in one step of msprobe or each in its own; `wrong` scales a result."""
    torch.manual_seed(5)
    model = Model(width=32).to(dtype)
    given = [[torch.randn(rows, 32).to(dtype)] for rows in (24, 1, 1)]
    for step in range(steps):
        writer = RankWriter(home / f"step{step}" / "proc1")
        record(writer, model, given if steps == 1 else given[step : step + 1]).write()
    if wrong != 1:
        name = "Module.layers.1.linear.Linear.forward.1.output.0.pt"
        file = home / "step0" / "proc1" / "dump_tensor_data" / name
        torch.save(torch.load(file) * wrong, file)
    return home


def run(pytester: pytest.Pytester, golden: Path, mine: Path) -> pytest.RunResult:
    return pytester.runpytest_inprocess(
        *QUICKER, "-p", "no:cacheprovider", f"--acc-golden={golden}", f"--acc-mine={mine}"
    )


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_another_dtype_is_green_whatever_was_kept(
    pytester: pytest.Pytester, tmp_path: Path, task: str
) -> None:
    golden = dumped(tmp_path / "golden", task="tensor")
    mine = dumped(tmp_path / "mine", torch.bfloat16, task=task)
    result = run(pytester, golden, mine)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["verdicts: * pass"])


@pytest.mark.parametrize("how", [{}, {"task": "statistics"}, {"task": "statistics", "digests": True}])
def test_a_wrong_module_is_the_only_root(
    pytester: pytest.Pytester, tmp_path: Path, how: dict[str, Any]
) -> None:
    golden = dumped(tmp_path / "golden", **how)
    mine = dumped(tmp_path / "mine", fault="layers.1.linear", **how)
    result = run(pytester, golden, mine)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["root cause: weight of layers.1.linear differs*", "*verdicts: * 1 fail, *"])


def test_digests_alone_say_what_differs(pytester: pytest.Pytester, tmp_path: Path) -> None:
    how: dict[str, Any] = {"task": "statistics", "exclusive": True}
    golden, same = dumped(tmp_path / "golden", **how), dumped(tmp_path / "same", **how)
    assert run(pytester, golden, same).ret == 0
    result = run(pytester, golden, dumped(tmp_path / "mine", fault="layers.1.linear", **how))
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*the digests differ: golden and mine are not the same bytes*"])
    result = run(pytester, golden, dumped(tmp_path / "other", torch.bfloat16, **how))
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["nothing was compared: every pair is incomparable*"])


def test_a_failure_names_the_line_of_the_program(pytester: pytest.Pytester, tmp_path: Path) -> None:
    golden = dumped(tmp_path / "golden")
    mine = dumped(tmp_path / "mine")
    file = (
        mine / "step0" / "proc1" / "dump_tensor_data" / "Module.layers.1.linear.Linear.forward.0.output.0.pt"
    )
    torch.save(torch.load(file) * 1.5, file)
    result = run(pytester, golden, mine)
    result.stdout.fnmatch_lines(["*mine called this at m.py:7 in forward: y = f(x)*"])


def test_calls_of_a_model_that_generates_are_steps(pytester: pytest.Pytester, tmp_path: Path) -> None:
    golden = generated(tmp_path / "golden", steps=3)
    right = run(pytester, golden, generated(tmp_path / "right", torch.bfloat16))
    assert right.ret == 0
    right.stdout.fnmatch_lines(["*step 0 has 3 calls of the model: steps 0 to 2*"])
    wrong = run(pytester, golden, generated(tmp_path / "wrong", wrong=1.1))
    assert wrong.ret == 1
    wrong.stdout.fnmatch_lines(["*root cause: root.layers.1.linear (Linear) step 1 *"])
