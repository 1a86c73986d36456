"""Bundles of failures: what is written for a pair and for a single operator, and what is left out and why."""

from __future__ import annotations

import ast
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.base.reason import Reason
from acc_pytest.diagnosis.repro import folder, view
from acc_pytest.diagnosis.repro.bundle import (
    Bundle,
    bounds_of,
    case_facts,
    pair_facts,
    write_case,
    write_pair,
)
from acc_pytest.diagnosis.repro.folder import (
    MARK,
    Stage,
    folder_name,
    inside,
    opened,
    settings_files,
    size_of,
    write_text,
)
from acc_pytest.diagnosis.repro.view import ReproBundles
from acc_pytest.errors import AccError, NoPayload
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Plan
from acc_pytest.reference.case import Case
from acc_pytest.reference.prepare import prepare
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.summary import Tally
from acc_pytest.reporting.view import Diagnosis, Result, Root, Run
from acc_pytest.tensors.ref import TensorRef
from tests.opcheck.made import softmax_dump

from .plans import plan_of, row_of

GOLDEN, MINE = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3) + 1
BYTES = 2 * 6 * 4
"""Those of a pair."""
PLENTY = 1 << 20


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Two pairs, the second computed from the first; each side's tensor is in a file of its own."""
    plan = plan_of(((), (0,)))
    pairs = []
    for number, pair in enumerate(plan.pairs):
        sides = {}
        for side, tensor in (("golden", GOLDEN), ("mine", MINE)):
            file = tmp_path / f"{side}{number}.pth"
            torch.save(tensor + number, file)
            sides[side] = replace(getattr(pair, side), refs=(TensorRef(str(file)),))
        pairs.append(replace(pair, **sides))
    return replace(plan, pairs=tuple(pairs))


def bundle(home: Path, plan: Plan, row: Row, budget: int = PLENTY, standard: str = "default") -> Bundle:
    home.mkdir()
    return write_pair(home, plan, row, standard, budget)


def saved(home: Path, name: str) -> list[float]:
    return torch.load(home / name, weights_only=True).flatten().tolist()


# ---- a pair -----------------------------------------------------------------------------------------


def test_a_bundle_holds_both_tensors_and_what_they_are_computed_from(plan: Plan, tmp_path: Path) -> None:
    home = tmp_path / "01_Op-1"
    written = bundle(home, plan, row_of(1, 5.0))
    assert [name for name, _ in written.files] == [
        "test_01_Op_1.py",
        "golden.pt",
        "mine.pt",
        "inputs/00_Op_0.golden.pt",
        "inputs/00_Op_0.mine.pt",
    ]
    assert written.left_out == []
    assert saved(home, "golden.pt") == (GOLDEN + 1).flatten().tolist()
    assert saved(home, "mine.pt") == (MINE + 1).flatten().tolist()
    assert saved(home, "inputs/00_Op_0.golden.pt") == GOLDEN.flatten().tolist()
    assert saved(home, "inputs/00_Op_0.mine.pt") == MINE.flatten().tolist()
    assert torch.load(home / "mine.pt", weights_only=True).shape == (2, 3)
    test = (home / "test_01_Op_1.py").read_text()
    assert "NAME = 'Op_1'" in test
    assert "'relative_euclidean_distance': 0.01," in test
    assert (home / "pytest.ini").read_text() == "[pytest]\n"
    unnamed = replace(row_of(0, 5.0), mine=RowSide())
    bundle(tmp_path / "02", plan, unnamed)
    assert "NAME = 'Op_0'" in (tmp_path / "02" / "test_02.py").read_text(), "else the name of the pair"


