"""acc_engine = ray: two local nodes measure, and the run is the one that it would be without."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import acc_pytest.remote.engine.dispatch
import acc_pytest.remote.engine.pool
from acc_pytest.lab.demo import DemoPaths

from .conftest import QUICKER, Run, ids, read_rows

ray = pytest.importorskip("ray", reason="Ray has no wheel for this Python")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = pytest.mark.slow

STORE = 80 * 2**20
ON_RAY = "-oacc_engine=ray"
HASH = re.compile(r"verdict hash: (\w+)")
ONE_NODE = {"num_cpus": 1, "object_store_memory": STORE}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core; this process joins it, so that every session finds the same processes there.

    Ray's directory has a short path, for sockets lie below it.
    """
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="acc", dir="/tmp") as short:
        patch.setenv("RAY_TMPDIR", short)
        Path(short, "ray").mkdir()
        yield from _two_nodes(f"{short}/ray")
    patch.undo()


def _two_nodes(directory: str) -> Iterator[Any]:
    head = {**ONE_NODE, "include_dashboard": False, "temp_dir": directory}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    made.add_node(**ONE_NODE)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def properties(path: str) -> dict[str, list[tuple[str | None, str | None]]]:
    """What a JUnit file says of each test."""
    return {
        f"{case.get('classname')}.{case.get('name')}": [
            (one.get("name"), one.get("value")) for one in case.iter("property")
        ]
        for case in ElementTree.parse(path).iter("testcase")
    }


def hash_of(result: pytest.RunResult) -> str:
    found = HASH.search(result.stdout.str())
    assert found is not None, result.stdout.str()
    return found[1]


def metric(text: str) -> str:
    """The option for a metric of this code, which nodes call for each pair (`golden` has more than the one
    element that it is tried with)."""
    body = "\n".join(f"        {line}" for line in text.splitlines())
    Path("metric.py").write_text(
        "import os, pathlib, time\n"
        "def of_test(golden, mine):\n"
        f"    if golden.numel() > 1:\n{body}\n"
        "    return 0.0, ''\n"
    )
    return "--acc-metric=metric.py:of_test"


def difference(row: dict[str, str], other: dict[str, str]) -> set[str]:
    """The columns in which two rows differ."""
    return {name for name, value in row.items() if value != other[name]}


def quietly(acc: Run, paths: DemoPaths, *words: str) -> tuple[pytest.RunResult, list[dict[str, str]]]:
    """A run without tracebacks, and its rows."""
    result = acc(paths, "--tb=no", *words)
    return result, read_rows()


@pytest.mark.usefixtures("cluster")
def test_verdicts_rows_and_roots_are_those_of_a_serial_run(acc: Run, faulty: DemoPaths) -> None:
    serial = acc(faulty, "--tb=no", "--junitxml=a.xml")
    rows = read_rows()
    result = acc(faulty, "--tb=no", "--junitxml=b.xml", ON_RAY)
    assert hash_of(result) == hash_of(serial)
    assert read_rows() == rows
    assert result.ret == serial.ret == 1
    result.stdout.fnmatch_lines(["acc: pairs are measured on * node* with * core*"])
    assert properties("b.xml") == properties("a.xml")
    ours = [line for line in result.outlines if line.startswith(("verdicts", "root cause", "FAILED"))]
    assert ours == [line for line in serial.outlines if line.startswith(("verdicts", "root cause", "FAILED"))]
    assert ids(acc(faulty, "--co", "-q", ON_RAY)) == ids(acc(faulty, "--co", "-q"))


HOOK = """
def pytest_acc_thresholds(config, pair):
    if "Gather" in pair.id:
        return {"rtol": -1}
    if "RmsNorm" in pair.id:
        return {"cosine_similarity": 0.5, "relative_euclidean_distance": None}
"""


