"""Names as they are out there: directories that are not UTF-8, and names made to break what shows them."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo  # layers import it when they are made, and pytester forgets what it imported
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault
from acc_pytest.reporting.csv_report import plain_text
from acc_pytest.reporting.texts import plain
from tests.reporting.resealed import resealed

from .conftest import QUICKER, Run, read_rows, small_demo

GBK = os.fsdecode("数据".encode("gbk"))
"""A directory's name as a system in GBK writes it; no UTF-8."""
SHOWN = r"\xca\xfd\xbe\xdd"
REPORTS = ("rows.jsonl", "page.html", "run.json", "page.md", "j.xml", "base.json")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """One layer with a fault, below a directory named in GBK."""
    home = tmp_path_factory.mktemp("there") / GBK
    home.mkdir()
    return small_demo(home, DemoSpec(layers=1, decode_steps=0, fault=Fault("residual", 0)))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on GitHub, also where this repository's own tests are."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def reports(home: Path) -> list[str]:
    """The options for every report, below a directory named in GBK."""
    rows, page, run, summary, junit, baseline = (f"{home / GBK}/{name}" for name in REPORTS)
    return [
        f"--acc-rows={rows}", f"--acc-html={page}", f"--acc-json={run}", f"--acc-summary={summary}",
        f"--junitxml={junit}", f"--acc-baseline={baseline}", "--acc-update-baseline=all",
        f"--acc-repro={home / GBK}/repro", f"--acc-output={home / GBK}",
    ]  # fmt: skip


def assert_written(home: Path) -> list[dict[str, str]]:
    """Every report is there and can be read; the rows of the CSV."""
    for name in (*REPORTS, "acc.csv", "repro/README.md"):
        (home / GBK / name).read_bytes().decode()
    ElementTree.parse(home / GBK / "j.xml")
    return read_rows(home / GBK / "acc.csv")


def test_dumps_and_reports_below_a_directory_that_is_not_utf_8(
    acc: Run, there: DemoPaths, pytester: pytest.Pytester
) -> None:
    result = acc(there, *reports(pytester.path))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    rows = assert_written(pytester.path)
    assert {row["verdict"] for row in rows} == {"pass", "fail", "inherited"}
    assert all(Path(plain_text(row["my_data_path"])).is_file() for row in rows if not row["fed"])
    out = result.stdout.str()
    assert out.isascii()
    assert SHOWN in out
    command = out.partition("\nre-run:")[2].replace("\\\n", " ").lstrip().partition("\n")[0]
    words = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, check=True)
    assert os.fsdecode(words.stdout).splitlines()[1:3] == [
        f"--acc-golden={there.golden}",
        f"--acc-mine={there.mine}",
    ]


def test_rows_are_judged_and_merged_again_there(
    acc: Run, there: DemoPaths, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    acc(there, *reports(pytester.path))
    rows = f"{pytester.path / GBK}/rows.jsonl"
    assert pytester.runpytest_inprocess(f"--acc-from-rows={rows}", "--acc-output=again").ret == 1
    capsys.readouterr()
    made = {
        name: f"{pytester.path / GBK}/merged.{name}"
        for name in ("csv", "html", "json", "junit", "rows", "summary")
    }
    assert main(["report", "merge", rows, *(f"--{name}={path}" for name, path in made.items())]) == 1
    assert all(os.path.getsize(path) for path in made.values())
    assert main(["report", "show", made["rows"]]) == 0
    assert main(["map", "-gp", str(there.golden), "-mp", str(there.mine)]) == 0
    assert main(["map", "-gp", str(there.golden) + "/nothing", "-mp", str(there.mine)]) == 4
    captured = capsys.readouterr()
    assert SHOWN in captured.out
    assert SHOWN in captured.err
    (captured.out + captured.err).encode()


@pytest.mark.slow
def test_workers_in_a_directory_that_is_not_utf_8(there: DemoPaths, tmp_path: Path) -> None:
    """execnet sends the working directory, the arguments and `sys.path`, and all of them are such here."""
    home = tmp_path / GBK
    home.mkdir()
    (home / "pytest.ini").write_text("[pytest]\nacc_output = out\nacc_csv = acc.csv\n")
    words = [f"--acc-golden={there.golden}", f"--acc-mine={there.mine}", "-n1", "-v", "--junitxml=j.xml"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["/", *sys.path]), "PYTHONIOENCODING": "ascii"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *QUICKER, *words],
        cwd=home,
        env=environment,
        capture_output=True,
        timeout=300,
    )
    out = done.stdout.decode("ascii")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, out + done.stderr.decode()
    assert "msit_dump::step0::layers.0::" in out
    assert "root cause: " in out
    assert {row["verdict"] for row in read_rows(home / "out/acc.csv")} == {"pass", "fail", "inherited"}
    ElementTree.parse(home / "j.xml")


