"""What opening, mapping and reading dumps of TorchAir costs beside the least that anybody must do.

    python benchmarks/torchair.py [--files 10000] [--elements 16M] [--repeat 3]

Opening: one step of as many GE records as told, beside a walk over the directory that reads the header of
each (its length, then that many bytes). Bars: opened in under 2 s for 10,000 records.

Mapping: the same step against itself without fusion, through its graph text, one line per record beside the
same walk. No bar; it is the price of the plan of a whole comparison.

Reading: a record against an FX file, and a record in fractal format, beside the same kernel on tensors that
lie in memory, row by row, all on one thread. Bar: at least half its speed. The files are in the page cache on
both sides; the best of `--repeat` runs counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from acc_pytest.base.imports import without_collector
from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo.torchair.graph_text import write_graph
from acc_pytest.mapping.planner import plan
from acc_pytest.metrics.kernel import measure
from acc_pytest.tensors.read_source import source_of
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.source import TensorSource
from acc_pytest.topology.ge_graph import Edge, GeDesc, GeGraph, GeNode
from tests.tensors.ge_writer import GeValue, write_record

STARTED = 1_763_670_000_000_000


def make_step(root: Path, count: int) -> None:
    """A chain of additions: a record for each, and the text of their graph."""
    folder = root / "worldsize1_global_rank0/20261120203000/0/graph_1/1/0"
    value = torch.ones(8, dtype=torch.float16)
    nodes = [GeNode("arg0_1", "Data", attrs={"index": 0}, output_descs=(GeDesc("y"),))]
    for number in range(count):
        name = f"Add_{number}" if number else "Add"
        time_us = STARTED + 10 * number
        file = folder / f"Add.{name}.{number + 1}.6.{time_us}"
        write_record(file, name, [value, value], [value], dump_time=time_us)
        before = Edge(nodes[-1].name, 0)
        descs = (GeDesc("x1"), GeDesc("x2"))
        nodes.append(GeNode(name, "Add", (before, before), {}, descs, (GeDesc("y", "DT_FLOAT16", (8,)),)))
    text = "dynamo_original_graph_1_rank_0_pid_21111_ts_20261120202451423567.txt"
    write_graph(GeGraph("graph_1", tuple(nodes)), root / text)


def walk(root: Path) -> int:
    """Every directory listed, every record opened, its header read; returns how many there were."""
    count = 0
    for folder, _, files in os.walk(root):
        for name in files:
            if name.endswith(".txt"):
                continue
            with open(os.path.join(folder, name), "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                count += len(file.read(length)) == length
    return count


def best(repeat: int, call: Callable[[], object]) -> float:
    """The smallest time of several calls, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def opening(folder: Path, count: int, repeat: int) -> None:
    """Print what opening and mapping cost."""
    make_step(folder / "mine", count)
    make_step(folder / "golden", count)
    assert walk(folder / "mine") == count
    plain = best(repeat, lambda: walk(folder / "mine"))
    opened = best(repeat, lambda: open_dump(str(folder / "mine")))
    print(
        f"open {count} records: walk and headers {plain:.2f} s, dump {opened:.2f} s, "
        f"ratio {opened / plain:.2f} (bar 2 s for 10000)"
    )
    golden, mine = open_dump(str(folder / "golden")), open_dump(str(folder / "mine"))
    start = time.process_time()
    with without_collector():  # as in a run
        made = plan(golden, mine)
    mapped = time.process_time() - start
    print(
        f"map {count} records on both sides: {len(made.pairs)} pairs in {mapped:.2f} s of the "
        f"processor, {mapped / len(made.pairs) * 1e6:.0f} us each, "
        f"ratio to two walks {mapped / plain / 2:.1f}"
    )


def reading(folder: Path, elements: int, repeat: int) -> None:
    """Print what comparing costs when one side is a record."""
    shape = (elements // 1024 - 8, 1000)  # no whole tiles
    generator = torch.Generator().manual_seed(20)
    golden = torch.randn(shape, generator=generator)
    mine = (golden + 1e-3 * torch.randn(shape, generator=generator)).half()
    np.save(folder / "golden.npy", golden.numpy())
    kernel = best(repeat, lambda: measure(TensorSource(golden), TensorSource(mine)))
    wanted = measure(TensorSource(golden), TensorSource(mine))
    for layout in ("nd", "fractal_nz"):
        path = folder / f"Add.{layout}.1.6.{STARTED}"
        write_record(path, layout, [], [GeValue(mine, layout)])

        def compare(path: Path = path) -> object:
            first, second = TensorRef(str(folder / "golden.npy")), TensorRef(str(path), "outputs/0")
            return measure(source_of(first.open()), source_of(second.open()))

        found = best(repeat, compare)
        assert compare() == wanted
        print(
            f"compare {golden.numel()} elements with a record, {layout}: kernel {kernel * 1e3:.0f} ms, "
            f"files {found * 1e3:.0f} ms, speed {kernel / found:.2f} of the kernel's (bar 0.5)"
        )


def size(text: str) -> int:
    """`16M` is 16 Mi."""
    units = {"K": 1 << 10, "M": 1 << 20}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000, help="records of the step")
    parser.add_argument("--elements", type=size, default=size("16M"), help="of the tensors compared")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opening(folder, given.files, given.repeat)
        reading(folder, given.elements, given.repeat)


if __name__ == "__main__":
    main()
