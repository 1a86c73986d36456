"""--acc-engine ray: two local nodes measure, and the run is the one that it would be without."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.demo import DemoPaths

from .conftest import Run, ids, read_rows

ray = pytest.importorskip("ray", reason="Ray has no wheel for this Python")
cluster_utils = pytest.importorskip("ray.cluster_utils")

STORE = 80 * 2**20
ON_RAY = "--acc-engine=ray"
HASH = re.compile(r"verdict hash: (\w+)")
ONE_NODE = {"num_cpus": 1, "object_store_memory": STORE}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes of one core; this process joins it, so that every session finds the same processes there.

    The path is short, for sockets lie below it.
    """
    directory = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray"
    directory.mkdir(exist_ok=True)
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={**ONE_NODE, "include_dashboard": False, "temp_dir": str(directory)},
    )
    made.add_node(**ONE_NODE)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()


def hash_of(result: pytest.RunResult) -> str:
    found = HASH.search(result.stdout.str())
    assert found is not None, result.stdout.str()
    return found[1]


def without_times(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(rows, key=lambda row: row["test_id"])


@pytest.mark.usefixtures("cluster")
def test_verdicts_rows_and_roots_are_those_of_a_serial_run(acc: Run, faulty: DemoPaths) -> None:
    serial = acc(faulty, "--tb=no", "--junitxml=a.xml")
    rows = read_rows()
    result = acc(faulty, "--tb=no", "--junitxml=b.xml", ON_RAY)
    assert hash_of(result) == hash_of(serial)
    assert read_rows() == rows
    assert result.ret == serial.ret == 1
    result.stdout.fnmatch_lines(["acc: pairs are measured on 2 nodes with 2 cores"])
    ours = [line for line in result.outlines if line.startswith(("verdicts", "root cause", "FAILED"))]
    assert ours == [line for line in serial.outlines if line.startswith(("verdicts", "root cause", "FAILED"))]
    assert ids(acc(faulty, "--co", "-q", ON_RAY)) == ids(acc(faulty, "--co", "-q"))
