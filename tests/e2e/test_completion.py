"""A shell that asks how a line may go on gets options, choices and files, of `acc` and of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import acc_pytest.cli
from acc_pytest.commands.demo import MODELS
from tests.slow import slow

PROGRAMS = {"acc": ("-c", "import acc_pytest.cli; acc_pytest.cli.main()"), "pytest": ("-m", "pytest")}


def completed(line: str) -> list[str]:
    """The words that the program of a line answers, as argcomplete's function of a shell asks for them."""
    answer = Path("answer")
    answer.touch()
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "PYTEST_ADDOPTS": "-p no:hypothesispytest",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, *PROGRAMS[line.split()[0]]]
    subprocess.run(command, env={**os.environ, **asked}, check=True, timeout=60, capture_output=True)
    words = answer.read_text(encoding="utf-8").splitlines()
    answer.unlink()
    return [word.strip() for word in words]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("argcomplete")
    monkeypatch.chdir(tmp_path)
    for side in ("golden", "mine"):
        (tmp_path / "dumps" / side).mkdir(parents=True)


DIRECTORIES = ["dumps/golden/", "dumps/mine/"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        slow("acc co", ["compare", "convert"]),
        ("acc compare -gp dumps/", DIRECTORIES),
        slow("acc demo --model ", list(MODELS)),
        slow("acc opcheck export --i", ["--ids", "--input"]),
        slow("pytest --acc-js", ["--acc-json"]),
        ("pytest --acc-level ", ["all", "layer", "module", "op", "logits"]),
        ("pytest --acc-golden=dumps/m", ["--acc-golden=dumps/mine/"]),
    ],
)
def test_a_line_goes_on_with(line: str, words: list[str]) -> None:
    assert sorted(completed(line)) == sorted(words)


def test_shells_know_that_the_command_answers() -> None:
    first, *_ = Path(acc_pytest.cli.__file__).read_text(encoding="utf-8").splitlines()
    assert first == "# PYTHON_ARGCOMPLETE_OK"


def test_nobody_else_imports_it() -> None:
    code = """
import sys, acc_pytest.cli
try:
    acc_pytest.cli.main(["--version"])
except SystemExit:
    print("argcomplete" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_without_the_package_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert acc_pytest.cli.main(["opcheck", "--list"]) == 0
