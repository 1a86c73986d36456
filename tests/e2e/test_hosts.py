"""Dumps that lie on the nodes of a cluster, read where they lie: neither of two nodes sees the other's disk.

The second node runs in a mount namespace of its own with another host name. At the paths of mine and golden
it sees disks of its own (tmpfs), whose files nobody else can open, so that a wrong node would read wrong
files or none.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault, make_demo
from tests.remote.test_places import split
from tests.shared_directory import made_once

from .conftest import QUICKER, Run, read_rows
from .test_ray import ON_RAY, ONE_NODE, STORE, difference, hash_of, metric

ray = pytest.importorskip("ray", reason="Ray has no wheel for this Python")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = pytest.mark.slow

OTHER = "acc-node2"
APART = ("unshare", "--mount", "--uts", "--propagation", "private")
PATHS = {"golden_data_path", "my_data_path"}
"""Columns that say where files lie."""
Compare = Callable[..., tuple[pytest.RunResult, list[dict[str, str]]]]


class TwoDisks(NamedTuple):
    """`mine` is a directory of each machine, with the same names and other ranks; `golden` one of the first
    machine alone. `node` is the process of the second machine."""

    mine: Path
    golden: Path
    node: subprocess.Popen[bytes]


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Two ranks, the last residual add of which leaves the residual out."""
    spec = DemoSpec(layers=1, decode_steps=0, ranks=2, fault=Fault("residual", 0))
    return made_once(tmp_path_factory, "shards", lambda directory: make_demo(directory, spec))


@pytest.fixture(scope="module")
def disks(shards: DemoPaths) -> Iterator[TwoDisks]:
    """The cluster, which this process joins; the machine of this process is its head."""
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace needs rights that this user has not")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="acc", dir="/tmp") as short:
        patch.setenv("RAY_TMPDIR", short)
        Path(short, "ray").mkdir()
        yield from _two_machines(Path(short), shards)
    patch.undo()


def _two_machines(home: Path, shards: DemoPaths) -> Iterator[TwoDisks]:
    head = {**ONE_NODE, "include_dashboard": False, "temp_dir": f"{home}/ray"}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    mine, golden = home / "mine", home / "golden"
    first, second = (Path(place).parent for place in split(shards.mine, home / "staged", alike=True))
    shutil.copytree(shards.golden, golden)
    shutil.move(first, mine)
    node = _machine_apart(made.address, mine, golden, second)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    give_up = time.monotonic() + 60
    while sum(one["Alive"] for one in ray.nodes()) < 2 and time.monotonic() < give_up:
        time.sleep(0.1)
    shutil.rmtree(home / "staged")
    yield TwoDisks(mine, golden, node)
    ray.shutdown()
    _end(node)
    made.shutdown()


def _machine_apart(address: str, mine: Path, golden: Path, content: Path) -> subprocess.Popen[bytes]:
    """A node that sees `content` at `mine`, on a disk of its own, and nothing at `golden`."""
    script = f"""
        hostname {OTHER} && mount -t tmpfs none {mine} && mount -t tmpfs none {golden} &&
        cp -r {content}/. {mine} &&
        exec {sys.executable} -m ray.scripts.scripts start --address={address} --num-cpus=1 \\
            --object-store-memory={STORE} --block
    """
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*APART, "sh", "-c", script], start_new_session=True, **quiet)  # type: ignore[call-overload]


def _end(node: subprocess.Popen[bytes]) -> None:
    if node.poll() is None:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def place(path: Path, host: str, *ranks: int) -> str:
    listed = f"ranks = {[*ranks]}\n" if ranks else ""
    return f'[[roots]]\nhost = "{host}"\npath = "{path}"\n{listed}'


@pytest.fixture
def compare(disks: TwoDisks, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Compare golden of the first machine with the ranks of both; `other.toml` is the rank of the second."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):  # of the outer session
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]")
    here = socket.gethostname()
    Path("other.toml").write_text(place(disks.mine, OTHER))
    Path("mine.toml").write_text(place(disks.mine, here, 0) + place(disks.mine, OTHER, 1))
    Path("golden.toml").write_text(place(disks.golden, here))

    def run(
        golden: str, *words: str, mine: str = "mine.toml"
    ) -> tuple[pytest.RunResult, list[dict[str, str]]]:
        sides = (f"--acc-golden={golden}", f"--acc-mine={mine}", "-oacc_cache_dir=cache", "--tb=no")
        result = pytester.runpytest_inprocess(
            *QUICKER, *sides, "--acc-output=out", "--acc-csv=acc.csv", ON_RAY, *words
        )
        return result, read_rows()

    return run


def test_ranks_on_two_disks_are_compared_as_on_one(
    acc: Run, compare: Compare, shards: DemoPaths, disks: TwoDisks
) -> None:
    """Sharded tensors lie on both machines; golden is named by its host, or only the first machine has it."""
    serial = acc(shards, "--tb=no")
    rows = read_rows()
    for golden in ("golden.toml", str(disks.golden)):
        result, found = compare(golden)
        assert [difference(row, other) - PATHS for row, other in zip(found, rows)] == [set()] * len(rows)
        assert hash_of(result) == hash_of(serial)
        root = [line for line in serial.outlines if line.startswith("root cause")]
        assert [line for line in result.outlines if line.startswith("root cause")] == root
        assert all(f"node://{OTHER}{disks.mine}/" in row["my_data_path"] for row in found)


def test_pairs_are_measured_where_they_lie_until_their_host_is_gone(
    compare: Compare, disks: TwoDisks
) -> None:
    """The rank of the second machine beside itself, which nobody else can read. It dies after some pairs."""
    Path("where").mkdir()
    noted = metric(f"pathlib.Path({str(Path('where').absolute())!r}, os.uname().nodename).touch()")
    _, rows = compare("other.toml", "--acc-replay=off", noted, mine="other.toml")
    assert {row["verdict"] for row in rows} == {"pass"}
    assert len(rows) > 100
    assert os.listdir("where") == [OTHER]
    batch = f"pathlib.Path({str(Path('begun').absolute())!r}).touch()\ntime.sleep(0.01)"
    kill = threading.Thread(target=_end_once_there, args=(disks.node, Path("begun").absolute()))
    kill.start()
    _, found = compare("other.toml", "--acc-replay=off", metric(batch), mine="other.toml")
    kill.join()
    assert len(found) == len(rows)
    lost = [row["cmp_fail_reason"] for row in found if row["verdict"] != "pass"]
    assert lost
    gone = f"{OTHER} is no longer a node of the cluster; run again when it is back"
    assert [why for why in lost if not (why.startswith(f"node://{OTHER}{disks.mine}/") and gone in why)] == []


def _end_once_there(node: subprocess.Popen[bytes], sign: Path) -> None:
    while not sign.exists():
        time.sleep(0.01)
    _end(node)
