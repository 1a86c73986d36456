"""What dumping costs: a model with hooks against the model and a plain write of the same bytes.

    python benchmarks/capture.py [--shapes small medium large] [--steps 4] [--repeat 5]

The model is a stack of Llama-like layers in plain torch; all modules are dumped, inputs and outputs, on every
step. The plain way runs the same steps without hooks and then writes, one by one, files with the very bytes
that the hooks wrote, under the same names (`open`, `write`; no temporary names, no check sums), in the same
process and to the same disk. Both begin with an empty directory and warm caches; they alternate, and the best
of `--repeat` runs of each counts. Digests of weights, made once per dump, are left out: `weight_digest.py`.

Printed per shape: files and MB per step, milliseconds per step of the forward alone, of the plain way and of
ours, the ratio of the last two, the same for torch.save instead of plain files, and for memory: the most that
ever waited in the queue, and how much peak resident memory grew from the first third of `--memory-steps` to
the last. The last columns are CPU milliseconds that a step takes more than the forward: with a hook that
takes maximum, minimum, mean and norm of each tensor with torch and keeps them, with ours for statistics alone
(`dump_statistics_mode=1`), and with ours for tensors.

Bars: at most 1.3 times plain files where these have 100 KB and more on average, which leaves 20 us to name,
describe and check each; of smaller ones, at most what torch.save takes. Of large ones, statistics add at most
what tensors do. The exit status is 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook

SHAPES = {
    "small": (64, 8, 16),  # width, layers, tokens: many small files
    "medium": (512, 8, 64),
    "large": (1024, 2, 512),  # few large ones
}
TO_PLAIN, TO_SAVED = 1.3, 1.0
"""The most that is wanted: of files of `LARGE` bytes to plain files, of smaller ones to torch.save."""
LARGE = 100_000


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 1)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, 3 * width, False), nn.Linear(width, 3 * width, False)
        self.act_fn, self.down_proj = nn.SiLU(), nn.Linear(3 * width, width, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(width), Attention(width)
        self.post_attention_layernorm, self.mlp = Norm(width), Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = Norm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def timed(work: Callable[[], object]) -> float:
    """Seconds of one run, garbage collected and the disk quiet before."""
    gc.collect()
    os.sync()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def ours(model: nn.Module, x: torch.Tensor, steps: int, folder: Path) -> float:
    """Seconds of `steps` forwards with hooks; registering them is not counted."""
    with register_hook(model, DumpConfig(folder, range(steps), weight_digest=False)) as handle:

        def dumped() -> None:
            for _ in range(steps):
                model(x)
            handle.close()

        return timed(dumped)


def plain(model: nn.Module, x: torch.Tensor, steps: int, folder: Path, contents: dict[str, bytes]) -> float:
    """Seconds of `steps` forwards and of writing `contents`, whose directories are made too."""

    def work() -> None:
        for _ in range(steps):
            model(x)
        made: set[str] = set()
        for name, content in contents.items():
            path = f"{folder}/{name}"
            parent = os.path.dirname(path)
            if parent not in made:
                os.makedirs(parent, exist_ok=True)
                made.add(parent)
            with open(path, "wb") as file:
                file.write(content)

    return timed(work)


def saved(
    model: nn.Module, x: torch.Tensor, steps: int, folder: Path, tensors: dict[str, torch.Tensor]
) -> float:
    """As `plain`, but with `torch.save` of the tensors, as hooks written in an afternoon do it."""

    def work() -> None:
        for _ in range(steps):
            model(x)
        for name, tensor in tensors.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(tensor, path)

    return timed(work)


def plain_statistics(model: nn.Module, x: torch.Tensor, steps: int) -> None:
    """The forwards with hooks written in five minutes."""
    rows: list[tuple[float, ...]] = []

    def hook(_: nn.Module, *sides: object) -> None:
        for side in sides:
            for t in side if isinstance(side, tuple) else (side,):
                if isinstance(t, torch.Tensor):
                    rows.append((t.max().item(), t.min().item(), t.mean().item(), t.norm().item()))

    handles = [module.register_forward_hook(hook) for module in model.modules()]
    for _ in range(steps):
        model(x)
    for handle in handles:
        handle.remove()


def added(model: nn.Module, x: torch.Tensor, steps: int, repeat: int, folder: Path) -> list[float]:
    """CPU seconds that plain statistics, ours alone, and tensors add to a forward."""

    def dumped(mode: int) -> None:
        place = folder / str(len(list(folder.iterdir())))
        config = DumpConfig(
            place, range(steps), weight_digest=False, outline=False, dump_statistics_mode=mode
        )
        with register_hook(model, config):
            for _ in range(steps):
                model(x)

    def least(work: Callable[[], object]) -> float:
        times = []
        for _ in range(repeat):
            begin = time.process_time()
            work()
            times.append(time.process_time() - begin)
        return min(times) / steps

    folder.mkdir()
    forward = least(lambda: [model(x) for _ in range(steps)])
    ways = (lambda: plain_statistics(model, x, steps)), (lambda: dumped(1)), (lambda: dumped(0))
    return [least(way) - forward for way in ways]


def memory(model: nn.Module, x: torch.Tensor, steps: int, folder: Path, queue: int) -> tuple[int, int]:
    """Most bytes that waited, and growth of peak resident memory from the first to the last third of the
    steps.
    """
    peaks: list[int] = []
    with register_hook(model, DumpConfig(folder, range(steps), queue_bytes=queue)) as handle:
        for step in range(steps):
            model(x)
            peaks.append(resident())
            shutil.rmtree(handle.dump_path / str(step))  # only memory is of interest, not the disk
        waited = handle._recording.store.writer.peak_bytes
    third = steps // 3
    return waited, max(peaks[-third:]) - max(peaks[:third])


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def measure(shape: str, steps: int, repeat: int, memory_steps: int, scratch: str | None) -> bool:
    """Print the line of a shape; whether its bar is met."""
    width, layers, tokens = SHAPES[shape]
    torch.manual_seed(0)
    model, x = Model(width, layers).eval(), torch.randn(1, tokens, width)
    with torch.no_grad(), tempfile.TemporaryDirectory(dir=scratch) as name:
        home = Path(name)
        ours(model, x, steps, home / "first")
        contents = contents_of(home / "first")
        tensors = {
            str(path.relative_to(home)): torch.load(path, weights_only=True)
            for path in (home / "first").rglob("*.pth")
        }
        nbytes, files = sum(map(len, contents.values())), len(contents)
        shutil.rmtree(home / "first")
        best = dict.fromkeys(("forward", "plain", "ours", "saved"), float("inf"))
        for _ in range(repeat):
            runs = {
                "forward": timed(lambda: [model(x) for _ in range(steps)]),
                "plain": plain(model, x, steps, home / "plain", contents),
                "ours": ours(model, x, steps, home / "ours"),
                "saved": saved(model, x, steps, home / "saved", tensors),
            }
            best = {key: min(best[key], seconds) for key, seconds in runs.items()}
            for kind in ("plain", "ours", "saved"):
                shutil.rmtree(home / kind)
        del contents, tensors
        queue = max(nbytes // steps // 4, 1 << 20)
        waited, growth = memory(model, x, memory_steps, home / "memory", queue)
        statistics = added(model, x, steps, repeat, home / "statistics")
    forward, plain_, ours_, saved_ = (
        best[key] / steps * 1e3 for key in ("forward", "plain", "ours", "saved")
    )
    print(
        f"{shape:7s} | {len(list(_names(model))) * 2:5d} {nbytes / steps / 1e6:8.1f} "
        f"| {forward:8.1f} {plain_:8.1f} {ours_:8.1f} | {ours_ / plain_:5.2f} {ours_ / saved_:9.2f} "
        f"| {queue / 1e6:7.1f} {waited / 1e6:7.1f} {growth / 1e6:7.1f} "
        f"| {statistics[0] * 1e3:6.1f} {statistics[1] * 1e3:6.1f} {statistics[2] * 1e3:7.1f}",
        flush=True,
    )
    if nbytes < LARGE * files:
        return ours_ <= TO_SAVED * saved_
    return ours_ <= TO_PLAIN * plain_ and statistics[1] <= statistics[2]


def _names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if not isinstance(module, nn.ModuleList)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--memory-steps", type=int, default=30)
    parser.add_argument("--scratch", help="directory to write to (default: the system's for temporary files)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cores = f"one thread for the model, {os.cpu_count()} cores"
    print(f"torch {torch.__version__}, {cores}; bars: {TO_PLAIN} of plain, {TO_SAVED} of torch.save if small")
    print(
        "        |   per step     | ms per step                | ratio of ours to | MB "
        "                     | CPU ms added to a step"
    )
    print(
        "shape   | files       MB |  forward    plain     ours | plain torch.save "
        "|   queue  waited   growth |  plain   ours tensors"
    )
    met = [
        measure(shape, options.steps, options.repeat, options.memory_steps, options.scratch)
        for shape in options.shapes
    ]
    sys.exit(not all(met))


if __name__ == "__main__":
    main()
