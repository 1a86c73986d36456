"""Written files: files of this run only, by kind, with sizes and places."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from acc_pytest.capture.atb.written_files import WrittenFiles, written_files

PROBE = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "probe"
needs_conformance = pytest.mark.skipif(
    not PROBE.is_dir(), reason="conformance data (../shared/conformance) is not here"
)
NOW = 1_000_000_000_000_000_000
"""When the run began, in nanoseconds."""


def put(root: Path, *names: str, at: int = NOW) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
        os.utime(path, ns=(at, at))


def found(written: WrittenFiles) -> dict[str, tuple[int, int, str]]:
    assert written.root is not None
    return {
        kind.name: (len(kind.files), kind.bytes, str(kind.place.relative_to(written.root)))
        for kind in written.kinds
    }


def test_files_are_sorted_by_kind(tmp_path: Path) -> None:
    put(
        tmp_path / "msit_dump_T",
        "tensors/0_7/0/0_Op/op_param.json",
        "tensors/0_7/0/0_Op/before/intensor0.bin",
        "tensors/0_7/0/0_Op/after/outtensor0.bin",
        "tiling/0_7/0/0_Op/0_Kernel/kernel_tilingdata.bin",
        "layer/7/Op_0.json",
        "layer/7/Op_0.onnx",
        "model/7/M.json",
        "operation_io_tensors/7/operation_tensors_0.csv",
        "kernel_io_tensors/7/kernel_tensors_0.csv",
        "cpu_profiling/7/operation_statistic_1.csv",
        "notes.txt",
    )
    written = written_files(tmp_path, "T", NOW)
    assert written.root == tmp_path / "msit_dump_T"
    assert found(written) == {
        "tensors": (2, 10, "tensors/0_7/0/0_Op"),
        "parameters": (1, 5, "tensors/0_7/0/0_Op"),
        "tiling": (1, 5, "tiling/0_7/0/0_Op/0_Kernel"),
        "layer": (1, 5, "layer/7"),
        "model": (1, 5, "model/7"),
        "op": (1, 5, "operation_io_tensors/7"),
        "kernel": (1, 5, "kernel_io_tensors/7"),
        "cpu_profiling": (1, 5, "cpu_profiling/7"),
        "onnx": (1, 5, "layer/7"),
        "other": (1, 5, "."),
    }
    assert written.bytes == 55


def test_the_place_is_what_all_ranks_have_in_common(tmp_path: Path) -> None:
    put(tmp_path / "msit_dump_T", "tensors/0_7/0/a/after/x.bin", "tensors/1_8/0/a/after/x.bin")
    assert found(written_files(tmp_path, "T", NOW)) == {"tensors": (2, 10, "tensors")}


def test_msprobes_layout(tmp_path: Path) -> None:
    put(
        tmp_path / "atb_dump_data",
        "data/0_7/0/0_Op/after/outtensor0.bin",
        "data/0_7/0/statistic.csv",
        "info/layer/0_7/Op_0.json",
        "info/model/0_7/M.json",
    )
    assert found(written_files(tmp_path, "T", NOW)) == {
        "tensors": (1, 5, "data/0_7/0/0_Op/after"),
        "statistic.csv": (1, 5, "data/0_7/0"),
        "layer": (1, 5, "info/layer/0_7"),
        "model": (1, 5, "info/model/0_7"),
    }


@pytest.mark.parametrize("root", ["msit_dump", "ait_dump", "atb_dump_data"])
def test_in_a_directory_without_a_timestamp_older_files_are_not_this_runs(tmp_path: Path, root: str) -> None:
    part = "data" if root == "atb_dump_data" else "tensors"
    put(tmp_path / root, f"{part}/0_7/0/a/after/old.bin", at=NOW - 1)
    assert written_files(tmp_path, "T", NOW) == WrittenFiles(None)
    put(tmp_path / root, f"{part}/0_7/0/a/after/new.bin")  # the process id has come back
    written = written_files(tmp_path, "T", NOW)
    assert [path.name for path in written.files("tensors")] == ["new.bin"]


@pytest.mark.parametrize("root", ["msit_dump_T", "ait_dump_T"])
def test_in_a_directory_with_this_runs_timestamp_everything_is_this_runs(tmp_path: Path, root: str) -> None:
    put(tmp_path / root, "model/7/M.json", at=NOW - 10**9)  # a file system with a clock of its own
    assert written_files(tmp_path, "T", NOW).root == tmp_path / root


def test_dumps_of_other_runs_are_not_looked_at(tmp_path: Path) -> None:
    put(tmp_path / "msit_dump_S", "model/7/M.json")
    put(tmp_path / "tensors", "0_7/0/a/after/x.bin")
    assert written_files(tmp_path, "T", NOW) == WrittenFiles(None)


def test_unfinished_files_and_targets_of_links_do_not_count(tmp_path: Path) -> None:
    put(tmp_path / "msit_dump_T", "tensors/0_7/0/a/after/x.bin", "tensors/0_7/0/a/after/.x.bin.part")
    link = tmp_path / "msit_dump_T/tensors/0_7/0/a/after/y.bin"
    link.symlink_to("x.bin")
    (tmp_path / "msit_dump_T" / "elsewhere").symlink_to(tmp_path)
    assert found(written_files(tmp_path, "T", NOW)) == {
        "tensors": (2, 5 + len("x.bin"), "tensors/0_7/0/a/after")
    }


def test_of_several_roots_the_one_with_tensors_is_it(tmp_path: Path) -> None:
    put(tmp_path / "msit_dump_T", "model/7/M.json")
    put(tmp_path / "ait_dump_T", "tensors/0_7/0/a/after/x.bin")
    assert written_files(tmp_path, "T", NOW).root == tmp_path / "ait_dump_T"


@needs_conformance
@pytest.mark.parametrize(
    ("data", "dump"), [("A", "atb"), ("D_misc", "onnx"), ("D_e4", "atb"), ("D_e4", "atb_stats_top")]
)
def test_real_dumps_are_counted(data: str, dump: str) -> None:
    facts = json.loads((PROBE / data / "expected_facts.json").read_text())[dump]
    timestamp = facts["dump_roots"][0].removeprefix("msit_dump_")
    written = written_files((PROBE / data / dump).resolve(), timestamp, 0)
    seen = {kind.name: len(kind.files) for kind in written.kinds}
    assert "other" not in seen
    assert sum(seen.values()) == facts["files"]
    assert seen.get("tensors", 0) == facts["bins"]["total"]
    assert seen.get("tiling", 0) == facts["files_by_kind"].get("tiling", 0)
    assert seen.get("op", 0) == facts["files_by_kind"].get("operation_io_tensors", 0)
    assert seen.get("onnx", 0) == facts["files_by_ext"].get(".onnx", 0)
    assert written.root is not None
    assert written.bytes == sum(path.stat().st_size for path in written.root.rglob("*") if path.is_file())