def test_tensors_that_are_too_large_are_left_out_the_nearest_first_kept(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(NoPayload, match="its tensors have 0 MiB, more than is left for bundles"):
        bundle(tmp_path / "no", plan, row_of(1, 5.0), BYTES - 1)
    alone = bundle(tmp_path / "alone", plan, row_of(1, 5.0), 2 * BYTES - 1)
    assert alone.left_out == ["input 00_Op_0: too large for what is left"]
    assert len(alone.files) == 3
    assert bundle(tmp_path / "all", plan, row_of(1, 5.0), 2 * BYTES).left_out == []
    both = replace(plan, pairs=(*plan.pairs, plan.pairs[1]), parents=((), (0,), (0, 1)))
    first = bundle(tmp_path / "first", both, row_of(2, 5.0), 3 * BYTES - 1)
    assert first.left_out == ["input 01_Op_1: too large for what is left"]
    Path(plan.pairs[0].golden.refs[0].path).unlink()
    assert bundle(tmp_path / "gone", plan, row_of(1, 5.0)).left_out[0].startswith("input 00_Op_0: ")


@pytest.mark.parametrize("number", [None, -1, 2])
def test_a_row_without_a_pair_has_no_bundle(plan: Plan, tmp_path: Path, number: int | None) -> None:
    with pytest.raises(NoPayload, match="its tensors are not at hand"):
        bundle(tmp_path / "x", plan, replace(row_of(1, 5.0), number=number))


def test_a_pair_of_a_run_made_from_rows_has_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(NoPayload, match="its tensors are not at hand"):
        bundle(tmp_path / "x", plan_of(((),)), row_of(0, 5.0))


def test_bounds_by_own_functions_are_told_as_left_out(plan: Plan, tmp_path: Path) -> None:
    row = row_of(1, 5.0)
    own = replace(row, checks=(*row.checks, Check("snr", 1.0, 2.0, True, "", False)))
    assert bundle(tmp_path / "x", plan, own).left_out == [
        "bounds on snr, whose functions are not part of a bundle"
    ]


def test_of_replicas_the_worst_is_written(plan: Plan, tmp_path: Path) -> None:
    files = []
    for rank in range(2):
        torch.save(MINE * (rank + 1), tmp_path / f"rank{rank}.pth")
        files.append(TensorRef(str(tmp_path / f"rank{rank}.pth")))
    pair = replace(plan.pairs[1], mine=replace(plan.pairs[1].mine, refs=tuple(files)))
    several = replace(plan, pairs=(plan.pairs[0], pair))
    for rank in range(2):
        row = replace(row_of(1, 5.0), notes=(Reason("{}, the worst of {} replicas", f"rank {rank}", 2),))
        bundle(tmp_path / f"0{rank}", several, row)
        assert saved(tmp_path / f"0{rank}", "mine.pt") == (MINE * (rank + 1)).flatten().tolist()


def test_the_operator_of_mine_is_added_as_a_case(plan: Plan, tmp_path: Path) -> None:
    made = softmax_dump(tmp_path / "dump")
    home = made.execution / "5_Attention" / "0_SoftmaxOperation"
    mine = replace(plan.pairs[0].mine, refs=(TensorRef(str(home / "after" / "outtensor0.bin")),))
    golden = tmp_path / "softmax.pth"
    torch.save(torch.zeros(4, 8), golden)
    pair = replace(plan.pairs[0], mine=mine, golden=replace(mine, refs=(TensorRef(str(golden)),)))
    of_atb = replace(plan, pairs=(pair, plan.pairs[1]))
    written = bundle(tmp_path / "01", of_atb, row_of(0, 5.0))
    assert written.files[-1] == (
        "operator",
        "the operator of mine with its own inputs and parameters: "
        "`pytest --acc-opcheck=operator/operation_tensors_0.csv`",
    )
    assert (tmp_path / "01" / "operator" / "operation_tensors_0.csv").is_file()
    size = 4 * 8 * (4 + 2)
    small = bundle(tmp_path / "02", of_atb, row_of(0, 5.0), size + 200)
    assert small.left_out == ["the operator of mine: too large for what is left"]


def test_a_readme_says_which_tensors_of_which_test() -> None:
    row = replace(
        row_of(1, 5.0), golden=RowSide("a.b", "a", "Linear", "output[0]", "", "torch.float32", "2x3")
    )
    assert pair_facts(row) == [
        "- golden: `Linear a.b output[0]` `torch.float32 2x3`",
        "- mine: `Op` ",
        "- in the run it came from: `dump::step0::Op_1`",
    ]


@pytest.mark.parametrize(
    ("standard", "settings"),
    [("default", None), ("", None), ("three-way", None), ("ascend", "ascend"), ("torch", "torch")],
)
def test_a_bundle_is_judged_by_the_standard_of_the_run(standard: str, settings: str | None) -> None:
    files = settings_files(standard)
    assert files.get("settings.toml") == (settings and f'standard = "{settings}"\n')
    assert files["pytest.ini"] == "[pytest]\n" + ("acc_config = settings.toml\n" if settings else "")


# ---- a single operator ------------------------------------------------------------------------------


@pytest.fixture
def case(tmp_path: Path) -> Case:
    from acc_pytest.reference.golden_inputs import entry_of

    made = softmax_dump(tmp_path / "dump", wrong=True)
    entry = entry_of(str(made.execution / "5_Attention" / "0_SoftmaxOperation"))
    assert entry is not None
    return prepare(entry)


def check_row(**fields: Any) -> Row:
    """The row of a failed check of that softmax."""
    known: dict[str, Any] = {
        "case": {"op_name": "SoftmaxOperation", "op_id": "5_0", "op_param": "{}", "standard": "ascend"},
        "checks": (Check("rmse", 0.5, 0.1, False, "ascend: table", False),),
        **fields,
    }
    return Row("op::Softmax", "fail", "rmse is 0.5", number=0, mine=RowSide(name="Softmax"), **known)


def test_a_bundle_of_an_operator_holds_the_case_and_what_it_should_have_written(
    case: Case, tmp_path: Path
) -> None:
    home = tmp_path / "01_Softmax"
    home.mkdir()
    written = write_case(home, case, [check_row()], PLENTY)
    test, csv, folder, golden = (name for name, _ in written.files)
    assert (test, csv, golden) == ("test_01_Softmax.py", "operation_tensors_0.csv", "golden")
    assert written.files[0][1] == (f"fails as the check does, and passes after `cp golden/* {folder}/after/`")
    right = TensorRef(str(home / "golden" / "outtensor0.bin")).open().double()
    assert right.sum(-1).tolist() == pytest.approx([1.0] * 4, abs=8 * 2**-11)
    given = TensorRef(str(home / folder / "after" / "outtensor0.bin")).open().double()
    assert (given - right)[2, 5].item() == pytest.approx(0.25, abs=2**-9)
    assert "standard='ascend'" in (home / test).read_text()
    assert (home / "pytest.ini").read_text() == "[pytest]\n"


def test_own_bounds_of_a_check_are_in_its_test(case: Case, tmp_path: Path) -> None:
    own = (
        Check("rmse", 0.5, 0.1, False, "ascend: table", False),
        Check("cosine_similarity", 0.5, 0.9, True, "set by x.toml", False),
        Check("snr", 0.5, 0.9, True, "set by x.toml", False),
    )
    row = check_row(checks=own)
    row = replace(row, case={**row.case, "factor": 2.0})
    home = tmp_path / "01"
    home.mkdir()
    write_case(home, case, [row, replace(row, case={**row.case, "factor": "no"})], PLENTY)
    text = (home / "test_01.py").read_text()
    assert "BOUNDS = {\n    'factor': 2.0,\n    'cosine_similarity': 0.9,\n}" in text


@pytest.mark.parametrize(
    ("row", "budget", "said"),
    [
        (check_row(), 10, "its tensors have 0 MiB, more than is left for bundles"),
        (
            check_row(notes=("judged is what the device computed from the dumped inputs",)),
            PLENTY,
            "what the device computed is not kept; run without acc_opcheck_backend",
        ),
        (
            check_row(
                case={**check_row().case, "standard": "three-way"},
                checks=(Check("rmse_ratio", 3.0, 2.0, False, "twice that of the other device", False),),
            ),
            PLENTY,
            "it is judged by the dump of a second device",
        ),
    ],
)
def test_a_check_that_needs_more_than_a_bundle_holds_has_none(
    case: Case, tmp_path: Path, row: Row, budget: int, said: str
) -> None:
    (tmp_path / "01").mkdir()
    with pytest.raises(NoPayload, match=said):
        write_case(tmp_path / "01", case, [row], budget)


def test_a_readme_says_which_case(case: Case) -> None:
    assert case_facts([check_row()]) == [
        "- operator: `SoftmaxOperation`, ids `5_0`",
        "- parameters: `{}`",
        "- standard: `ascend`",
        "- in the run it came from: `op::Softmax`",
    ]


# ---- all of a run -----------------------------------------------------------------------------------


def result(*rows: Row) -> Result:
    """The result of a run with these roots."""
    roots = tuple(
        Root(row.number or 0, row.name, row.test_id, row, 0, None, None, "", row.sentence) for row in rows
    )
    return Result(1, Tally(), 1.0, "", diagnosis=Diagnosis(roots, 0, "", ()))


def ran(directory: Path, plan: Plan | None, *rows: Row) -> tuple[ReproBundles, Path]:
    made = ReproBundles(str(directory), "ascend")
    made.begin(Run(plan=plan))
    for row in rows:
        made.add(row)
    made.finish(result(*(row for row in rows if row.number is not None)))
    made.land()
    made.close()
    return made, directory


def test_a_run_has_a_folder_for_each_root_and_a_list_of_them(plan: Plan, tmp_path: Path) -> None:
    made, home = ran(tmp_path / "repro", plan, row_of(1, 5.0), replace(row_of(0, 7.0), sentence="seven"))
    assert sorted(path.name for path in home.iterdir()) == sorted(
        ["01_Op_1", "02_Op_0", "README.md", "pytest.ini", MARK, "settings.toml"]
    )
    assert (made.files, made.place, made.lines()) == ([str(home / "README.md")], str(home), [])
    lines = (home / "README.md").read_text().splitlines()
    sizes = [
        sum(f.stat().st_size for f in (home / name).rglob("*") if f.is_file())
        for name in ("01_Op_1", "02_Op_0")
    ]
    assert lines[0] == "# Failures that repeat on their own"
    assert f"acc_pytest is all they need. {sum(sizes) / 1024:.0f} KiB in all." in lines[2]
    assert lines[4] == f"- `pytest 01_Op_1` ({sizes[0] / 1024:.0f} KiB): `error is 5`"
    assert lines[5].endswith(": `seven`")
    assert json.loads((home / "01_Op_1" / MARK).read_text()) == {
        "test_id": "dump::step0::Op_1", "name": "Op_1", "sentence": "error is 5", "number": 1,
    }  # fmt: skip
    readme = (home / "01_Op_1" / "README.md").read_text()
    assert readme.startswith("# `Op_1`\n\n    error is 5\n\n- golden: ")
    assert "| `golden.pt` | the trusted tensor, as it was compared |" in readme


def test_a_root_without_a_bundle_says_why(plan: Plan, tmp_path: Path) -> None:
    _, home = ran(tmp_path / "a", plan, row_of(5, 5.0))
    assert "- `01_Op_5` has no test: `its tensors are not at hand`" in (home / "README.md").read_text()
    assert (home / "01_Op_5" / MARK).is_file()
    assert "# `Op_5`" in (home / "01_Op_5" / "README.md").read_text()
    _, home = ran(tmp_path / "b", None, row_of(5, 5.0))
    assert "has no test: `the run compared no dumps`" in (home / "README.md").read_text()


def test_what_is_left_out_is_in_the_readme_and_of_the_next_budget(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "BUDGET", BYTES)
    _, home = ran(tmp_path / "a", plan, row_of(1, 5.0), row_of(0, 5.0))
    assert (
        "- left out: `input 00_Op_0: too large for what is left`"
        in (home / "01_Op_1" / "README.md").read_text()
    )
    assert "- `02_Op_0` has no test: `its tensors have" in (home / "README.md").read_text()


def test_so_many_bundles_are_enough(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = row_of(1, 5.0), row_of(0, 5.0), row_of(1, 6.0)
    monkeypatch.setattr(view, "MOST", 3)
    _, home = ran(tmp_path / "all", plan, *rows)
    assert "more have no bundle" not in (home / "README.md").read_text()
    monkeypatch.setattr(view, "MOST", 1)
    _, home = ran(tmp_path / "a", plan, *rows)
    assert (home / "README.md").read_text().endswith("- 2 more have no bundle: 1 are enough\n")
    assert not list(home.glob("02_*"))


def test_a_run_without_failures_has_no_list(plan: Plan, tmp_path: Path) -> None:
    made, home = ran(tmp_path / "a", plan)
    assert (made.files, [path.name for path in home.iterdir()]) == ([], [MARK])


def test_failures_of_own_tests_are_counted(plan: Plan, tmp_path: Path) -> None:
    own = replace(row_of(0, 5.0), number=None)
    made, _ = ran(tmp_path / "a", plan, own, own, replace(own, verdict="pass"), row_of(1, 5.0))
    assert made.lines() == ["no bundle of 2 failures of your own tests: their tensors are in no dump"]


def test_a_failed_operator_has_one_bundle_for_all_its_rows(case: Case, tmp_path: Path) -> None:
    asked = []

    def case_of(test_id: str) -> Case:
        asked.append(test_id)
        if test_id == "gone":
            raise AccError("no longer there")
        return case

    made = ReproBundles(str(tmp_path / "a"), case_of=case_of)
    made.begin(Run(title="opcheck"))
    second = replace(check_row(), test_id="gone", number=1)
    for row in (
        second,
        check_row(),
        check_row(),
        check_row(),
        replace(check_row(), verdict="pass", test_id="x"),
    ):
        made.add(row)
    made.finish(Result(1, Tally(), None, ""))
    made.land()
    assert asked == ["op::Softmax", "gone"], "in the order of the source"
    text = (tmp_path / "a" / "README.md").read_text()
    assert "- `pytest 01_Softmax` (" in text
    assert "- `02_Softmax` has no test: `no longer there`" in text
    readme = (tmp_path / "a" / "01_Softmax" / "README.md").read_text()
    assert "- operator: `SoftmaxOperation`, ids `5_0`" in readme
    assert (tmp_path / "a" / "pytest.ini").read_text() == "[pytest]\n"


def test_bundles_that_were_not_put_into_their_place_are_removed(plan: Plan, tmp_path: Path) -> None:
    made = ReproBundles(str(tmp_path / "a"))
    made.close()
    made.begin(Run(plan=plan))
    made.finish(result(row_of(1, 5.0)))
    made.close()
    assert [path.name for path in (tmp_path / "a").iterdir()] == [MARK]


# ---- the directory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "is_ours"),
    [
        ("01_x/repro.json", True),
        ("README.md", True),
        ("settings.toml", True),
        (".pytest_cache/x", True),
        (".unfinished_x/y", True),
        ("01_x/other", False),
        ("x/repro.json", False),
        ("notes.md", False),
    ],
)
def test_a_directory_that_holds_anything_else_is_left_alone(
    tmp_path: Path, entry: str, is_ours: bool
) -> None:
    home = opened(str(tmp_path / "a"))
    (home / entry).parent.mkdir(exist_ok=True)
    (home / entry).touch()
    if is_ours:
        assert opened(str(home)) == home
    else:
        with pytest.raises(AccError, match=f"holds '{entry.partition('/')[0]}', which is not a bundle"):
            opened(str(home))


def test_without_our_mark_nothing_is_ours_and_a_link_never_is(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    with pytest.raises(AccError, match=r"holds 'README.md'"):
        opened(str(tmp_path))
    assert not (tmp_path / MARK).exists()
    home = opened(str(tmp_path / "a"))
    (home / "README.md").symlink_to(tmp_path / "README.md")
    with pytest.raises(AccError, match=r"holds 'README.md'"):
        opened(str(home))
    (tmp_path / "file").touch()
    with pytest.raises(AccError, match="cannot be written: "):
        opened(str(tmp_path / "file" / "a"))


@pytest.mark.parametrize(
    ("name", "folder"),
    [("Op_1", "07_Op_1"), ("-_a.b/c_-", "07_a_b_c"), ("...", "07_root"), ("n" * 61, f"07_{'n' * 60}")],
)
def test_the_folder_of_a_bundle_is_called_after_its_number_and_name(name: str, folder: str) -> None:
    assert folder_name(7, name) == folder
    assert folder_name(123, "a") == "123_a"


def test_the_size_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"123")
    (tmp_path / "y").write_bytes(b"12")
    assert size_of(tmp_path) == 5
    assert [view._mib(size) for size in (2048, (1 << 20) - 1, 1 << 20, 3 << 19)] == [
        "2 KiB", "1024 KiB", "1.0 MiB", "1.5 MiB",
    ]  # fmt: skip


# Names from dumps in bundles: harmless as paths, in Python and in Markdown.


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
    assert "`pytest test_1.py`" in text
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


# Bundles take the place of an earlier run's when all are whole; a killed run leaves the earlier ones.


def earlier(directory: Path) -> Path:
    """A directory with the bundle of an earlier run."""
    home = opened(str(directory))
    write_text(home / "01_old" / MARK, "{}\n")
    write_text(home / "README.md", "old\n")
    return home


def test_earlier_bundles_stay_until_the_new_ones_are_whole(tmp_path: Path) -> None:
    home = earlier(tmp_path / "repro")
    stage = Stage(opened(str(home)))
    write_text(stage.folder / "01_new" / MARK, "{}\n")
    write_text(stage.folder / "README.md", "new\n")
    assert (home / "01_old" / MARK).is_file()
    assert (home / "README.md").read_text() == "old\n"
    stage.land()
    assert sorted(os.listdir(home)) == ["01_new", "README.md", MARK]
    assert (home / "README.md").read_text() == "new\n"


def test_a_run_in_which_nothing_failed_leaves_no_earlier_bundles(tmp_path: Path) -> None:
    home = earlier(tmp_path / "repro")
    Stage(home).land()
    assert os.listdir(home) == [MARK]


def test_what_a_killed_run_left_is_removed_and_what_a_run_makes_is_not(tmp_path: Path) -> None:
    home = earlier(tmp_path / "repro")
    (home / ".unfinished_killed" / "01_half").mkdir(parents=True)
    running = Stage(opened(str(home)))
    beside = Stage(opened(str(home)))
    assert sorted(home.glob(".unfinished_*")) == sorted([running.folder, beside.folder])
    running.drop()
    beside.drop()
    assert sorted(os.listdir(home)) == ["01_old", "README.md", MARK]
