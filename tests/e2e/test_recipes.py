"""docs/recipes.md runs as it stands: every block does what the sentence before it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoSpec, Fault, make_demo
from tests.opcheck.made import softmax_dump
from tests.shared_directory import made_once
from tests.slow import slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "recipes.md"
BLOCK = re.compile(r"^(.+):\n\n```(sh|python)\n((?:.*\n)*?)```$", re.MULTILINE)
LINK = re.compile(r"\[(.+?)\]\(.+?\)")
RECIPES = {
    LINK.sub(r"\1", sentence): (kind, text)
    for sentence, kind, text in BLOCK.findall(DOCUMENT.read_text("utf-8"))
}
MOST_LINES = 8
OUTCOMES = {
    "Compare attention alone, with up to 8 processes": (0, r"\d+ passed"),
    "Compare one layer of the prefill": (1, r"root cause: .*ElewiseOperation"),
    "Compare one rank of two, each in a directory of its own": (0, r"1 passed"),
    "See what would be compared with what, and why": (0, r"step 0: \d+ pairs"),
    "Map types that have names of their own": (0, r"\d+ passed"),
    "Loosen the bounds of one type of operator, with a reason that every report shows": (0, r"\d+ passed"),
    "Record the errors of today, and fail later what gets worse": (1, r"baseline: updated, \d+ new"),
    "Accept one failure until a day": (0, r"known: 1|\d+ known"),
    "Measure what rounding does to golden, and keep it beside the dump, from which bounds follow": (0, ""),
    "Stop at the first failure, with one line for it": (1, r"stopping after 1 failures"),
    "Write JUnit for the CI server, and a summary in Markdown": (1, r"report: summary\.md"),
    "Share a run between two machines, and put the results together": (1, r"report: page\.html"),
    "Keep every run, and see since when a root is one": (0, r"root .*: since run .*, the last run"),
    "Write the run as one page for a browser": (1, r"report: page\.html"),
    "Judge the numbers of a run again under other rules, without its dumps": (1, r"rows\.jsonl"),
    "Have the comparisons as a frame of pandas": (0, r"ElewiseOperation"),
    "Compare two `.npz` files": (1, r"verdicts: 1 fail"),
    "Compare tensors that are in dicts": (0, r"fail \['root\.layers\.0\.mlp'\]"),
    "Compare two tensors in a test of your own": (0, r"1 passed"),
    "Dump a torch model": (0, r"DumpHandle .*dumps/.* 6 tensors .* of 1 steps"),
    "Check every operator of a CSV, which an ATB dump may have, against its reference": (0, r"3 passed"),
}
"""The exit code of each recipe, and what it prints."""


def _dumps(directory: Path) -> Path:
    make_demo(directory, DemoSpec(layers=1, decode_steps=0, fault=Fault("residual", 0)))
    softmax_dump(directory)
    return directory


@pytest.fixture
def here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, python_with_torch: None) -> Path:
    """A directory with the dumps of the document, in which a recipe may write."""
    for entry in made_once(tmp_path_factory, "recipes", _dumps).iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:hypothesispytest\n")
    return tmp_path


def test_there_are_twenty_and_each_is_short() -> None:
    assert RECIPES.keys() == OUTCOMES.keys()
    assert len(RECIPES) >= 20
    assert {name: text for name, (_, text) in RECIPES.items() if text.count("\n") > MOST_LINES} == {}


@pytest.mark.parametrize("name", [slow(name) if n % 7 else name for n, name in enumerate(RECIPES)])
def test_a_recipe_does_what_it_says(here: Path, name: str) -> None:
    kind, text = RECIPES[name]
    command = [sys.executable, "-c", text] if kind == "python" else ["bash", "-c", text]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=120, check=False)
    code, output = OUTCOMES[name]
    assert done.returncode == code, done.stdout + done.stderr
    assert re.search(output, done.stdout), done.stdout
    assert done.stderr == ""
