"""How fast a comparison is: rows with bars, beside plain torch and bare pytest items of the same run.

    python benchmarks/speed.py [--quick] [--only kernel large dumps small threads workers idle] [--home DIR]

    kernel   ns an element of one thread, for ordinary and harder data: the native kernel, the one in Python
    large    one pair of 128M elements, whole processes
    dumps    1 GB a side in tensors of 64 MB, 8 MB and 256 KB, whole processes
    small    2,000 pairs of 8,192 elements over bare pytest items of a process that has torch (the old tool
             took 1.5 times these), and what one more pair costs and keeps, as `small_pairs.py` measures it
    threads  16 pairs of 64 MB measured by one thread over by two
    workers  1 GB of 8 MB tensors, and 2,000 small pairs, with -n 2 over -n 0, beside two workers that are
             insisted on; 16 GB of 8 MB tensors (each file 16 times) with -n 0 over -n 2; two tests of a demo
             with -n 8 over -n 0
    idle     what the plugin adds to a run of pytest that asks for nothing of ours

Bars of `large` and `dumps` are shares of what the old tool (`msit llm compare`) took for these, 22.2, 76.7,
46.3 and 34.5 s, on a machine where plain torch takes the seconds of `PLAIN`; on a slower or faster one they
are as much wider or narrower as plain torch is found to be.

Time is that of the processor (user and system, all processes), but for `threads` and -n 2, which are about
the time that passes: on a machine with other work beside it these say little. Programs take turns, the best
of `--repeat` counts. Files are written once before (to `--home`, 2 GB) and are in the page cache. `--quick`
takes a quarter of the data and two turns, and leaves out the bars of whole processes, which take most of
their time to start. The state of the machine is printed first and last. The exit status is 1 where a bar is
missed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from metrics import kinds, streamed
from small_pairs import Sessions, files, kept, make_dump, marginal

from acc_pytest.base.threads import cores
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.native.library import VARIABLE, described
from acc_pytest.tensors.file_bytes import mapped
from acc_pytest.tensors.read_source import source_of

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
PLAIN = {"large": 10.9, "64 MB": 33.0, "8 MB": 10.9, "0.25 MB": 8.6}
"""Seconds of plain torch on the machine on which the old tool was measured (AMD EPYC, two cores)."""
HEADER = 128
"""Bytes of an `.npy` file before its values."""


@dataclass(frozen=True)
class Cost:
    """Seconds that a program took of the processor, and that passed."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class Bench:
    """How much is measured, and where; `missed` are the rows that miss their bars."""

    share: float
    repeat: int
    home: Path
    missed: list[str]

    def row(
        self, what: str, found: float, unit: str, bar: float, *, least: bool = False, beside: str = ""
    ) -> None:
        """Print a figure with its bar, which it has to be up to, or from, where that is the `least`."""
        met = found >= bar if least else found <= bar
        if not met:
            self.missed.append(what)
        wanted = f"{'>=' if least else '<='} {bar:.3g} {unit}"
        print(f"{what:46s} {found:8.2f} {wanted:14s} {'met' if met else 'MISSED':6s} {beside}", flush=True)

    def beside_plain(self, what: str, found: Mapping[str, Cost], bar: float, plain: float) -> None:
        """Print what a process of ours takes; `bar` is for a machine where plain torch takes `plain`."""
        seconds = ", ".join(f"{name} {cost.cpu:.1f} s" for name, cost in found.items())
        if self.share < 1:
            print(f"{what:46s} {found['ours'].cpu:8.2f} {'':21s} {seconds}", flush=True)
            return
        self.row(what, found["ours"].cpu, "s", bar * found["plain"].cpu / plain, beside=seconds)

    def fewest(self, programs: Mapping[str, Sequence[str]], **environment: str) -> dict[str, Cost]:
        """The least that each program took, in turns."""
        found: dict[str, list[Cost]] = {name: [] for name in programs}
        for _ in range(self.repeat):
            for name, words in programs.items():
                found[name].append(cost_of(words, self.home, environment))
        return {
            name: Cost(min(one.cpu for one in costs), min(one.wall for one in costs))
            for name, costs in found.items()
        }

    @contextmanager
    def dump(self, count: int, numel: int) -> Iterator[tuple[Path, Path]]:
        """Two directories of that many float16 tensors in rows of 4096: N(0, 1), and with noise of 1e-3."""
        sides = self.home / "golden", self.home / "mine"
        pool = np.random.default_rng(20).standard_normal(1 << 23, dtype=np.float32)
        golden, noise = pool.astype(np.float16), (pool * 1e-3).astype(np.float16)
        try:
            for side in sides:
                side.mkdir()
            for number in range(count):
                first = np.resize(golden[number:], numel)
                second = first + np.resize(noise[number + 4099 :], numel)
                for side, values in zip(sides, (first, second)):
                    np.save(side / f"t{number}.npy", values.reshape(-1, min(numel, 4096)))
            yield sides
        finally:
            for side in sides:
                shutil.rmtree(side)


