"""What a comparison costs beside the least that it could: CPU seconds of whole runs, side by side.

    python benchmarks/speed.py [--quick] [--only large atb ...] [--repeat 3] [--home DIR]

    large      one pair of 128M elements of float16 (as all below, where nothing else is said)
    tens       1 GB a side in 16 tensors of 64 MB
    hundreds   in 128 of 8 MB
    thousands  in 4,096 of 256 KB
    small      2,000 `.npy` files of 8,192 elements
    atb        an ATB dump of 16 layers (hidden 256, 64 tokens, 3 steps) beside its golden in torch
    torch      a Llama of 24 layers (hidden 1,024, 128 tokens) in bfloat16 beside float32

Each row is measured by these programs, which take turns. Of `--repeat` turns the least counts that each
takes, user and system time of all its processes:

    read    the files are read and nothing is computed
    C++     one pass over the files with all metrics on one thread (`floor.cpp`, compiled before; left out
            where no compiler is)
    tests   pytest without the plugin, with as many empty tests as there are pairs
    limit   C++ and tests: what a plugin of pytest takes at least
    torch   the straightforward way: one expression of torch for each metric, without pytest (`plain.py`)
    ours    the comparison of acc_pytest by default, start-up included

The others leave out a pair with a side of several tensors. Ratios are bars: ours to torch, and to the limit.
Files are written before, to `--home` (2 GB; /dev/shm at best), and lie in the page cache.
`--quick` takes an eighth of the data (6 layers of the models), and holds nothing against bars, as most of it
is start-up. The exit status is 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from replay import sampled
from small_pairs import bare_items

from acc_pytest.base.threads import cores
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.metrics.native.library import described
from acc_pytest.session.planning import make_plan
from acc_pytest.settings import Settings
from acc_pytest.tensors.ref import readable

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
READ = """
import sys
buffer = memoryview(bytearray(1 << 20))
for path in {path for line in open(sys.argv[1]) for path in line.split("\\t")[:4:3]}:
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
"""
QUICK = 8
FLOATS = ("float16", "bfloat16", "float32")
ROW = "{:<10} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}   {:>8} {:>8}  {}"


@dataclass(frozen=True)
class Work:
    """Dumps to compare: `write(home, share)` makes golden and mine below it.

    A comparison takes at most `to_torch` times what torch takes, and `to_limit` times the limit.
    """

    write: Callable[[Path, int], None]
    to_torch: float
    to_limit: float


def tensors(home: Path, share: int, count: int, numel: int) -> None:
    """Files of float16 in rows of 4,096: N(0, 1), and with noise of 1e-3."""
    count, numel = (count, numel // share) if count == 1 else (-(-count // share), numel)
    pool = np.random.default_rng(20).standard_normal(1 << 23, dtype=np.float32)
    golden, noise = pool.astype(np.float16), (pool * 1e-3).astype(np.float16)
    for side in ("golden", "mine"):
        (home / side).mkdir()
    for number in range(count):
        first = np.resize(golden[number:], numel)
        second = first + np.resize(noise[number + 4099 :], numel)
        for side, values in (("golden", first), ("mine", second)):
            np.save(home / side / f"t{number}.npy", values.reshape(-1, min(numel, 4096)))


def atb(home: Path, share: int) -> None:
    layers = 16 if share == 1 else 6
    spec = DemoSpec("llama", layers, hidden=256, intermediate=512, prompt_length=64, decode_steps=2)
    make_demo(home, spec)


def llama(home: Path, share: int) -> None:
    layers = 24 if share == 1 else 6
    sampled(layers, 1, hidden=1024, vocabulary=4096, tokens=128)(home, False)


WORKS = {
    "large": Work(partial(tensors, count=1, numel=1 << 27), 0.15, 2.5),
    "tens": Work(partial(tensors, count=16, numel=1 << 25), 0.15, 2.5),
    "hundreds": Work(partial(tensors, count=128, numel=1 << 22), 0.3, 2.5),
    "thousands": Work(partial(tensors, count=4096, numel=1 << 17), 1.0, 2.5),
    "small": Work(partial(tensors, count=2000, numel=1 << 13), 1.5, 2.5),
    "atb": Work(atb, 4.0, 6.0),
    "torch": Work(llama, 2.0, 4.0),
}


def main() -> int:
    """Print the rows that were asked for; 0 where the bars hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, two turns, no bars")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--home", help="where files are written: 2 GB, in memory at best (/dev/shm)")
    options = parser.parse_args()
    share, repeat = (QUICK, 2) if options.quick else (1, options.repeat)
    print(f"{machine()}\nPython {sys.version.split()[0]}, torch {torch.__version__}, kernel {described()}")
    print(
        ROW.format(
            "CPU s", "pairs", "read", "C++", "tests", "limit", "torch", "ours", "to torch", "to limit", ""
        )
    )
    good = True
    with tempfile.TemporaryDirectory(prefix="acc-speed-", dir=options.home) as directory:
        home = Path(directory)
        floor = compiled(home)
        for name in options.only:
            (place := home / name).mkdir()
            WORKS[name].write(place, share)
            good = measured(name, place, floor, repeat, barred=share == 1) and good
            shutil.rmtree(place)
    print(machine())
    return 0 if good else 1


