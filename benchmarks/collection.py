"""What a generated test costs beside a bare pytest item that does nothing.

    python benchmarks/collection.py [--pairs 50000] [--runs 2000]

Each figure is the smallest CPU time of several fresh pytest processes. The plan is synthetic and made
outside the clock. A run is timed from the end of collection to the session's finish. The tensors (which cost
what the data costs) are measured once, before; each pair is given that measurement. Bars: both
ratios below 2.

torch is imported on both sides: pytest 9.2 puts its log handlers on every logger that does not
propagate, and torch has dozens, which alone makes a bare item nearly twice as dear.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPEATS = 7

COMMON = """
import time, pytest, torch

class Clock:
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self):
        self.start = time.process_time()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session):
        self.collected = time.process_time()
        print(f"CLOCK collect {self.collected - self.start} {len(session.items)}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self):
        print(f"CLOCK run {time.process_time() - self.collected}")

def pytest_configure(config):
    config.pluginmanager.register(Clock())
"""

BARE = """
class Bare(pytest.Item):
    def runtest(self):
        pass

class Root(pytest.Collector):
    def collect(self):
        for number in range(COUNT):
            yield Bare.from_parent(self, name=f"LinearOperation_{number}_0")

@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if isinstance(collector, pytest.Session):
        report.result.append(Root.from_parent(collector, name="dump", nodeid="dump"))
    return report
"""

PAIRS = """
import acc_pytest.comparison, acc_pytest.judging.judges, acc_pytest.session.planning
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.mapping.reconcile import Comparison, Opened
from acc_pytest.tensors.source import TensorSource

def plan(settings):
    ops = ("LinearOperation", "ElewiseOperation", "RmsNormOperation", "SelfAttentionOperation")
    def pair(number):
        op, layer = ops[number % 4], number * 100 // COUNT
        return Pair(
            f"{op}_{number}_0", 0, None, "op", f"layers.{layer}", layer, number, "name", "same name",
            Operand(f"root.layers.{layer}.{number}", "x", op, "output[0]", ()),
            Operand(f"{layer}_Layer/{number}_{op}", f"{op}_{number}", op, "output[0]", ()),
        )
    pairs = tuple(pair(number) for number in range(COUNT))
    return Plan("g", "m", "manual", "manual", "dump", pairs, (), (), COUNT, COUNT, COUNT, COUNT)

made = plan(None)
acc_pytest.session.planning.make_plan = lambda settings: made

tensor = TensorSource(torch.ones(8))
acc_pytest.comparison.compare.open_pair = lambda pair: Opened((Comparison(tensor, tensor),))
measured = acc_pytest.judging.judges.measure(tensor, tensor)
acc_pytest.judging.judges.measure = lambda *tensors, **options: measured
"""


def measure(body: str, count: int, *options: str) -> dict[str, float]:
    """Seconds per item to collect and to run, of one fresh pytest process."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "conftest.py").write_text(f"COUNT = {count}\n{COMMON}{body}")
        Path(directory, "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *options]
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        if done.returncode != 0:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    found: dict[str, float] = {}
    for line in done.stdout.splitlines():
        place = line.find("CLOCK ")
        if place >= 0:
            _, what, seconds, *_ = line[place:].split()
            found[what] = float(seconds) / count
    return found


def best(body: str, count: int, *options: str) -> dict[str, float]:
    """The smallest figures of several processes: what the code costs when nothing else runs."""
    runs = [measure(body, count, *options) for _ in range(REPEATS)]
    return {what: min(run[what] for run in runs) for what in runs[0]}


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=50_000, help="pairs to collect")
    parser.add_argument("--runs", type=int, default=2_000, help="pairs to run")
    given = parser.parse_args()
    acc = ("-p", "acc", "--acc-golden=g", "--acc-mine=m")
    bare = best(BARE, given.pairs, "--co", "-qq")["collect"]
    ours = best(PAIRS, given.pairs, "--co", "-qq", *acc)["collect"]
    print(
        f"collect {given.pairs}: bare {bare * 1e6:.1f} us, pair {ours * 1e6:.1f} us, "
        f"ratio {ours / bare:.2f} (bar 2)"
    )
    bare = best(BARE, given.runs)["run"]
    ours = best(PAIRS, given.runs, *acc)["run"]
    print(
        f"run {given.runs}: bare {bare * 1e6:.0f} us, pair without data {ours * 1e6:.0f} us, "
        f"ratio {ours / bare:.2f} (bar 2)"
    )


if __name__ == "__main__":
    main()
