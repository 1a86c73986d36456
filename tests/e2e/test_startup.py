"""The plugin costs nothing where it is not used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import acc_pytest.cli

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
