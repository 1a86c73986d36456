"""The plugin costs nothing where it is not used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import acc_pytest.cli
from acc_pytest.metrics.native.library import chosen
from acc_pytest.tensors import atb_bin
from tests.slow import slow

from .conftest import QUICKER, TWO_WORKERS

ROOMS = ("tensors", "mapping", "metrics", "settings", "modes", "reporting", "run_report", "session")
HEAVY = ("torch", "numpy", "pandas", *(f"acc_pytest.{room}" for room in ROOMS))


def test_a_run_without_our_options_imports_neither_torch_nor_numpy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import atexit
        import sys

        def test_imports():
            assert "acc_pytest.plugin" in sys.modules

        @atexit.register
        def say():
            print("imported:", [name for name in {HEAVY!r} if name in sys.modules])
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "-p", "no:xdist")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["imported: [[][]]"])
    result.stdout.no_fnmatch_line("*acc-pytest *==*")
    result.stdout.no_fnmatch_line("acc *")


def test_the_command_answers_without_importing_torch() -> None:
    code = """
import sys, acc_pytest.cli
try:
    acc_pytest.cli.main(["--version"])
except SystemExit:
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith("acc-pytest ")
    assert done.stdout.splitlines()[1] == "False"


@pytest.mark.parametrize(
    ("word", "said"), [("python", "python (ACC_KERNEL=python)"), ("x", "none (ACC_KERNEL=x: ")]
)
def test_the_command_says_which_kernel_measures(
    word: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACC_KERNEL", word)
    with pytest.raises(SystemExit):
        acc_pytest.cli.main(["--version", "--verbose"])
    assert f", kernel: {said}" in " ".join(capsys.readouterr().out.split())


def test_this_repository_is_a_place_to_compare_in_without_the_packages_of_its_tests() -> None:
    """README's first command installs none of them, and `acc demo` loads the conftest of the repository."""
    code = "import runpy, sys; sys.modules['hypothesis'] = None; runpy.run_path(sys.argv[1])"
    conftest = Path(__file__).parents[2] / "conftest.py"
    subprocess.run([sys.executable, "-c", code, str(conftest)], check=True)


NOTES_TORCH = """
import pathlib, sys, pytest

@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    worker = getattr(config, "workerinput", {"workerid": "controller"})
    pathlib.Path(worker["workerid"]).write_text(str("torch" in sys.modules))
"""


def noted(home: Path) -> dict[str, str]:
    """Which processes of a run had torch."""
    return {
        file.name: file.read_text() for file in home.iterdir() if file.name.startswith(("controller", "gw"))
    }


WITHOUT_TORCH = ("float16", "float16", "int64", "bool")


@pytest.mark.skipif(chosen() is None, reason="the kernel in Python measures with torch")
@pytest.mark.parametrize(
    ("dtypes", "has_torch", "words"),
    [
        (WITHOUT_TORCH, "False", ()),
        slow(WITHOUT_TORCH, "False", TWO_WORKERS),
        slow(("float64",) * 4, "True", ()),
    ],
    ids=["one process", "two workers", "doubles"],
)
def test_what_lies_in_its_file_as_it_is_read_is_compared_without_torch(
    dtypes: tuple[str, ...], has_torch: str, words: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    for side in ("golden", "mine"):
        (pytester.path / side).mkdir()
        for number, dtype in enumerate(dtypes):
            values = np.arange(4000).reshape(40, 100).astype(dtype)
            np.save(pytester.path / side / f"t{number}.npy", values)
    pytester.makeconftest(NOTES_TORCH)
    result = pytester.runpytest_subprocess(
        *QUICKER, "--acc-golden=golden", "--acc-mine=mine", *words, "--acc-html=p.html", "--junitxml=j.xml"
    )
    result.assert_outcomes(passed=4)
    found = noted(pytester.path)
    assert found.pop("controller") == (has_torch if not words else "False")
    assert set(found.values()) == ({has_torch} if words else set())


@pytest.mark.parametrize(
    ("words", "seen"), [((), "1"), slow(("test_own.py",), "None")], ids=["alone", "beside"]
)
def test_numpys_blas_starts_threads_only_beside_tests_of_peoples_own(
    words: tuple[str, ...], seen: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable that says how many is there while numpy is imported, and no longer."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    for side in ("golden", "mine"):
        (pytester.path / side).mkdir()
        np.save(pytester.path / side / "t.npy", np.ones((30, 40), np.float16))
    pytester.makepyfile(test_own="def test_own():\n    pass\n")
    pytester.makeconftest(
        """
        import os
        import sys

        class Looks:
            def find_spec(self, name, path=None, target=None):
                if name == "numpy":
                    print("while numpy is imported:", os.environ.get("OPENBLAS_NUM_THREADS"))

        sys.meta_path.insert(0, Looks())

        def pytest_unconfigure(config):
            print("at the end:", os.environ.get("OPENBLAS_NUM_THREADS"))
        """
    )
    result = pytester.runpytest_subprocess(*QUICKER, "--acc-golden=golden", "--acc-mine=mine", "-s", *words)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"while numpy is imported: {seen}", "at the end: None"])


@pytest.mark.skipif(chosen() is None, reason="the kernel in Python measures with torch")
def test_so_is_a_manual_dump_of_files_of_torch_and_of_atb(tmp_path: Path, pytester: pytest.Pytester) -> None:
    root = tmp_path / "msit_dump_20261101_000000"
    files = root / "1_-1" / "golden_tensor" / "0" / "1_tensor.pth", tmp_path / "mine.bin"
    files[0].parent.mkdir(parents=True)
    torch.save(torch.ones(30, 40).bfloat16(), files[0])
    atb_bin.write(files[1], torch.ones(30, 40).bfloat16())
    declared = json.dumps({"1": {"0": [str(file) for file in files]}})
    (root / "1_-1" / "golden_tensor" / "metadata.json").write_text(declared)
    pytester.makeconftest(NOTES_TORCH)
    pytester.runpytest_subprocess(*QUICKER, f"--acc-golden={root}", "-v").assert_outcomes(passed=1)
    assert noted(pytester.path) == {"controller": "False"}