def cost_of(words: Sequence[str], home: Path, environment: dict[str, str]) -> Cost:
    """Run a program in `home`."""
    # Compiled modules are kept: compiling them anew would be most of what starts.
    path = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        words, cwd=home, env=os.environ | path | environment, capture_output=True, text=True, check=False
    )
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def ours(golden: Path, mine: Path, *words: str) -> list[str]:
    """A run of pytest that compares two dumps."""
    return [*PYTEST, f"--acc-golden={golden}", f"--acc-mine={mine}", "--acc-output=out", *words]


def plain(golden: Path, mine: Path) -> list[str]:
    """The straightforward computation over the same files."""
    return [sys.executable, str(ROOT / "benchmarks" / "plain.py"), str(golden), str(mine)]


def kernel(bench: Bench) -> None:
    """Both kernels on every kind of data."""
    numel, repeat = 1 << 22, max(3, bench.repeat)
    bars = {"native": (1.6, 5.0), "python": (5.0, 12.0)}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for name, pair in kinds(dtype, numel).items():
            if name in ("half -inf", "the same"):  # no bar is set for these
                continue
            for which, (ordinary, harder) in bars.items():
                if which == "python" and dtype != torch.float16:
                    continue
                os.environ[VARIABLE] = which
                work = functools.partial(streamed, *pair)
                best = min(_cpu(work) for _ in range(repeat)) / numel * 1e9
                bar = ordinary if name == "ordinary" else harder
                bench.row(f"kernel {which}, {str(dtype)[6:]}, {name}", best, "ns", bar)
    os.environ.pop(VARIABLE)


