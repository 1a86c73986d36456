"""Names from dumps in bundles: harmless as paths, in Python and in Markdown."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

from acc_pytest.diagnosis.repro import folder
from acc_pytest.diagnosis.repro.bundle import bounds_of
from acc_pytest.diagnosis.repro.folder import folder_name, inside
from acc_pytest.errors import AccError, NoPayload
from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.row import Row

HOSTILE = (
    "../../etc/passwd",
    "/root/.ssh/id",
    "a'''; import os; os.system('x') #",
    'a"""\nimport os',
    "x\x00\x1b[2J\u202e\ud800",
    "=cmd|' /C calc'!A0",
    "`code`</td><script>alert(1)</script>|",
    "{bounds}{0.__class__}",
    "n" * 10_000,
    "",
    "..",
    "\\..\\..\\x",
)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_a_plain_folder(name: str) -> None:
    made = folder_name(3, name)
    assert made.startswith("03_")
    assert len(made) < 80
    assert made.isascii()
    assert made.replace("_", "a").replace("-", "a").isalnum()


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_a_literal_in_the_test(name: str) -> None:
    text = folder.pair_test("test_1.py", name, {"cosine_similarity": 0.5, name: None})
    tree = ast.parse(text)
    assigned = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id != "HERE"
    }
    assert assigned == {"NAME": name, "BOUNDS": {"cosine_similarity": 0.5, name: None}}
    kinds = [type(node).__name__ for node in tree.body]
    assert kinds == ["Expr", "ImportFrom", "Import", "Assign", "Assign", "Assign", "FunctionDef"]
    assert text.isascii()


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_code_in_the_readme(name: str) -> None:
    lines = folder.readme(name, name, [], [(name, "a file")]).splitlines()
    assert len(lines) == 8, lines
    assert lines[0] == "# no name" or (lines[0].count("`") == 2 and lines[0].endswith("`"))
    assert lines[2].startswith("    ")
    assert lines[6].count("|") == 3


def test_nothing_is_written_outside_of_a_bundle(tmp_path: Path) -> None:
    assert inside(tmp_path, "inputs/00_x.pt") == tmp_path / "inputs" / "00_x.pt"
    for name in ("../x", "inputs/../../x", "/etc/x"):
        with pytest.raises(AccError, match="lies outside of"):
            inside(tmp_path, name)


def failing(**checks: tuple[float, float, bool]) -> Row:
    """A row of checks: measured, allowed, passed."""
    made = [Check(name.replace("__", "."), a, b, False, "why", ok) for name, (a, b, ok) in checks.items()]
    return Row("id", "fail", "", checks=tuple(made))


def test_every_bound_of_the_run_is_one_of_the_bundle() -> None:
    row = failing(
        relative_euclidean_distance=(0.5, 0.1, False),
        max_absolute_error=(9.0, math.inf, True),
        snr=(7.0, 3.0, False),
    )
    bounds, unknown = bounds_of(row)
    assert bounds == {"relative_euclidean_distance": 0.1, "max_absolute_error": None}
    assert unknown == ["snr"]


@pytest.mark.parametrize(("accepted", "bound"), [(0.01, 0.01), (0.5, 0.1)])
def test_an_accepted_error_is_a_bound_where_it_is_tighter(accepted: float, bound: float) -> None:
    row = failing(
        relative_euclidean_distance=(0.05, 0.1, True),
        baseline__relative_euclidean_distance=(0.05, accepted, False),
    )
    assert bounds_of(row)[0] == {"relative_euclidean_distance": bound}


def test_what_fails_by_own_metrics_alone_has_no_bundle() -> None:
    with pytest.raises(NoPayload, match="it fails by snr, which a bundle cannot hold"):
        bounds_of(failing(relative_euclidean_distance=(0.05, 0.1, True), snr=(7.0, 3.0, False)))


def test_a_test_without_own_bounds_has_no_marker() -> None:
    plain = folder.case_test("test_1.py", "ascend", {})
    assert "BOUNDS" not in plain
    assert "import pytest" not in plain
    assert "acc_threshold(**BOUNDS)" in folder.case_test("test_1.py", "ascend", {"factor": 2.0})