@pytest.mark.usefixtures("cluster")
def test_rules_of_hooks_count_on_nodes_and_wrong_ones_fail_their_own_pairs(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(HOOK)
    serial, rows = quietly(acc, clean)
    result, found = quietly(acc, clean, ON_RAY)
    assert found == rows
    assert hash_of(result) == hash_of(serial)
    assert {row["cmp_fail_reason"][:26] for row in found} >= {"", "hook pytest_acc_thresholds"}


@pytest.mark.usefixtures("cluster")
def test_selection_and_the_first_failure_are_as_without(acc: Run, faulty: DemoPaths) -> None:
    for words in (("-x",), ("-k", "RmsNorm"), ("--lf",), ("--acc-shard=1/2",)):
        acc(faulty)
        serial, rows = quietly(acc, faulty, *words)
        acc(faulty)
        result, found = quietly(acc, faulty, *words, ON_RAY)
        assert found == rows, words
        assert result.parseoutcomes() == serial.parseoutcomes(), words


@pytest.mark.usefixtures("cluster")
def test_operators_are_computed_again_on_nodes(acc: Run, faulty: DemoPaths) -> None:
    serial, rows = quietly(acc, faulty, "--acc-replay")
    result, found = quietly(acc, faulty, "--acc-replay", ON_RAY)
    assert found == rows
    assert hash_of(result) == hash_of(serial)


@pytest.mark.usefixtures("cluster")
def test_a_process_that_dies_loses_no_row(acc: Run, clean: DemoPaths) -> None:
    killed = Path("killed").absolute()
    dies = f"if not os.path.exists({str(killed)!r}): open({str(killed)!r}, 'w'); os.kill(os.getpid(), 9)"
    result, found = quietly(acc, clean, ON_RAY, metric(dies))
    assert killed.exists()
    killed.touch()
    serial, rows = quietly(acc, clean, metric("pass"))
    assert found == rows
    assert hash_of(result) == hash_of(serial)


@pytest.mark.usefixtures("cluster")
def test_a_pair_that_kills_every_process_is_red_and_the_others_are_not(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acc_pytest.remote.engine.dispatch, "ATTEMPTS", 2)  # each takes a new process seconds
    monkeypatch.setattr(acc_pytest.remote.engine.dispatch, "TOGETHER", 1)
    chosen = ("-k", "step0 and (ActivationOperation or RmsNorm)")
    _, rows = quietly(acc, clean, *chosen, metric("pass"))
    size = max(int(row["elements"]) for row in rows)
    dies = metric(f"if golden.numel() == {size}: os.kill(os.getpid(), 9)")
    _, found = quietly(acc, clean, *chosen, dies, ON_RAY)
    for row, right in zip(found, rows):
        if int(right["elements"]) == size:
            assert row["verdict"] == "incomparable"
            assert row["cmp_fail_reason"].startswith("not compared: WorkerCrashedError: ")
        else:
            assert difference(row, right) == set()


@pytest.mark.usefixtures("cluster")
def test_ctrl_c_ends_what_runs_on_nodes_and_leaves_the_rows_so_far(acc: Run, clean: DemoPaths) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    first = "if golden.numel() == 7: return 0.0, ''"
    try:
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            acc(clean, ON_RAY, metric(f"{first}\ntime.sleep(60)"))
    finally:
        interrupt.cancel()
        signal.signal(signal.SIGINT, before)
    give_up = time.monotonic() + 20
    every = ray.cluster_resources()["CPU"]
    while ray.available_resources().get("CPU") != every and time.monotonic() < give_up:
        time.sleep(0.1)
    assert ray.available_resources().get("CPU") == every


@pytest.mark.usefixtures("cluster")
def test_a_node_with_other_sources_is_refused_before_the_first_batch(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acc_pytest.remote.engine.pool, "sources", lambda: "x")
    result = acc(clean, ON_RAY)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: acc_engine = ray: node * has other sources of it, and here is *"])
    result.stdout.no_fnmatch_line("*passed*")


def test_rows_that_are_judged_again_need_no_nodes(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    acc(clean, "--acc-rows=rows.jsonl", "-k", "RmsNorm")
    result = pytester.runpytest_inprocess(*QUICKER, "--acc-from-rows=rows.jsonl", ON_RAY)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "acc_engine = ray measures the pairs of dumps, and here are none" in result.stderr.str()


def test_the_engine_says_what_it_does_not_go_with(acc: Run, clean: DemoPaths) -> None:
    for words, said in (
        (("-n", "2", ON_RAY), "leave -n out"),
        (("-oacc_ray_address=auto",), "acc_ray_address needs acc_engine = ray"),
        (("-oacc_engine_patience=9",), "acc_engine_patience needs acc_engine = ray"),
        (
            (ON_RAY, "-oacc_engine_patience=0"),
            "acc_engine_patience must be a number of seconds >= 1, got",
        ),
        (("-oacc_engine=dask",), "acc_engine: unknown value 'dask'"),
    ):
        result = acc(clean, *words)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert said in result.stderr.str(), words


def test_a_process_that_hangs_loses_no_row(acc: Run, clean: DemoPaths, cluster: Any) -> None:
    """It is stopped in the middle of a pair, and lets nobody end it."""
    sign = Path("stopped").absolute()
    stops = f"""
if not os.path.exists({str(sign)!r}):
    pathlib.Path({str(sign)!r}).write_text(str(os.getpid()))
    os.kill(os.getpid(), 19)
"""
    chosen = ("-k", "RmsNorm")
    result, found = quietly(acc, clean, *chosen, ON_RAY, "-oacc_engine_patience=40", metric(stops))
    stopped = int(sign.read_text())
    with contextlib.suppress(ProcessLookupError):  # Ray has ended it already
        os.kill(stopped, signal.SIGKILL)
    serial, rows = quietly(acc, clean, *chosen, metric("pass"))
    assert found == rows
    assert hash_of(result) == hash_of(serial)
    result.stdout.fnmatch_lines(["acc: node * has not answered for * s; its pairs go elsewhere"])


def test_a_node_that_is_removed_loses_no_row(acc: Run, clean: DemoPaths, cluster: Any) -> None:
    serial, rows = quietly(acc, clean, metric("pass"))
    node = cluster.list_all_nodes()[1]
    remove = threading.Timer(2.0, lambda: cluster.remove_node(node))
    remove.start()
    result, found = quietly(acc, clean, ON_RAY, metric("time.sleep(0.05)"))
    remove.join()
    assert found == rows
    assert hash_of(result) == hash_of(serial)