CUT = "n" * 200
HOSTILE = {
    "root.second": "root.s\x1b[31m\u202e\n::error::x\udcca\t`|<b>",
    "root.third": f"root.{CUT}",
    "Linear": "Lin\x1b[2J\udcca" + "t" * 100_000,
}
"""Names that a folder can have, and a type that need not."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Two dumps of a small model whose names and types are hostile; a weight of the second layer differs."""
    home = tmp_path_factory.mktemp("hostile")
    for side in ("golden", "mine"):
        torch.manual_seed(1)
        model = nn.Sequential()
        for name in ("first", "second", "third"):
            model.add_module(name, nn.Linear(8, 8))
        if side == "mine":
            model.get_parameter("second.weight").data += 0.1
        with torch.no_grad(), register_hook(model, DumpConfig(home / side)):
            model(torch.ones(2, 8))
        for file in home.joinpath(side).rglob("*.json"):
            text = file.read_text("utf-8")
            for old, new in HOSTILE.items():
                for end in ("", ".weight", ".bias"):
                    text = text.replace(json.dumps(old + end), json.dumps(new + end))
                text = text.replace(json.dumps(old + "/")[:-1], json.dumps(new + "/")[:-1])
            file.write_text(text, "utf-8")
        for old, new in HOSTILE.items():
            for folder in list(home.joinpath(side).rglob(old)):
                folder.rename(folder.with_name(new))
    return DemoPaths(home / "golden", home / "mine")


@pytest.fixture
def long_fields() -> Iterator[None]:
    """Let this process read CSV cells of a million characters."""
    before = csv.field_size_limit(1 << 20)
    yield
    csv.field_size_limit(before)


def test_hostile_names_reach_every_report_whole_and_harmless(
    acc: Run,
    hostile: DemoPaths,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    long_fields: None,
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "step.md"))
    result = acc(hostile, *reports(pytester.path), "-rA", "--acc-explain-mapping")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    rows = assert_written(pytester.path)
    named = {plain_text(row["my_node"]) for row in rows}
    assert {HOSTILE["root.second"], HOSTILE["root.third"]} <= named
    assert HOSTILE["Linear"] in {plain_text(row["my_op_type"]) for row in rows}
    lines = result.outlines
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 1500
    errors = [line for line in lines if line.startswith("::error")]
    assert errors
    assert not any(line.startswith("::error::x") for line in lines)
    assert "characters...]" in result.stdout.str()
    assert max(map(len, (pytester.path / GBK / "page.md").read_text().splitlines())) < 3000
    junit = ElementTree.parse(pytester.path / GBK / "j.xml")
    nodes = {plain(one.get("value", "")) for one in junit.iter("property") if one.get("name") == "mine_node"}
    assert HOSTILE["root.second"] in nodes
    again = acc(hostile, "--lf")
    assert again.ret == pytest.ExitCode.TESTS_FAILED
    failed = next(line for line in again.outlines if line.startswith("FAILED "))
    assert acc(hostile, shlex.split(failed)[1]).ret == pytest.ExitCode.TESTS_FAILED


def test_test_ids_of_a_rows_file_may_be_anything(
    acc: Run, there: DemoPaths, pytester: pytest.Pytester
) -> None:
    """pytest writes the ids of what failed into its cache, as UTF-8."""
    acc(there, "--acc-rows=rows.jsonl")
    lines = Path("rows.jsonl").read_text("ascii").splitlines()
    rows = "\n".join(lines)
    failed = next(line for line in lines if '"verdict":"fail"' in line.replace(" ", ""))
    test_id = json.loads(failed)["test_id"]
    hostile = json.dumps(test_id.replace("step0::", "step0::\udcca\x1b\n"))
    Path("rows.jsonl").write_text(resealed(rows.replace(json.dumps(test_id), hostile)), "ascii")
    result = pytester.runpytest_inprocess("--acc-from-rows=rows.jsonl", "-p", "no:logging", "-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert all(line.isprintable() for line in result.outlines)
    assert r"step0::\xca\x1b\n" in result.stdout.str()
