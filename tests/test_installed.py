"""installed: numpy 2 beside a torch that is too old for it is said in one sentence, at every door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from acc_pytest import cli
from acc_pytest.base import imports
from acc_pytest.capture.manual import dump_data
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.errors import AccError

SENTENCE = (
    "torch 2.1.0 does not work with numpy 2.2.6 (torch 2.3 is the first that works with numpy 2); "
    "install an older numpy: pip install 'numpy<2'"
)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What is installed, as far as the check can tell: an old torch, which takes no array of a new numpy."""
    found = {"torch": "2.1.0", "numpy": "2.2.6"}
    monkeypatch.setattr(imports, "installed_version", lambda name: found[name])
    monkeypatch.setattr(torch.Tensor, "numpy", _no_numpy)
    imports.check_numpy.cache_clear()
    yield found
    imports.check_numpy.cache_clear()


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def _no_numpy(tensor: torch.Tensor) -> None:
    raise RuntimeError("Numpy is not available")


@pytest.mark.usefixtures("versions")
def test_the_command_says_so_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo"]) == 4
    assert unwrapped(capsys.readouterr().err) == f"acc: error: {SENTENCE}"
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("versions")
def test_a_run_of_pytest_says_so_before_it_looks_at_the_dumps(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--acc-golden=nowhere", "--acc-mine=nowhere", "--acc-output=out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert SENTENCE in unwrapped(result.stderr.str())
    assert not (pytester.path / "out").exists()


@pytest.mark.usefixtures("versions")
def test_a_run_without_our_options_is_not_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


@pytest.mark.usefixtures("versions")
def test_what_dumps_says_so_before_the_model_runs(tmp_path: Path) -> None:
    with pytest.raises(AccError, match="pip install 'numpy<2'"):
        register_hook(torch.nn.Linear(2, 2), DumpConfig(tmp_path / "dump"))
    with pytest.raises(AccError, match="pip install 'numpy<2'"):
        dump_data(0, 0, torch.ones(2), tmp_path / "mine.pth", tmp_path / "manual")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("torch_version", "numpy"), [("2.1.0", "1.26.4"), ("2.3.0+cpu", "2.0.0"), ("", "2.0.0")]
)
def test_pairs_that_fit_are_told_by_their_versions(
    versions: dict[str, str], torch_version: str, numpy: str
) -> None:
    versions.update(torch=torch_version, numpy=numpy)
    imports.check_numpy()


def test_an_old_torch_that_was_built_for_it_is_believed(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(imports, "installed_version", lambda name: versions[name])
    imports.check_numpy()
