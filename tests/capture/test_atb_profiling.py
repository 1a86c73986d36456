"""cpu_profiling: the probe's text becomes the old tool's CSV, byte for byte where real data is at hand."""

from __future__ import annotations

import csv
import shutil
import stat
from pathlib import Path

import pytest

from acc_pytest.capture.atb.written_files import convert_profiles, profile_to_csv, written_files
from acc_pytest.errors import FormatError

PROBE = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "probe"
needs_conformance = pytest.mark.skipif(
    not PROBE.is_dir(), reason="conformance data (../shared/conformance) is not here"
)
EXAMPLE = """\
[WordEmbedding_0]:totalTime:188, runnerCreateTime:3, runnerSetupTime:115
[WordEmbedding_0]:totalTime:535801, streamSyncTime:0, tillingCopyTime:69, kernelExecuteTime:416
[LmHead_2]:totalTime:9, runnerCreateTime:1, runnerSetupTime:4
"""


def write(directory: Path, text: str, name: str = "operation_statistic_1.txt") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_columns_are_sorted_and_operations_keep_their_order(tmp_path: Path) -> None:
    text = write(tmp_path, EXAMPLE)
    table = profile_to_csv(text)
    assert table == tmp_path / "operation_statistic_1.csv"
    assert table.read_bytes().decode() == (
        "opname,execute_kernelExecuteTime,execute_streamSyncTime,execute_tillingCopyTime,execute_totalTime,"
        "setup_runnerCreateTime,setup_runnerSetupTime,setup_totalTime\n"
        "WordEmbedding_0,416,0,69,535801,3,115,188\n"
        "LmHead_2,,,,,1,4,9\n"
    )
    assert not text.exists()
    assert stat.S_IMODE(table.stat().st_mode) == 0o640


def test_the_last_line_of_a_kind_counts(tmp_path: Path) -> None:
    text = write(tmp_path, "[a]:runnerSetupTime:1\n[b]:runnerSetupTime:5\n[a]:runnerSetupTime:2, x:3\n")
    assert profile_to_csv(text).read_text() == "opname,setup_runnerSetupTime,setup_x\na,2,3\nb,5,\n"


def test_a_line_about_both_is_about_the_execution(tmp_path: Path) -> None:
    text = write(tmp_path, "[a]:kernelExecuteTime:1, runnerSetupTime:2\n[a]:runnerSetupTime:3\n")
    table = profile_to_csv(text).read_text()
    assert (
        table == "opname,execute_kernelExecuteTime,execute_runnerSetupTime,setup_runnerSetupTime\na,1,2,3\n"
    )


def test_keys_of_newer_probes_become_columns(tmp_path: Path) -> None:
    text = write(tmp_path, "[a]:kernelExecuteTime:1, launchTime:2, preLaunchTime:3\n")
    assert profile_to_csv(text).read_text() == (
        "opname,execute_kernelExecuteTime,execute_launchTime,execute_preLaunchTime\na,1,2,3\n"
    )


def test_lines_of_another_form_are_passed_over(tmp_path: Path) -> None:
    text = write(tmp_path, "noise\n[a-b]:runnerSetupTime:1\n[a]:runnerSetupTime:1\n[c]:nothing known:1\n")
    assert profile_to_csv(text).read_text() == "opname,setup_runnerSetupTime\na,1\nc,\n"


@pytest.mark.parametrize("content", [b"", b"nothing of the kind\n", b"\xff\xfe\x00"])
def test_a_text_without_a_line_stays_and_is_named(tmp_path: Path, content: bytes) -> None:
    text = tmp_path / "operation_statistic_1.txt"
    text.write_bytes(content)
    with pytest.raises(FormatError, match=r"operation_statistic_1\.txt: "):
        profile_to_csv(text)
    assert text.read_bytes() == content
    assert list(tmp_path.iterdir()) == [text]


def test_one_bad_text_costs_itself_only(tmp_path: Path) -> None:
    home = tmp_path / "msit_dump_T" / "cpu_profiling" / "77"
    home.mkdir(parents=True)
    for number in (1, 2, 3):
        write(home, EXAMPLE, f"operation_statistic_{number}.txt")
    write(home, "broken", "operation_statistic_2.txt")
    write(home, "other", "notes.txt")
    (problem,) = convert_profiles(written_files(tmp_path, "T", 0))
    assert problem.startswith(f"{home}/operation_statistic_2.txt: no line")
    assert {path.name for path in home.iterdir()} == {
        "operation_statistic_1.csv",
        "operation_statistic_2.txt",
        "operation_statistic_3.csv",
        "notes.txt",
    }


@needs_conformance
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_real_text_becomes_the_real_csv(tmp_path: Path, number: int) -> None:
    """Both runs of the probe were given the same times; one was converted by the old tool."""
    (text,) = PROBE.glob(f"D_misc/cpu_profiling_raw/*/cpu_profiling/*/operation_statistic_{number}.txt")
    (real,) = PROBE.glob(f"A/atb/*/cpu_profiling/*/operation_statistic_{number}.csv")
    copied = Path(shutil.copy(text, tmp_path))
    copied.chmod(0o640)
    assert profile_to_csv(copied).read_bytes() == real.read_bytes()


@needs_conformance
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_text_made_of_the_real_csv_gives_it_back(tmp_path: Path, number: int) -> None:
    (real,) = PROBE.glob(f"A/atb/*/cpu_profiling/*/operation_statistic_{number}.csv")
    with real.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = []
    for row in rows:
        for kind in ("setup_", "execute_"):
            pairs = [f"{key.removeprefix(kind)}:{row[key]}" for key in row if key.startswith(kind)]
            lines.append(f"[{row['opname']}]:{', '.join(pairs)}\n")
    assert profile_to_csv(write(tmp_path, "".join(lines))).read_bytes() == real.read_bytes()
