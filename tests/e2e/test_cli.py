"""The `acc` command: compare under the old flags, and map."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from acc_pytest import __version__, cli
from acc_pytest.lab.demo import DemoPaths
from tests.each_case import check_each

from .conftest import QUICKER, read_rows

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(pytester: pytest.Pytester) -> None:
    """In a directory of its own, with an ini file so that pytest looks no further."""
    pytester.makeini("[pytest]")


def compare(paths: DemoPaths, *words: str) -> int:
    """Run `acc compare`; pytest runs in this process."""
    own, _, for_pytest = " ".join(words).partition(" -- ")
    sides = ["-gp", str(paths.golden), "-mp", str(paths.mine)]
    return cli.main(["compare", *sides, *own.split(), "--", *QUICKER, *shlex.split(for_pytest)])


def test_compare_runs_the_comparison_and_returns_pytests_exit_code(
    clean: DemoPaths, faulty: DemoPaths, capsys: Capture
) -> None:
    assert compare(clean, "-o reports") == 0
    assert {row["verdict"] for row in read_rows("reports/acc_report.csv")} == {"pass"}
    assert compare(faulty, "-o reports -l warning -- -x") == 1
    assert "root cause: " in capsys.readouterr().out


@pytest.mark.parametrize(("old", "level"), [("api", "op"), ("layer", "layer"), ("module", "module")])
def test_the_old_levels(stepped: DemoPaths, capsys: Capture, old: str, level: str) -> None:
    assert compare(stepped, f"-cl {old} -o . -- -k step1") == 0
    (report,) = Path().glob("*.csv")
    assert {row["level"] for row in read_rows(report) if not row["fed"]} == {level}


def test_token_of_the_first_releases_is_logits(clean: DemoPaths, capsys: Capture) -> None:
    for level in ("token", "logits"):
        assert compare(clean, f"-cl {level} -o {level}") == 0
    named = [[row["test_id"] for row in read_rows(next(Path(x).glob("*.csv")))] for x in ("token", "logits")]
    assert named[0] == named[1]
    assert 0 < len(named[0]) < 10


def test_old_mapping_file_and_algorithms(clean: DemoPaths, capsys: Capture) -> None:
    Path("op_mapping_file.json").write_text("{}")
    Path("a.py").write_text(
        "def one(golden, mine):\n    return 1.0, ''\ndef two(golden, mine):\n    return 2.0, ''\n"
    )
    assert compare(clean, "-mf . -alg a.py:one a.py:two -o . -- -k 'step0 and RmsNorm'") == 0
    (report,) = Path().glob("*.csv")
    rows = [row for row in read_rows(report) if row["verdict"] == "pass"]
    assert {(row["one"], row["two"]) for row in rows} == {("1.0", "2.0")}


def test_st_is_accepted_and_said_to_be_needless(clean: DemoPaths, capsys: Capture) -> None:
    assert compare(clean, "-st -o . -- --co -q") == 0
    assert "-st is not needed" in capsys.readouterr().err


def test_flags_that_have_no_counterpart_are_refused_with_a_sentence(
    clean: DemoPaths, capsys: Capture
) -> None:
    assert compare(clean, "-w") == 4
    error = capsys.readouterr().err
    assert error.startswith("acc: error: ")
    assert "weights are compared beside the dumps" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("rank", "code", "said"),
    [("0", 0, ""), ("x", 4, "--acc-rank must be a whole number"), ("7", 4, "has no such rank")],
)
def test_r_picks_a_rank(clean: DemoPaths, capsys: Capture, rank: str, code: int, said: str) -> None:
    assert compare(clean, f"-r {rank} -o . -- --co -q") == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [[], ["compare"], ["compare", "-mp", "a"], ["nothing"], ["map", "-gp", "a", "-mp", "b", "--", "-x"]],
)
def test_a_wrong_command_line_is_pytests_exit_code_4(words: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(words)
    assert exit_.value.code == 4
    assert "error: " in capsys.readouterr().err


def test_a_misspelt_command_gets_the_nearest(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["comparee"])
    assert "invalid choice: 'comparee'; did you mean 'compare'? known: " in capsys.readouterr().err


def test_a_wrong_path_is_one_line(capsys: Capture) -> None:
    assert cli.main(["map", "-gp", "nowhere", "-mp", "nowhere"]) == 4
    error = capsys.readouterr().err
    assert error.startswith("acc: error: nowhere: ")
    assert len(error.splitlines()) == 1


def test_what_only_reads_the_disk_says_so_of_an_address(capsys: Capture) -> None:
    commands = (
        ("convert", "--to", "acc", "s3://bucket/dump"),
        ("convert", "--to", "files", "s3://bucket/dump"),
        ("onnx", "s3://bucket/dump"),
        ("dump-info", "s3://bucket/dump"),
        ("opcheck", "-i", "s3://bucket/dump"),
        ("opcheck", "-c", "x.csv", "-i", "s3://bucket/dump"),
    )

    def check(words: tuple[str, ...]) -> None:
        assert cli.main([*words]) == 4
        said = " ".join("".join(capsys.readouterr()).split())
        assert "s3://bucket/dump: only what lies on the disk can be read here; copy it there" in said

    check_each(((" ".join(words), words) for words in commands), check)


def test_map_prints_the_mapping_alone(clean: DemoPaths, capsys: Capture) -> None:
    assert cli.main(["map", "-gp", str(clean.golden), "-mp", str(clean.mine), "-cl", "layer"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("unmapped of golden: ") for line in lines)
    assert not list(Path().glob("*.csv"))


@pytest.mark.usefixtures("python_with_torch")
def test_a_reader_that_stops_early_is_no_error(clean: DemoPaths) -> None:
    command = "import sys; from acc_pytest.cli import main; sys.exit(main())"
    line = f"{sys.executable} -c '{command}' map -gp {clean.golden} -mp {clean.mine} | head -1"
    shown = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert shown.stdout.startswith("golden: torch")
    assert shown.stderr == ""


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "acc_pytest", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (shown.returncode, shown.stdout) == (0, f"acc-pytest {__version__}\n")


@pytest.mark.parametrize("command", ["", *(add.__name__.removeprefix("add_") for add in cli.COMMANDS)])
def test_help_fits_eighty_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main([*([command.replace("_", "-")] if command else []), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
