"""Our streaming kernel beside the straightforward computation of the same seven metrics, in one run.

    python benchmarks/metrics.py [--sizes 1M 16M 64M] [--dtype float16] [--repeat 3] [--kinds]

The straightforward way is the old tool's: flatten both tensors to float32, then one torch expression
per metric over whole tensors (the cosine in float64). It computes the seven metrics and nothing else; ours
also counts NaN, Inf and elements beyond tolerance, finds the worst element and measures every row and
channel. The tensors have rows of 4096 elements. Both run on one thread on the same memory-mapped pair of
files, read once before timing; the best of `--repeat` runs counts.

Printed per size: nanoseconds per pair element of both, their ratio, what the peak resident memory rises by
during each, apart from the mapped files (Linux), and the largest relative deviation of the seven metrics
from a float64 reference of each. Last comes a pair of [24, 64], in microseconds of a pair.

`--kinds` prints instead, for ordinary data and for harder kinds, the nanoseconds of the native kernel,
of the one in Python and of the straightforward way, in turns on 4M elements, in time of the processor.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from plain import EPSILON, Metrics, straightforward

from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import COLUMN_METRICS
from acc_pytest.metrics.native.library import VARIABLE, described
from acc_pytest.tensors.source import TensorSource

CHANNELS = 4096
SMALL = (24, 64)


def streamed(golden: torch.Tensor, mine: torch.Tensor) -> Metrics:
    """The same by the kernel."""
    measured = measure(TensorSource(golden), TensorSource(mine))
    return {name: getattr(measured, name) for name in COLUMN_METRICS}


def reference(golden: torch.Tensor, mine: torch.Tensor, chunk: int = 1 << 20) -> Metrics:
    """The same in float64 NumPy, by chunks so that 64M elements fit; exact sums of the chunks."""
    parts: dict[str, list[float]] = {}
    peak = peak_relative = 0.0
    top = max(float(part.double().max()) for part in golden.split(chunk))
    for g_part, m_part in zip(golden.split(chunk), mine.split(chunk)):
        g, m = g_part.double().numpy(), m_part.double().numpy()
        d = m - g
        kept = np.abs(g) > EPSILON
        relative = np.abs(d[kept]) / np.abs(g[kept])
        weights = np.exp(g - top)
        peak, peak_relative = max(peak, np.abs(d).max()), max(peak_relative, relative.max())
        sums = {
            "gg": g * g,
            "mm": m * m,
            "dd": d * d,
            "gm": g * m,
            "absolute": np.abs(d),
            "relative": relative,
        }
        sums |= {"w": weights, "wd": weights * d, "curved": weights * (np.expm1(d) - d)}
        for name, values in sums.items():
            parts.setdefault(name, []).append(float(values.sum()))
    total = {name: math.fsum(values) for name, values in parts.items()}
    first = total["wd"] / total["w"]
    return {
        "cosine_similarity": total["gm"] / math.sqrt(total["gg"] * total["mm"]),
        "max_relative_error": peak_relative,
        "mean_relative_error": total["relative"] / golden.numel(),
        "max_absolute_error": peak,
        "mean_absolute_error": total["absolute"] / golden.numel(),
        "kl_divergence": math.log1p(first + total["curved"] / total["w"]) - first,
        "relative_euclidean_distance": math.sqrt(total["dd"] / total["gg"]),
    }


def make_pair(folder: Path, numel: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """N(0, 1) golden and golden plus 1e-3 * N(0, 1), written to files and mapped, in rows of `CHANNELS`."""
    paths = folder / "golden.raw", folder / "mine.raw"
    generator = torch.Generator().manual_seed(20)
    with open(paths[0], "wb") as golden, open(paths[1], "wb") as mine:
        for start in range(0, numel, 1 << 20):
            n = min(1 << 20, numel - start)
            g = torch.randn(n, generator=generator).to(dtype)
            m = (g.float() + 1e-3 * torch.randn(n, generator=generator)).to(dtype)
            golden.write(g.view(torch.uint8).numpy().tobytes())
            mine.write(m.view(torch.uint8).numpy().tobytes())
    first, second = (torch.from_file(str(path), shared=True, size=numel, dtype=dtype) for path in paths)
    return first.view(-1, CHANNELS), second.view(-1, CHANNELS)


def anonymous_memory() -> int:
    """Resident bytes of this process that are no mapped file; 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    return 0


def peak_memory(work: Callable[[], object]) -> int:
    """By how many bytes anonymous memory rises at most while `work` runs, sampled every millisecond."""
    before, peak, done = anonymous_memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, anonymous_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(peak, before) - before


