"""What thousands of small pairs cost, beside bare pytest items that do nothing: CPU time, and memory kept.

    python benchmarks/small_pairs.py [--pairs 2000] [--elements 8192] [--repeat 5] [--many [100000]]

    files    a comparison of as many fp16 pairs as told (golden .pth, mine an ATB .bin, both in one
             metadata.json), whole process from start to end, over as many bare items of a process that has
             torch, as tests of tensors have; at most 1.6. Beside it: bare items without torch.
    pair     what one more pair costs without files, its measurement given, over one more bare item; at most
             1.8 (1.3 ms over 0.72 ms).
    memory   KB that one more finished pair leaves in the process, without reports that keep rows, with
             --junitxml, and with JUnit, CSV, rows and page; at most 6 KB for the first two.
    many     peak memory of as many pairs of 128 elements with all four reports; below 1 GB for 100,000.

CPU time is user and system seconds of fresh processes, the smallest of `--repeat`; the two sides run in turn.
In `pair` and `memory` torch is imported on both sides, in `files` ours does without it. Bytecode is on, in a
cache of its own that a first run fills. The exit status is 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from collection import BARE, PAIRS

from acc_pytest.tensors import atb_bin

ROOT = Path(__file__).resolve().parents[1]
OURS = ("-p", "acc_pytest.plugin")
SYNTHETIC = (*OURS, "--acc-golden=g", "--acc-mine=m")
REPORTS = ("--junitxml=j.xml", "--acc-rows=r.jsonl", "--acc-html=p.html")
NOISE = 2e-4
"""Relative error of mine: less than what rounding to fp16 leaves."""

WITH_TORCH = "import torch\n"
TIMED = """
import resource, sys, pytest
status = pytest.main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
sys.stderr.write(f"\\n{used.ru_utime + used.ru_stime} {used.ru_maxrss}\\n")
raise SystemExit(status)
"""
RESIDENT = """
import gc, pytest

def resident():
    gc.collect()
    with open("/proc/self/status") as file:
        print("RESIDENT", next(line for line in file if line.startswith("VmRSS")).split()[1])

class Resident:
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self):
        resident()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self):
        resident()

# Reports are kept as they are where a plugin that nobody knows may read them.
for hook in (Resident.pytest_sessionstart, Resident.pytest_sessionfinish):
    hook.__module__ = "_pytest.resident"

def pytest_configure(config):
    config.pluginmanager.register(Resident())
