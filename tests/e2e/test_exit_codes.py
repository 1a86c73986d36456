"""Exit codes are those of the tables in docs/ci.md, each of which a run here ends with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from acc_pytest import cli
from acc_pytest.commands.arguments import INTERRUPTED
from acc_pytest.lab.demo import DemoPaths

from .conftest import Run

DOCUMENT = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
OF_PYTEST, OF_ACC = DOCUMENT.partition("| of `acc` alone |")[::2]


@pytest.mark.parametrize(
    ("code", "dumps", "words", "stop"),
    [
        (0, "clean", (), ""),
        (1, "faulty", (), ""),
        (2, "clean", (), "KeyboardInterrupt"),
        (3, "clean", (), "RuntimeError"),
        (4, "clean", ("--acc-baseline=nowhere.json",), ""),
        (5, "clean", ("-k", "nothing"), ""),
    ],
)
def test_a_run_of_pytest_ends_with(
    code: int,
    dumps: str,
    words: tuple[str, ...],
    stop: str,
    acc: Run,
    request: pytest.FixtureRequest,
    pytester: pytest.Pytester,
) -> None:
    if stop:
        pytester.makeconftest(f"def pytest_runtest_logstart(): raise {stop}")
    paths: DemoPaths = request.getfixturevalue(dumps)
    try:
        status = acc(paths, *words).ret
    except KeyboardInterrupt:
        status = pytest.ExitCode.INTERRUPTED
    assert status == code
    assert f"\n| {code} | " in OF_PYTEST


def test_the_document_has_every_exit_code_of_pytest() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d) \|", OF_PYTEST, re.MULTILINE)]
    assert codes == list(range(7))
    assert set(codes) >= set(pytest.ExitCode)


@pytest.mark.parametrize(
    ("words", "code", "row"),
    [
        (["diff-config", "a.json", "a.json"], 0, "| `acc diff-config` | 0: no computed setting differs"),
        (["diff-config", "a.json", "b.json"], 1, "; 1: one does |"),
        (["diff-config", "a.json", "nowhere.json"], 4, "| any | 4: one line"),
        (["report", "show", "nowhere.jsonl"], 4, "| any | 4: one line"),
        (["compare", "nowhere", "a.json"], 4, "| any | 4: one line"),
        (["opcheck", "--list"], 0, "| any other | 0: done |"),
    ],
)
def test_a_command_ends_with(
    words: list[str], code: int, row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, epsilon in (("a", 1e-5), ("b", 1e-6)):
        Path(f"{name}.json").write_text(json.dumps({"model_type": "llama", "rms_norm_eps": epsilon}))
    assert cli.main(words) == code
    assert row in OF_ACC


def test_rows_of_a_failed_run_are_shown_with_0_and_merged_with_1(acc: Run, faulty: DemoPaths) -> None:
    acc(faulty, "--acc-rows=rows.jsonl")
    assert [cli.main(["report", action, "rows.jsonl"]) for action in ("show", "merge")] == [0, 1]


def test_ctrl_c_and_a_closed_pipe(monkeypatch: pytest.MonkeyPatch, python_with_torch: None) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "check_numpy", interrupt)
    assert cli.main(["opcheck", "--list"]) == INTERRUPTED == 130
    assert "130: Ctrl-C" in OF_ACC
    code = "import sys; from acc_pytest.cli import main; sys.exit(main(['opcheck', '--list']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
    assert process.returncode in (cli.BROKEN_PIPE, -13)
    assert cli.BROKEN_PIPE == 141
    assert "141: nobody reads" in OF_ACC
