"""What checking an operator costs: its case against the bare computation, memory, processes, collection.

    python benchmarks/opcheck.py [--tokens 512] [--repeat 3] [--cases 300] [--rows 10000] [--only NAME ...]

Printed, each with what is wanted:

    linear, attention   seconds of one whole case (files mapped, computed, judged) over those of the same
                        operator in plain torch on float32 tensors that are in memory already; at most 4.
                        4096 wide, float16, inputs and outputs on disk (warm). Best of `--repeat`.
    memory              what the case adds to the peak of resident memory, over the bytes of its tensors in
                        their own dtypes; at most 3. Each in a process of its own.
    processes           seconds of `pytest --acc-opcheck` over `--cases` rows with one process over those
                        with two, start-up included; at least 1.7. The rows are the operators of decoder
                        layers 4096 wide (`--tokens` tokens). One thread a process: without OMP_NUM_THREADS
                        products use all cores in one process already. Printed beside it: what two processes
                        of bare products gain on this machine, which nothing can exceed, and the ratio of
                        processor seconds, which other work on the machine moves less.
    collection          seconds of `pytest --acc-opcheck --co` over a CSV of `--rows` rows; below 5.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F

from acc_pytest.opcheck.run import run_case
from acc_pytest.opcheck.stand_alone import COLUMNS, StandAlone, write_case
from acc_pytest.operators import compute
from acc_pytest.reference.case import Case
from acc_pytest.reference.prepare import prepare
from acc_pytest.reference.sources import entries_of_csv

WIDTH, HEADS, HIDDEN = 4096, 32, 11008


def linear(tokens: int) -> tuple[StandAlone, Callable[[], torch.Tensor]]:
    """x `[tokens, 4096]` times a square weight."""
    x, weight = torch.randn(tokens, WIDTH).half(), (torch.randn(WIDTH, WIDTH) / 64).half()
    wide_x, wide_weight = x.float(), weight.float()

    def bare() -> torch.Tensor:
        return F.linear(wide_x, wide_weight)

    case = StandAlone("LinearOperation", {"hasBias": False}, [x, weight], [bare().half()], {})
    return case, bare


def attention(tokens: int) -> tuple[StandAlone, Callable[[], torch.Tensor]]:
    """Causal attention of one sequence, 32 heads of 128."""
    q, k, v = (torch.randn(tokens, WIDTH).half() for _ in range(3))
    heads = [t.float().reshape(tokens, HEADS, -1).transpose(0, 1) for t in (q, k, v)]
    mask = torch.full((tokens, tokens), -10000.0).triu(1)
    scale = 128**-0.5

    def bare() -> torch.Tensor:
        scores = heads[0] @ heads[1].transpose(-1, -2) * scale + mask
        return (scores.softmax(-1) @ heads[2]).transpose(0, 1).reshape(tokens, WIDTH)

    param = {"headNum": HEADS, "kvHeadNum": HEADS, "qkScale": scale, "calcType": 3, "maskType": 1}
    lengths = torch.tensor([tokens], dtype=torch.int32)
    case = StandAlone("SelfAttentionOperation", param, [q, k, v, mask.half(), lengths], [bare().half()], {})
    return case, bare


MAKERS = {"linear": linear, "attention": attention}


def written(case: StandAlone, home: Path) -> Case:
    """The case as it is found in its CSV."""
    (entry,) = entries_of_csv(write_case(case, home), "case")
    return prepare(entry)


def best(function: Callable[[], object], repeat: int) -> float:
    seconds = []
    for _ in range(repeat + 1):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])  # the first one warms the cache


def check(case: Case) -> None:
    (row,) = run_case(case)
    assert row.verdict == "pass", row.sentence


def speed(name: str, tokens: int, repeat: int) -> None:
    stand_alone, bare = MAKERS[name](tokens)
    with tempfile.TemporaryDirectory() as home:
        case = written(stand_alone, Path(home))
        whole, plain = best(lambda: check(case), repeat), best(bare, repeat)
    print(
        f"{name:12} {whole:8.3f} s  bare {plain:8.3f} s  ratio {whole / plain:5.2f}  (at most 4)", flush=True
    )


def memory(name: str, tokens: int) -> None:
    """The peak in a process that has checked a tiny case before."""
    with tempfile.TemporaryDirectory() as home:
        written(MAKERS[name](tokens)[0], Path(home) / "large")
        written(MAKERS[name](16)[0], Path(home) / "tiny")
        files = (Path(home) / "large").rglob("*.bin")
        size = sum(file.stat().st_size for file in files)
        code = [sys.executable, __file__, "--peak", home]
        grown = int(subprocess.run(code, capture_output=True, text=True, check=True).stdout)
    print(
        f"memory       {name}: peak grows by {grown / 2**20:.0f} MB, tensors {size / 2**20:.0f} MB  "
        f"ratio {grown / size:5.2f}  (at most 3)",
        flush=True,
    )


def peak(home: Path) -> None:
    """In the process of `memory`: print how much the large case adds to the peak, in bytes."""
    for name in ("tiny", "large"):
        (entry,) = entries_of_csv(home / name / "operation_tensors_0.csv", name)
        before = highest()
        check(prepare(entry))
    print(highest() - before)


def highest() -> int:
    """The peak of this process in bytes. (`ru_maxrss` starts with that of the process before exec.)"""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def pytest(home: Path, *words: str) -> tuple[float, float]:
    """Seconds of one pytest over the CSV in `home`, on the clock and of all its processes together."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command += [f"--acc-opcheck={home / 'operation_tensors_0.csv'}", f"--acc-output={home}", *words]
    started, used = time.perf_counter(), os.times()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    ended = os.times()
    used_up = sum(ended[2:4]) - sum(used[2:4])
    return time.perf_counter() - started, used_up


