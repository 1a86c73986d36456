"""Finding the probe and its ABI in a fake CANN, ATB and msprobe."""

from __future__ import annotations

import csv
import shutil
import stat
import sys
from pathlib import Path

import pytest

from acc_pytest.capture.atb.probe import find_probe
from acc_pytest.capture.atb.written_files import convert_profiles, profile_to_csv, written_files
from acc_pytest.errors import FormatError, LaunchError

from . import fake_cann

needs_compiler = pytest.mark.skipif(fake_cann.COMPILER is None, reason="no C compiler here")


@pytest.mark.parametrize(("symbols", "abi"), [(fake_cann.NEW_ABI, 1), (fake_cann.OLD_ABI, 0), ((), 0)])
def test_the_probe_is_that_of_atbs_abi(tmp_path: Path, symbols: tuple[str, ...], abi: int) -> None:
    environ = fake_cann.install(tmp_path, symbols)
    probe = find_probe(environ, era="", library=None)
    assert probe.library == tmp_path / f"cann/tools/ait_backend/dump/libatb_probe_abi{abi}.so"
    assert (probe.era, probe.notes) == ("msit", ())


def test_a_probe_and_a_new_string_in_different_names_are_not_the_new_abi(tmp_path: Path) -> None:
    environ = fake_cann.install(tmp_path, ("_ZN3atb5ProbeEv", "_ZNSt7__cxx1112basic_stringE"))
    assert find_probe(environ, era="msit", library=None).library.name == "libatb_probe_abi0.so"


@needs_compiler
@pytest.mark.parametrize(("symbols", "abi"), [(fake_cann.NEW_ABI, 1), (fake_cann.OLD_ABI, 0)])
def test_the_abi_of_a_compiled_library(tmp_path: Path, symbols: tuple[str, ...], abi: int) -> None:
    environ = fake_cann.install(tmp_path)
    fake_cann.compiled_library(tmp_path / "atb/cxx_abi_1/lib/libatb.so", symbols)
    assert find_probe(environ, era="msit", library=None).library.name == f"libatb_probe_abi{abi}.so"


def test_a_library_that_cannot_be_read_counts_as_the_old_abi_and_says_so(tmp_path: Path) -> None:
    environ = fake_cann.install(tmp_path)
    atb = tmp_path / "atb/cxx_abi_1/lib/libatb.so"
    atb.write_bytes(b"#!/bin/sh\n")
    probe = find_probe(environ, era="msit", library=None)
    assert probe.library.name == "libatb_probe_abi0.so"
    (note,) = probe.notes
    assert note == f"{atb}: not a shared library; taking the probe for the old C++ ABI"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            {"ASCEND_TOOLKIT_HOME": "/nowhere"},
            r"no ATB probe \(msit: ASCEND_TOOLKIT_HOME=/nowhere is not a directory; source the",
        ),
        ({"ATB_HOME_PATH": ""}, "ATB_HOME_PATH is not set"),
        (
            {"ATB_HOME_PATH": "/nowhere"},
            r"no ATB probe \(msit: ATB_HOME_PATH: /nowhere/lib/libatb\.so does not exist;",
        ),
    ],
)
def test_what_is_missing_is_named_with_both_ways_out(
    tmp_path: Path, broken: dict[str, str], said: str
) -> None:
    environ = fake_cann.install(tmp_path) | broken
    with pytest.raises(LaunchError, match=said) as raised:
        find_probe(environ, era="msit", library=None)
    assert "install CANN and ATB and source their set_env.sh" in str(raised.value)
    assert "--backend cpu" in str(raised.value)


def test_a_missing_probe_is_named(tmp_path: Path) -> None:
    environ = fake_cann.install(tmp_path)
    library = tmp_path / "cann/tools/ait_backend/dump/libatb_probe_abi1.so"
    library.unlink()
    with pytest.raises(LaunchError, match=f"{library}: No such file"):
        find_probe(environ, era="msit", library=None)


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_probe_that_others_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    environ = fake_cann.install(tmp_path)
    (tmp_path / "cann/tools/ait_backend/dump/libatb_probe_abi1.so").chmod(mode)
    with pytest.raises(LaunchError, match=r"can be changed by other users; run: chmod go-w"):
        find_probe(environ, era="msit", library=None)


def test_the_given_probe_needs_no_cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = fake_cann.write_library(tmp_path / "own.so")
    monkeypatch.chdir(tmp_path)
    assert find_probe({}, era="", library=Path("own.so")).library == library
    assert find_probe({}, era="", library=library).era == "msit"
    assert find_probe({}, era="msprobe", library=library).era == "msprobe"


@pytest.mark.parametrize("name", ["with space.so", "with:colon.so"])
def test_a_path_that_ld_preload_cannot_take_is_refused(tmp_path: Path, name: str) -> None:
    library = fake_cann.write_library(tmp_path / name)
    with pytest.raises(
        LaunchError,
        match=r"LD_PRELOAD cannot hold a path with a space or a colon; move the library",
    ):
        find_probe({}, era="", library=library)


def test_a_given_probe_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "probe.so").write_text("no library")
    with pytest.raises(LaunchError, match=r"probe\.so is not a shared library"):
        find_probe({}, era="", library=tmp_path / "probe.so")
    with pytest.raises(LaunchError, match="is not a file"):
        find_probe({}, era="", library=tmp_path)


@pytest.fixture
def msprobe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """msprobe in this Python, CANN and ATB in the environment, no probe inside of CANN."""
    environ = fake_cann.install(tmp_path)
    shutil.rmtree(tmp_path / "cann/tools")
    fake_cann.install_msprobe(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    return environ


@pytest.mark.parametrize("abi", [0, 1])
def test_msprobes_probe_is_found_without_importing_it(
    msprobe: dict[str, str], tmp_path: Path, abi: int
) -> None:
    home = f"{tmp_path}/atb/cxx_abi_{abi}/"
    for era in ("msprobe", ""):
        environ = msprobe | {"ATB_HOME_PATH": home}
        if not era and abi == 0:
            continue  # CANN's rule looks for libatb.so first, which is there for the other ABI only
        probe = find_probe(environ, era=era, library=None)
        assert probe.library == tmp_path / f"site/msprobe/lib/libatb_probe_abi{abi}.so"
        assert probe.era == "msprobe"
    assert "msprobe" not in sys.modules


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"ASCEND_HOME_PATH": ""}, "ASCEND_HOME_PATH is not set"),
        ({"ATB_HOME_PATH": ""}, "ATB_HOME_PATH is not set"),
        ({"ATB_HOME_PATH": "/atb"}, "ATB_HOME_PATH=/atb does not end in cxx_abi_0 or cxx_abi_1"),
    ],
)
def test_what_msprobe_lacks_is_named(msprobe: dict[str, str], broken: dict[str, str], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        find_probe(msprobe | broken, era="msprobe", library=None)


def test_without_the_package_msprobe(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="the package msprobe is not installed in this Python"):
        find_probe(fake_cann.install(tmp_path), era="msprobe", library=None)


def test_without_any_probe_both_searches_are_told() -> None:
    with pytest.raises(LaunchError, match=r"msit: .* msprobe: ASCEND_HOME_PATH is not set"):
        find_probe({"ASCEND_TOOLKIT_HOME": "/nowhere"}, era="", library=None)


# cpu_profiling: the probe's text becomes the old tool's CSV, byte for byte where real data is at hand.


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