"""


def make_dump(directory: Path, pairs: int, elements: int) -> Path:
    """A dump of so many pairs of fp16 tensors, in rows of 128; returns what `--acc-golden` takes."""
    root = directory / "msit_dump_20261101_000000"
    golden, mine = root / "1_-1" / "golden_tensor", directory / "mine"
    (golden / "0").mkdir(parents=True)
    mine.mkdir(parents=True)
    generator = torch.Generator().manual_seed(3)
    declared: dict[str, dict[str, list[str]]] = {}
    for number in range(pairs):
        exact = torch.randn(-(-elements // 128), 128, generator=generator)
        noise = 1 + NOISE * torch.randn(exact.shape, generator=generator)
        files = golden / "0" / f"{number}_tensor.pth", mine / f"{number}.bin"
        torch.save(exact.half(), files[0])
        atb_bin.write(files[1], (exact.half().float() * noise).half())
        declared[str(number)] = {"0": [str(file) for file in files]}
    (golden / "metadata.json").write_text(json.dumps(declared), encoding="utf-8")
    return root


@dataclass(frozen=True)
class Process:
    """What one process of pytest took: CPU seconds, its peak in MB, and the KB resident at start and end."""

    seconds: float
    peak: float
    resident: tuple[int, ...] = ()

    @property
    def kept(self) -> int:
        """KB that are resident at the end and were not at the start."""
        return self.resident[-1] - self.resident[0]


class Sessions:
    """Fresh processes of pytest below `home`, with one bytecode cache."""

    def __init__(self, home: Path, repeat: int = 1) -> None:
        self._home, self._repeat = home, repeat
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPYCACHEPREFIX": str(home / "bytecode"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }

    def run(self, body: str, *options: str) -> Process:
        """One process, with `body` in a plugin that is named: a conftest might want every report."""
        with tempfile.TemporaryDirectory(dir=self._home) as directory:
            Path(directory, "given.py").write_text(body, encoding="utf-8")
            Path(directory, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
            done = subprocess.run(
                [sys.executable, "-c", TIMED, "-q", "-s", "-p", "no:cacheprovider", "-p", "given", *options],
                cwd=directory,
                env=self._environment | {"PYTHONPATH": f"{ROOT}{os.pathsep}{directory}"},
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        seconds, peak = done.stderr.rsplit(None, 2)[-2:]
        resident = tuple(int(size) for size in re.findall(r"RESIDENT (\d+)", done.stdout))
        return Process(float(seconds), int(peak) * 1024 / 1e6, resident)

    def fewest(self, *programs: tuple[str, tuple[str, ...]]) -> list[float]:
        """The fewest seconds of each program, a body and options; they take turns."""
        runs = [[self.run(body, *options).seconds for body, options in programs] for _ in range(self._repeat)]
        return [min(several) for several in zip(*runs)]


def bare_items(count: int) -> str:
    """A plugin with so many tests that do nothing."""
    return f"import pytest\nCOUNT = {count}\n{BARE}"


def files(sessions: Sessions, dump: Path, pairs: int) -> tuple[float, float, float]:
    """CPU seconds of the comparison of a dump, and of as many bare items with torch and without."""
    ours = ("", (*OURS, f"--acc-golden={dump}"))
    bare = bare_items(pairs)
    sessions.run("", *ours[1])  # fills the cache of bytecode
    first, second, third = sessions.fewest(ours, (f"{WITH_TORCH}{bare}", ()), (bare, ()))
    return first, second, third


def marginal(sessions: Sessions, few: int, many: int) -> tuple[float, float]:
    """Microseconds that one more pair without files takes, and one more bare item."""
    pairs = [(f"{WITH_TORCH}COUNT = {count}\n{PAIRS}", SYNTHETIC) for count in (few, many)]
    items: list[tuple[str, tuple[str, ...]]] = [
        (f"{WITH_TORCH}{bare_items(count)}", ()) for count in (few, many)
    ]
    seconds = sessions.fewest(*pairs, *items)
    pair, item = ((seconds[at + 1] - seconds[at]) / (many - few) * 1e6 for at in (0, 2))
    return pair, item


def kept(sessions: Sessions, few: int, many: int, *options: str) -> float:
    """KB that one more finished pair leaves in the process, its place in the plan among them."""

    def after(count: int) -> int:
        body = f"{WITH_TORCH}COUNT = {count}\n{PAIRS}{RESIDENT}"
        return sessions.run(body, *SYNTHETIC, *options).kept

    return (after(many) - after(few)) / (many - few)


def peak(sessions: Sessions, dump: Path) -> float:
    """The peak in MB of a comparison with all reports."""
    return sessions.run("", *OURS, f"--acc-golden={dump}", *REPORTS).peak


def main() -> int:
    """Print every figure with its bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=2000, help="pairs with files")
    parser.add_argument("--elements", type=int, default=8192, help="elements of each of their tensors")
    parser.add_argument("--repeat", type=int, default=5, help="processes of which the best counts")
    parser.add_argument(
        "--many", type=int, nargs="?", const=100_000, help="measure the peak of so many pairs"
    )
    given = parser.parse_args()
    missed = 0

    def said(what: str, found: float, unit: str, bar: float, beside: str = "") -> None:
        nonlocal missed
        missed += found > bar
        print(f"{what:30s} {found:8.2f} {unit:5s} (at most {bar:g}) {beside}", flush=True)

    with tempfile.TemporaryDirectory(prefix="acc_small_") as directory:
        home = Path(directory)
        sessions = Sessions(home, given.repeat)
        ours, bare, light = files(sessions, make_dump(home, given.pairs, given.elements), given.pairs)
        beside = f"{ours:.2f} s over {bare:.2f} s of bare items ({light:.2f} s without torch)"
        said("files", ours / bare, "", 1.6, beside)
        pair, item = marginal(sessions, 1000, 3000)
        said("pair", pair / item, "", 1.8, f"{pair:.0f} us over {item:.0f} us of a bare item")
        said("memory", kept(sessions, 3000, 9000), "KB", 6.0)
        said("memory, JUnit", kept(sessions, 3000, 9000, REPORTS[0]), "KB", 6.0)
        said("memory, all reports", kept(sessions, 3000, 9000, *REPORTS), "KB", 7.0)
        if given.many:
            many = make_dump(home / "many", given.many, 128)
            said(f"peak of {given.many}", peak(sessions, many), "MB", 1000)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