def decoder(tokens: int) -> list[StandAlone]:
    """The operators of one layer: norms, the four products, rotation, attention, sums, gated activation."""
    x, norm = torch.randn(tokens, WIDTH).half(), torch.rand(WIDTH).half()
    half = torch.arange(HEADS * 2) / (HEADS * 2)
    angle = torch.arange(tokens)[:, None] * 10000.0 ** -torch.cat([half, half])
    lengths = torch.tensor([tokens], dtype=torch.int32)

    def product(width: int, out: int) -> tuple[str, dict[str, object], list[torch.Tensor]]:
        return (
            "LinearOperation",
            {"hasBias": False},
            [torch.randn(tokens, width).half(), (torch.randn(out, width) / width**0.5).half()],
        )

    rotated = [x, x, angle.cos().half(), angle.sin().half(), lengths]
    calls: list[tuple[str, dict[str, object], list[torch.Tensor]]] = [
        ("RmsNormOperation", {"layerType": 1}, [x, norm]),
        product(WIDTH, 3 * WIDTH),
        ("RopeOperation", {"rotaryCoeff": 2}, rotated),
        product(WIDTH, WIDTH),
        ("ElewiseOperation", {"elewiseType": 8}, [x, x]),
        ("RmsNormOperation", {"layerType": 1}, [x, norm]),
        product(WIDTH, 2 * HIDDEN),
        ("ActivationOperation", {"activationType": 6}, [torch.randn(tokens, 2 * HIDDEN).half()]),
        product(HIDDEN, WIDTH),
    ]
    cases = [StandAlone(name, param, given, compute(name, param, given), {}) for name, param, given in calls]
    return [*cases[:3], attention(tokens)[0], *cases[3:]]


def layers(home: Path, cases: int, tokens: int) -> None:
    """`cases` rows of such layers; the files of all layers are those of the first."""
    layer = decoder(tokens)
    for number in range(cases):
        case = layer[number % len(layer)]
        if number < len(layer):
            write_case(replace(case, ids=str(number)), home)
            continue
        first = home / f"{number % len(layer)}_{case.operator}"
        shutil.copytree(first, home / f"{number}_{case.operator}", copy_function=os.link)
        lines = (home / "operation_tensors_0.csv").read_text().splitlines()
        row = lines[1 + number % len(layer)].replace(first.name, f"{number}_{case.operator}")
        row = row.replace(f"{case.operator}_{number % len(layer)}", f"{case.operator}_{number}")
        with (home / "operation_tensors_0.csv").open("a") as file:
            file.write(row + "\n")


def processes(cases: int, tokens: int) -> None:
    with tempfile.TemporaryDirectory() as text:
        home = Path(text)
        layers(home, cases, tokens)
        (one, alone), (two, together) = pytest(home), pytest(home, "-n", "2")
    print(
        f"processes    {cases} cases: {one:.1f} s, -n 2 {two:.1f} s  ratio {one / two:.2f}  (at least 1.7)\n"
        f"             bare products in two processes: {bare_gain():.2f}\n"
        f"             processor seconds {alone:.1f} and {together:.1f}: on two free cores the ratio is "
        f"{2 * alone / together:.2f}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def bare_gain() -> float:
    """What a second process of the same products gains: 2, less what they take from each other."""
    code = [sys.executable, __file__, "--products"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def seconds(count: int) -> float:
        running = [
            subprocess.Popen(code, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        return max(float(one.communicate()[0]) for one in running)

    return 2 * seconds(1) / seconds(2)


def products() -> None:
    """In the processes of `bare_gain`: print the processor seconds of twenty products."""
    x, weight = torch.randn(512, WIDTH), torch.randn(WIDTH, WIDTH)
    F.linear(x, weight)
    started = time.process_time()
    for _ in range(20):
        F.linear(x, weight)
    print(time.process_time() - started)


def collection(rows: int) -> None:
    with tempfile.TemporaryDirectory() as text:
        home = Path(text)
        cells = dict.fromkeys(COLUMNS, "")
        cells.update(OpParam='{"perm":[1,0]}', InNum="1", InDType="float", InFormat="nd", InShape="2,3")
        cells.update(OutNum="1", OutDType="float", OutFormat="nd", OutShape="3,2", ExpectedError="NO_ERROR")
        lines = ["|".join(COLUMNS)]
        for number in range(rows):
            cells.update(OpName=f"TransposeOperation_{number}", CaseNum=str(number))
            lines.append("|".join(cells.values()))
        (home / "operation_tensors_0.csv").write_text("\n".join(lines) + "\n")
        seconds, _ = pytest(home, "--co")
    print(f"collection   {rows} rows: {seconds:.1f} s  (below 5)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--rows", type=int, default=10000)
    names = ["linear", "attention", "memory", "processes", "collection"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--products", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.peak:
        peak(Path(given.peak))
        return
    if given.products:
        products()
        return
    for name in MAKERS:
        if name in given.only:
            speed(name, given.tokens, given.repeat)
        if "memory" in given.only:
            memory(name, given.tokens)
    if "processes" in given.only:
        processes(given.cases, given.tokens)
    if "collection" in given.only:
        collection(given.rows)


if __name__ == "__main__":
    main()
