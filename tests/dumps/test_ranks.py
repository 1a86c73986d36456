"""ranks and naming: process directories of every era, and names that stay the same from run to run."""

from __future__ import annotations

import pytest

from acc_pytest.dumps.base import Worker, atb_worker, natural, stable_name, torch_worker


@pytest.mark.parametrize(
    ("name", "device", "pid"),
    [("0_14460", 0, 14460), ("-1_7", -1, 7), ("12_3", 12, 3), ("cpu_3", None, 0), ("3", None, 0)],
)
def test_process_directories_of_atb(name: str, device: int | None, pid: int) -> None:
    assert atb_worker(name) == (None if device is None else Worker(device, pid, name))


@pytest.mark.parametrize(
    ("name", "device", "pid"),
    [
        ("npu0_123", 0, 123),
        ("cpu_123", -1, 123),
        ("cuda_5", -1, 5),
        ("cuda3_5", 3, 5),
        ("123_npu0", 0, 123),
        ("123_npu:2", 2, 123),
        ("123_cpu", -1, 123),
        ("123_1", 1, 123),
        ("npu0", None, 0),
        ("golden", None, 0),
    ],
)
def test_process_folders_of_torch(name: str, device: int | None, pid: int) -> None:
    assert torch_worker(name) == (None if device is None else Worker(device, pid, name))


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("msit_dump_20251120_213122", "msit_dump"),
        ("ait_dump", "ait_dump"),
        ("my dump (2)", "my_dump_2"),
        ("_20251120_213122", "dump"),
    ],
)
def test_names_are_stable_and_selectable(directory: str, name: str) -> None:
    assert stable_name(directory, "dump") == name


def test_natural_order_counts_by_value() -> None:
    assert sorted(["10_a", "9_a", "b", "1_10", "1_9"], key=natural) == ["1_9", "1_10", "9_a", "10_a", "b"]
