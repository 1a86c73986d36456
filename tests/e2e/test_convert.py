"""`acc convert`: a kept dump is compared like the dump that it was made of, with the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.lab.demo.torchair import GeFault, TorchairPaths, TorchairSpec, make_torchair_demo
from acc_pytest.reporting.rows_file import StoredRows, read_rows

from .conftest import Run

pytestmark = pytest.mark.usefixtures("replayed")

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def torchair(tmp_path_factory: pytest.TempPathFactory) -> TorchairPaths:
    """For every test: what `torch.compile` imports must be there before pytester, which forgets the rest."""
    spec = TorchairSpec(tokens=(5,), steps=1, fault=GeFault("Gelu"))
    return make_torchair_demo(tmp_path_factory.mktemp("torchair"), spec)


def kept(path: Path, name: str) -> Path:
    assert main(["convert", str(path), "--to", "acc", "--out", name]) == 0
    return Path(name).absolute()


def rows_of(acc: Run, golden: Path, mine: Path) -> StoredRows:
    acc(DemoPaths(golden, mine), "--acc-rows=out/rows.jsonl")
    stored = read_rows("out/rows.jsonl")
    Path("out/rows.jsonl").unlink()
    return stored


def same(acc: Run, golden: Path, mine: Path) -> StoredRows:
    """Compares the dumps, and the kept ones; returns the rows of the first."""
    run = rows_of(acc, golden, mine)
    again = rows_of(acc, kept(golden, "kept_golden"), kept(mine, "kept_mine"))
    check_equal(again, run)
    return run


def check_equal(again: StoredRows, run: StoredRows) -> None:
    assert [row.test_id for row in again.rows] == [row.test_id for row in run.rows]
    assert again.verdict_hash == run.verdict_hash
    assert [row.metrics for row in again.rows] == [row.metrics for row in run.rows]
    assert [row.cause for row in again.rows] == [row.cause for row in run.rows]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_torch_and_atb(acc: Run, faulty: DemoPaths) -> None:
    run = same(acc, faulty.golden, faulty.mine)
    assert {row.verdict for row in run.rows} >= {"pass", "fail", "inherited"}
    check_equal(rows_of(acc, Path("kept_golden"), faulty.mine), run)


@pytest.mark.slow
def test_atb_against_itself(acc: Run, clean: DemoPaths) -> None:
    run = same(acc, clean.mine, clean.mine)
    assert {row.verdict for row in run.rows} == {"pass"}


def test_fx_and_ge(acc: Run, torchair: TorchairPaths) -> None:
    run = same(acc, torchair.golden, torchair.mine)
    assert any(row.verdict == "fail" for row in run.rows)


@pytest.mark.slow
def test_ge_and_ge(acc: Run, torchair: TorchairPaths) -> None:
    run = same(acc, torchair.unfused, torchair.mine)
    assert any(row.verdict == "fail" for row in run.rows)


def test_the_command_says_what_it_did_and_makes_it_undone(
    clean: DemoPaths, pytester: pytest.Pytester, capsys: Capture
) -> None:
    out = kept(clean.golden, "a")
    printed = capsys.readouterr().out
    assert printed.startswith(f"acc: {out}: ")
    assert " files of a dump of torch, " in printed
    assert main(["convert", str(clean.golden), "--to", "acc", "--out", "a"]) == 4
    assert "is there already" in capsys.readouterr().err
    assert main(["convert", "a", "--to", "files", "--out", "b"]) == 0
    (name,) = clean.golden.iterdir()
    assert contents(Path("b")) == contents(name)


@pytest.mark.slow
def test_a_part_is_compared_as_it_is_in_the_whole(
    acc: Run, faulty: DemoPaths, pytester: pytest.Pytester, capsys: Capture
) -> None:
    whole = rows_of(acc, faulty.golden, faulty.mine)
    part = ["--to", "acc", "--out", "part", "--step", "0", "--rank", "0"]
    assert main(["convert", str(faulty.mine), *part]) == 0
    rows = rows_of(acc, faulty.golden, Path("part"))
    of_step = [row for row in whole.rows if row.step == 0]
    assert [(row.test_id, row.verdict) for row in rows.rows if row.step == 0] == [
        (row.test_id, row.verdict) for row in of_step
    ]
    assert main(["convert", "part", "--to", "files", "--out", "b", "--step", "0"]) == 4
    assert "choose what --to acc keeps" in capsys.readouterr().err
