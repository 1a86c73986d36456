"""One session of pytest over two dumps, with what it took: time, processor time, memory, bytes sent."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SCALE_STARTED_BY"
"""What all processes that this one starts have in their environment, those of its cluster as well."""
MARK = f"{VARIABLE}={uuid.uuid4().hex}".encode()
os.environ[VARIABLE] = MARK.decode().partition("=")[2]
OURS = "SCALE_SESSION"
"""What a session and the processes that it starts itself have there besides."""
_TICK = os.sysconf("SC_CLK_TCK")
_LOOK = 0.1
AT_TEST = "SCALE_AT_TEST"
"""The environment variable that says after how many tests the file `REACHED` appears."""
REACHED = "reached"
PLUGIN = f"""
import os, pathlib, resource, time
import pytest
from acc_pytest.remote.engine.engine import Engine

close, take = Engine.close, Engine._take
answered = []

def taken(engine, *answer):
    take(engine, *answer)
    answered.append(time.monotonic())

Engine._take = taken

def told(engine):
    print("\\nSCALE sent", engine.traffic.sent, "\\nSCALE received", engine.traffic.received)
    print("\\nSCALE answering", answered[-1] - answered[0])
    close(engine)

Engine.close = told

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session):
    begun, used = time.monotonic(), time.process_time()
    if wanted := int(os.environ.get("{AT_TEST}", 0)):
        session.config.pluginmanager.register(Reaching(wanted))
    try:
        return (yield)
    finally:
        if not hasattr(session.config, "workerinput"):
            print("\\nSCALE loop", time.monotonic() - begun)
            print("\\nSCALE controller", time.process_time() - used)
            print("\\nSCALE memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)

class Reaching:
    def __init__(self, wanted):
        self.left = wanted

    def pytest_runtest_logreport(self, report):
        self.left -= report.when == "call"
        if not self.left:
            pathlib.Path("{REACHED}").touch()
"""


@dataclass(frozen=True)
class Took:
    """Seconds of wall time, of the loop of tests, from the first to the last answer of a node, of all
    processors, and of the controller's in the loop; bytes of the controller's largest resident size and of
    what was sent and received; the verdict hash and how many rows there are.
    """

    wall: float
    loop: float
    answering: float
    cpu: float
    controller: float
    memory: int
    sent: int
    received: int
    verdict: str
    rows: int


def session(home: Path, golden: Path, mine: Path, *words: str) -> Took:
    """Run pytest in a process of its own. Ends the benchmark where that fails."""
    work = home / "session"
    work.mkdir(exist_ok=True)
    (work / "conftest.py").write_text(PLUGIN)
    (work / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", f"--acc-golden={golden}"]
    command += [f"--acc-mine={mine}", "--acc-csv=rows.csv", *words]
    with counted_processors() as used:
        begun = time.monotonic()
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, env={**os.environ, OURS: "1"}
        )
        wall = time.monotonic() - begun
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    told = {name: float(value) for name, value in re.findall(r"SCALE (\w+) ([\d.]+)", done.stdout)}
    verdict = re.search(r"verdict hash: (\w+)", done.stdout)
    return Took(
        wall, told["loop"], told.get("answering", 0.0), sum(used.values()), told["controller"],
        int(told["memory"]), int(told.get("sent", 0)), int(told.get("received", 0)),
        verdict[1] if verdict else "",
        max(0, len((work / "rows.csv").read_text().splitlines()) - 1),
    )  # fmt: skip


@contextlib.contextmanager
def counted_processors() -> Iterator[dict[int, float]]:
    """Seconds of user and system time, complete afterwards: by process those of a cluster that runs already,
    as far as they fall into this time, and (as 0) those of all that this one has started and waited for.

    Nobody waits for the processes of a cluster, so they are looked at now and then while they live.
    """
    before, waited = seconds_of_cluster(), _waited_for()
    used: dict[int, float] = {}
    ended = threading.Event()

    def look() -> None:
        used.update((number, now - before.get(number, 0.0)) for number, now in seconds_of_cluster().items())

    def watch() -> None:
        while not ended.wait(_LOOK):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        ended.set()
        thread.join()
        look()
        used[0] = _waited_for() - waited


def _waited_for() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def seconds_of_cluster() -> dict[int, float]:
    """What each process that carries our mark, and is of no session, has used so far."""
    found = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            variables = Path("/proc", process, "environ").read_bytes().split(b"\0")
            if MARK not in variables or f"{OURS}=1".encode() in variables or int(process) == os.getpid():
                continue
            words = Path("/proc", process, "stat").read_bytes().rpartition(b")")[2].split()
            found[int(process)] = (int(words[11]) + int(words[12])) / _TICK
    return found