def best_time(work: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest of `repeat` runs."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def print_small(dtype: torch.dtype, pairs: int = 200) -> None:
    """Microseconds of one pair of `SMALL`, of a hundred turns of `pairs` pairs the best."""
    generator = torch.Generator().manual_seed(20)
    golden = torch.randn(SMALL, generator=generator)
    mine = (golden + 1e-3 * torch.randn(SMALL, generator=generator)).to(dtype)

    def microseconds(way: Callable[[torch.Tensor, torch.Tensor], Metrics]) -> float:
        return best_time(lambda: [way(golden, mine) for _ in range(pairs)], 100) / pairs * 1e6

    plain, ours = microseconds(straightforward), microseconds(streamed)
    print(f"a pair of {list(SMALL)}: {plain:.0f} us plain, {ours:.0f} us ours")


def kinds(dtype: torch.dtype, numel: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of N(0, 1) with what makes a kernel leave its fast path, or meets subnormal numbers in it."""
    generator = torch.Generator().manual_seed(20)
    golden, noise = (torch.randn(numel, generator=generator).view(-1, CHANNELS) for _ in range(2))
    massive, broken = golden.clone(), golden.clone()
    massive.view(-1)[:: 1 << 16], broken.view(-1)[:: 1 << 16] = 1500.0, math.nan
    masked = torch.where(noise > 0, -math.inf, golden)
    pairs = {
        "ordinary": (golden, golden + 1e-3 * noise),
        "half zeros": (golden.relu(), golden.relu() * (1 + 1e-3 * noise)),
        "noise 0.3": (golden, golden + 0.3 * noise),
        "unrelated": (golden, noise),
        "one 1500 in 64 Ki": (massive, massive * (1 + 1e-3 * noise)),
        "logits of 300": (300 * golden, 300 * golden + 0.1 * noise),
        "probabilities": (torch.softmax(20 * golden, -1), torch.softmax(20 * golden + 0.02 * noise, -1)),
        "gradients of 1e-20": (1e-20 * golden, 1e-20 * (golden + 1e-3 * noise)),
        "one NaN in 64 Ki": (broken, broken + 1e-3 * noise),
        "half -inf": (masked, masked + 1e-3 * noise),
        "the same": (golden, golden.clone()),
    }
    return {name: (first.to(dtype), second.to(dtype)) for name, (first, second) in pairs.items()}


def print_kinds(dtype: torch.dtype, repeat: int, numel: int = 1 << 22) -> None:
    """Nanoseconds an element of each kind: native, Python, straightforward."""
    print(f"kernel: {described()}\n  ns/element         native python  plain")
    for name, pair in kinds(dtype, numel).items():
        best = [math.inf] * 3
        for _ in range(repeat):
            for place, (kernel, way) in enumerate(
                (("auto", streamed), ("python", streamed), ("", straightforward))
            ):
                os.environ[VARIABLE] = kernel
                begin = time.process_time()
                way(*pair)
                best[place] = min(best[place], (time.process_time() - begin) / numel * 1e9)
        print(f"  {name:18s} {best[0]:6.2f} {best[1]:6.2f} {best[2]:6.2f}", flush=True)


def deviation(found: Metrics, truth: Metrics) -> float:
    """The largest relative deviation of the seven metrics."""
    return max(abs(found[name] - truth[name]) / abs(truth[name]) for name in COLUMN_METRICS)


def parse_size(text: str) -> int:
    """`16M` as a number of elements, a multiple of `CHANNELS`."""
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper())
    size = int(text[:-1]) * factor if factor else int(text)
    if size % CHANNELS:
        raise argparse.ArgumentTypeError(f"{text} is no multiple of {CHANNELS}")
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[1 << 20, 1 << 24, 1 << 26])
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kinds", action="store_true", help="harder kinds of data, and both kernels")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, options.dtype)
    print(f"torch {torch.__version__}, numpy {np.__version__}, {options.dtype}, one thread")
    if options.kinds:
        print_kinds(dtype, options.repeat)
        return
    print(
        "  elements | ns/element plain   ours   ratio | MB above data plain   ours | deviation plain     ours"
    )
    for numel in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            golden, mine = make_pair(Path(folder), numel, dtype)
            truth = reference(golden.view(-1), mine.view(-1))
            row: list[tuple[float, float, float]] = []
            for way in (straightforward, streamed):
                work = functools.partial(way, golden, mine)
                memory = peak_memory(work)
                seconds = best_time(work, options.repeat)
                row.append((seconds / numel * 1e9, memory / 2**20, deviation(work(), truth)))
            (plain, plain_mb, plain_off), (ours, ours_mb, ours_off) = row
            speed = f"{plain:16.2f} {ours:6.2f} {plain / ours:6.1f}x"
            memories = f"{plain_mb:19.0f} {ours_mb:6.0f}"
            print(f"{numel:10d} | {speed} | {memories} | {plain_off:15.1e} {ours_off:8.1e}", flush=True)
    print_small(dtype)


if __name__ == "__main__":
    main()