def measured(name: str, place: Path, floor: Path | None, repeat: int, *, barred: bool) -> bool:
    """Print the row of a work; whether its bars hold."""
    pairs = listed(place)
    (cwd := place / "run").mkdir()  # pytest looks for tests here
    (cwd / "given.py").write_text(bare_items(pairs), encoding="utf-8")
    programs = {
        "read": [sys.executable, "-S", "-c", READ, "../list"],
        "tests": [*PYTEST, "-p", "given"],
        "torch": [sys.executable, str(ROOT / "benchmarks" / "plain.py"), "../list"],
        "ours": [*PYTEST, "--acc-golden=../golden", "--acc-mine=../mine"],
    }
    if floor is not None:
        programs["C++"] = [str(floor), "../list"]
    turns = [
        {key: cpu_of(words, cwd, plugin=key == "ours") for key, words in programs.items()}
        for _ in range(repeat)
    ]
    least = {key: min(turn[key] for turn in turns) for key in programs}
    to_torch, limit = least["ours"] / least["torch"], least.get("C++", least["read"]) + least["tests"]
    ratios = to_torch, least["ours"] / limit
    bars = WORKS[name].to_torch, WORKS[name].to_limit
    met = not barred or all(ratio <= bar for ratio, bar in zip(ratios, bars))
    word = "" if not barred else f"{'met' if met else 'MISSED'}: at most {bars[0]:g}, {bars[1]:g}"
    seconds = (f"{least[key]:.2f}" if key in least else "-" for key in ("read", "C++", "tests"))
    shown = *seconds, f"{limit:.2f}", f"{least['torch']:.2f}", f"{least['ours']:.2f}"
    print(ROW.format(name, pairs, *shown, *(f"{ratio:.2f}" for ratio in ratios), word), flush=True)
    return met


def listed(place: Path) -> int:
    """Write the pairs of two dumps for the other programs to `list`; how many tests the comparison has."""
    plan = make_plan(Settings.from_values({"golden": str(place / "golden"), "mine": str(place / "mine")}))
    with open(place / "list", "w", encoding="utf-8") as lines:
        for pair in plan.pairs:
            sides = [operand.refs[0] for operand in (pair.golden, pair.mine) if len(operand.refs) == 1]
            headers = [header for ref in sides if (header := readable(ref)) and header.dtype.name in FLOATS]
            if len(headers) == 2 and all(header.plain for header in headers):
                words = [(ref.path, header.offset, header.dtype.name) for ref, header in zip(sides, headers)]
                print(*words[0], *words[1], min(header.numel for header in headers), sep="\t", file=lines)
    return len(plan.pairs)


def compiled(home: Path) -> Path | None:
    """`floor.cpp` as a program; `None` where it cannot be compiled."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    command = [compiler or "", "-O3", "-march=native", "-ffast-math", "-o", str(home / "floor")]
    if (
        compiler is None
        or subprocess.run([*command, str(ROOT / "benchmarks" / "floor.cpp")], check=False).returncode
    ):
        print("C++ is left out: no compiler")
        return None
    return home / "floor"


def cpu_of(words: Sequence[str], home: Path, *, plugin: bool) -> float:
    """The seconds of the processor that a program takes in `home`."""
    # Compiled modules are kept: compiling them anew would be most of what starts.
    own = {"PYTHONDONTWRITEBYTECODE": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "" if plugin else "1"}
    path = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(home)))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        words, cwd=home, env=os.environ | path | own, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def machine() -> str:
    """The machine, and what else it does."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    load = " ".join(f"{number:.1f}" for number in os.getloadavg())
    return f"{time.strftime('%Y-%m-%d %H:%M')}: {model}, {cores()} cores, load {load}"


if __name__ == "__main__":
    sys.exit(main())