def _cpu(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def large(bench: Bench) -> None:
    """One pair."""
    numel = int(bench.share * 2**27)
    with bench.dump(1, numel) as sides:
        found = bench.fewest({"plain": plain(*sides), "ours": ours(*sides)})
    bench.beside_plain(f"one pair of {numel >> 20}M elements", found, 22.2 / 10, PLAIN["large"])


def dumps(bench: Bench) -> None:
    """The same bytes in few, many and very many tensors."""
    for megabytes, bar in ((64, 76.7 / 10), (8, 46.3 / 10), (0.25, 34.5 / 3)):
        count, numel = int(bench.share * 1024 / megabytes), int(megabytes * 2**19)
        with bench.dump(count, numel) as sides:
            found = bench.fewest({"plain": plain(*sides), "ours": ours(*sides)})
        bench.beside_plain(f"{count} x {megabytes:g} MB", found, bar, PLAIN[f"{megabytes:g} MB"])


def small(bench: Bench) -> None:
    """Pairs so small that what surrounds them counts, as `small_pairs.py` measures them."""
    count, sessions = int(bench.share * 2000), Sessions(bench.home, bench.repeat)
    found, bare, light = files(sessions, make_dump(bench.home / "small", count, 8192), count)
    bench.row(
        f"{count} pairs of 8,192 elements", found, "s", 7.5 / 5.0 * bare, beside="less than the old tool"
    )
    beside = f"{found:.1f} s, {bare:.1f} s; bare items without torch {light:.1f} s"
    bench.row("the same / bare items with torch", found / bare, "x", 1.6, beside=beside)
    few, many = int(bench.share * 1000), int(bench.share * 3000)
    pair, item = marginal(sessions, few, many)
    bench.row("one more pair without files", pair / 1000, "ms", 1.3, beside=f"bare item {item / 1000:.2f} ms")
    bench.row("memory that a finished pair keeps", kept(sessions, 3 * few, 3 * many), "KB", 6)


def threads(bench: Bench) -> None:
    """Large tensors, measured in this process."""
    count, numel = int(bench.share * 16), 1 << 25
    with bench.dump(count, numel) as sides:

        def seconds(number: int) -> float:
            torch.set_num_threads(number)
            begun = time.perf_counter()
            for name in range(count):
                pair = (mapped(f"{side}/t{name}.npy", torch.float16, (8192, 4096), HEADER) for side in sides)
                measure(*map(source_of, pair))
            return time.perf_counter() - begun

        times = [(seconds(1), seconds(2)) for _ in range(max(3, bench.repeat))]
    one, two = (min(column) for column in zip(*times))
    beside = f"{one:.2f} s, {two:.2f} s; {cores()} cores, load {os.getloadavg()[0]:.1f}"
    bench.row(f"{count} x 64 MB: one thread / two", one / two, "x", 1.7, least=True, beside=beside)
    torch.set_num_threads(1)


WAYS = {"-n 0": (), "-n 2": ("-n2",), "two workers": ("--tx=2*popen", "--dist=load")}
TIMES = 16
"""How often each pair of 8 MB is compared where it is to take long."""


def workers(bench: Bench) -> None:
    """What processes gain where there is much to do, and cost where there is little."""
    with bench.dump(count := int(bench.share * 128), 1 << 22) as sides:
        ratio, beside = _of_workers(bench, ours(*sides, "-oacc_threads=1"), WAYS)
        bench.row(f"{count} x 8 MB: -n 2 / -n 0, time passed", 1 / ratio, "x", 1.1, beside=beside)
        many = [*PYTEST, f"--acc-golden={_again_and_again(sides, count)}", "--acc-output=out"]
        twice = Bench(bench.share, min(2, bench.repeat), bench.home, bench.missed)
        ways = {name: WAYS[name] for name in ("-n 0", "-n 2")}
        ratio, beside = _of_workers(twice, [*many, "-oacc_threads=1"], ways)
        what = f"{TIMES * count} x 8 MB: -n 0 / -n 2, time passed"
        bench.row(what, ratio, "x", 1.7, least=True, beside=beside)
    small = make_dump(bench.home / "handed_over", count := int(bench.share * 2000), 8192)
    ratio, beside = _of_workers(bench, [*PYTEST, f"--acc-golden={small}", "--acc-output=out"], WAYS)
    bench.row(f"{count} small pairs: -n 2 / -n 0, time passed", 1 / ratio, "x", 1.1, beside=beside)
    demo = bench.home / "demo"
    cost_of(
        [sys.executable, "-c", f"from acc_pytest.cli import main; main(['demo', '{demo}'])"], bench.home, {}
    )
    few = ours(demo / "golden", demo / "mine", "-k", "SelfAttention")
    found = bench.fewest({f"-n {number}": [*few, "-n", str(number)] for number in (0, 8)})
    beside = ", ".join(f"{name} {cost.cpu:.1f} s" for name, cost in found.items())
    bench.row("two tests: -n 8 / -n 0", found["-n 8"].cpu / found["-n 0"].cpu, "x", 1.1, beside=beside)


def _again_and_again(sides: tuple[Path, Path], count: int) -> Path:
    """A manual dump that compares each pair of files so many `TIMES`."""
    metadata = sides[0].parent / "msit_dump_20261101_000000" / "1_-1" / "golden_tensor" / "metadata.json"
    metadata.parent.mkdir(parents=True, exist_ok=True)
    files = [[str(side / f"t{number}.npy") for side in sides] for number in range(count)]
    pairs = {str(number): {"0": files[number % count]} for number in range(TIMES * count)}
    metadata.write_text(json.dumps(pairs), encoding="utf-8")
    return metadata.parents[2]


def _of_workers(bench: Bench, run: list[str], ways: Mapping[str, Sequence[str]]) -> tuple[float, str]:
    """The time of `-n 0` over that of `-n 2`, and the seconds of each way."""
    found = bench.fewest({name: [*run, *words] for name, words in ways.items()})
    seconds = ", ".join(f"{name} {cost.wall:.1f} s" for name, cost in found.items())
    beside = f"{seconds}; {cores()} cores, load {os.getloadavg()[0]:.1f}"
    return found["-n 0"].wall / found["-n 2"].wall, beside


def idle(bench: Bench) -> None:
    """One test that passes."""
    (bench.home / "test_one.py").write_text("def test_one():\n    pass\n")
    with_it = [*PYTEST, "test_one.py"]
    many = Bench(bench.share, 5 * bench.repeat, bench.home, bench.missed)
    found = many.fewest({"bare": [*with_it, "-p", "no:acc"], "idle": with_it})
    more = 1000 * (found["idle"].cpu - found["bare"].cpu)
    bench.row("idle plugin", more, "ms", 30, beside=f"bare {1000 * found['bare'].cpu:.0f} ms")


SECTIONS = {function.__name__: function for function in (kernel, large, dumps, small, threads, workers, idle)}


def machine() -> str:
    """The machine, and what else it does."""
    model = ""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    return f"{time.strftime('%Y-%m-%d %H:%M')}: {model}, {cores()} cores, load {load}"


def main() -> None:
    """Print the sections that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of the data, two turns")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--home", help="where files are written: 2 GB, in memory at best (/dev/shm)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}\nPython {platform.python_version()}, torch {torch.__version__}, kernel {described()}")
    with tempfile.TemporaryDirectory(dir=given.home) as home:
        bench = Bench(0.25 if given.quick else 1, 2 if given.quick else given.repeat, Path(home), [])
        for name in given.only:
            SECTIONS[name](bench)
    print(machine())
    sys.exit(1 if bench.missed else 0)


if __name__ == "__main__":
    main()
