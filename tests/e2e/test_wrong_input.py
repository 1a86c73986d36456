"""Paths that are no dumps: one clear error, exit code 4, no report."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import QUICKER, Run


@pytest.mark.parametrize("side", ["golden", "mine"])
@pytest.mark.parametrize("what", ["missing", "empty", "text"])
def test_a_path_that_is_no_dump(pytester: pytest.Pytester, clean: DemoPaths, side: str, what: str) -> None:
    wrong = pytester.path / "wrong"
    if what == "empty":
        wrong.mkdir()
    elif what == "text":
        wrong.write_text("not a tensor")
    paths = {"golden": clean.golden, "mine": clean.mine, side: wrong}
    result = pytester.runpytest_inprocess(*QUICKER, *(f"--acc-{name}={path}" for name, path in paths.items()))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert len(errors) == 1
    assert str(wrong) in errors[0]
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert not list(pytester.path.glob("*.csv"))


def test_a_topology_that_is_cut(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    import shutil

    root = pytester.path / "copy"
    shutil.copytree(clean.golden.parent, root)
    (tree,) = root.glob("golden/**/model_tree.json")
    tree.write_text(tree.read_text()[:100])
    result = acc(DemoPaths(root / "golden", root / "mine"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {tree}: *"])
    assert not Path("out").exists()


def test_a_kernel_that_there_is_not_is_one_error_ahead_of_the_first_test(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACC_KERNEL", "fast")
    result = acc(clean, "-q")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ACC_KERNEL=fast: it must be one of auto, native, python"])
