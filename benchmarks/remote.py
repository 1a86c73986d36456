"""Dumps in stores and with an index: bytes read against bytes compared; opening with and without an index.

    python benchmarks/remote.py [--tensors 200000] [--tokens 7 600] [--only bytes disk]

bytes: two dumps of a demo in S3 (moto on the loopback); what went over the wire to open and compare them,
against the bytes of the tensors that are compared, without and with the index of each; a demo of 7 tokens
is that of `acc demo`. Listings are told apart. disk: a torch dump of many tensors (links to one file);
opened, all tensors found, all headers read, by a process of its own, with an index and without (the
baseline): CPU time (user and system) and peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.remote.indexing import index, refs_of
from acc_pytest.session.planning import open_and_plan
from acc_pytest.settings import Settings
from acc_pytest.tensors.address import Cache
from acc_pytest.tensors.api import save_torch_data

if TYPE_CHECKING:
    from tests.e2e.object_store import ObjectStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MODULES = 1000
"""Modules of a step; each has an input and an output."""


def of_wire(home: Path, prompts: Sequence[int]) -> None:
    """Print bytes read against bytes compared for a demo of each length, without and with an index."""
    from tests.e2e.object_store import ObjectStore

    store = ObjectStore()
    os.environ |= {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = store.endpoint
    for tokens in prompts:
        paths = make_demo(home / f"demo{tokens}", DemoSpec(prompt_length=tokens))
        golden = store.upload("bench", paths.golden, f"{tokens}/golden")
        mine = store.upload("bench", paths.mine, f"{tokens}/mine")
        read_from(store, f"{tokens} tokens, no index", golden, mine, home / f"first{tokens}")
        for place in (golden, mine):
            index(place, Cache(str(home / f"made{tokens}")))
        read_from(store, f"{tokens} tokens, index", golden, mine, home / f"second{tokens}")
    store.stop()


def read_from(store: ObjectStore, label: str, golden: str, mine: str, cache: Path) -> None:
    """Print what opening and comparing two dumps takes."""
    wire = store.wire
    wire.reset()
    _, _, plan = open_and_plan(Settings(golden=golden, mine=mine, cache_dir=str(cache)))
    planned = wire.bytes_read
    refs = {ref for pair in plan.pairs for side in (pair.golden, pair.mine) for ref in side.refs}
    for ref in refs:
        ref.open()
    payload = sum(ref.header().nbytes for ref in refs)
    print(
        f"bytes, {label}: {len(plan.pairs)} pairs, {len(refs)} tensors of {payload} bytes; "
        f"read {wire.bytes_read} ({planned} to open and plan): {wire.bytes_read / payload:.3f} times; "
        f"{wire.asked} requests, {wire.listed} of them listings of {wire.bytes_listed} bytes"
    )


def made(home: Path, tensors: int) -> Path:
    """A torch dump of that many tensors."""
    names = [f"root.m{number}" for number in range(MODULES)]
    tree = {"name": "root", "type": "M", "children": [{"name": name, "type": "L"} for name in names]}
    process = home / "dump" / "torch_tensors" / "cpu_1"
    for step in range(tensors // MODULES // 2):
        # A file of ext4 has 65,000 names at most.
        source = save_torch_data(torch.zeros(64, 64), home / f"source{step}.pth")
        for name in names:
            folder = process / str(step) / name
            folder.mkdir(parents=True)
            os.link(source, folder / "output.pth")
            os.link(source, folder / "input_0.pth")
    (process / "model_tree.json").write_text(json.dumps(tree))
    return home / "dump"


def peak_memory() -> float:
    """MiB that this process had at most, since it began (`getrusage` counts those of its parent, too)."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def opened(place: str, cache: str) -> None:
    """Print what opening takes, as JSON: CPU seconds until the dump is open, until its tensors are found,
    until all headers are known; peak MiB before and after."""
    before = peak_memory()
    start = time.process_time()
    dump = open_dump(place, cache=Cache(cache))
    is_open, memory = time.process_time() - start, peak_memory()
    refs = [*refs_of(dump)]
    found = time.process_time() - start
    for ref in refs:
        ref.header()
    known = time.process_time() - start
    peak = peak_memory()
    stale = [note for note in dump.notes if "index" in note]
    print(json.dumps([is_open, found, known, before, memory, peak, len(refs), stale]))


def measured(label: str, place: str, cache: str) -> list[float]:
    """Print a line of the table; returns the seconds."""
    words = [sys.executable, __file__, "--open", place, "--cache", cache]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    is_open, found, known, before, memory, peak, count, stale = json.loads(done.stdout)
    print(
        f"{label:22} {is_open:8.2f} s {found:8.2f} s {known:8.2f} s   {memory:6.0f} MiB {peak:6.0f} MiB"
        f"   ({before:.0f} MiB before, {count} tensors{'; STALE' if stale else ''})"
    )
    return [is_open, found, known]


def of_disk(home: Path, tensors: int) -> None:
    """Print opening from an index beside opening without one."""
    dump = made(home, tensors)
    print(f"{'':22} {'open':>10} {'tensors':>10} {'headers':>10}   {'open':>10} {'all':>10}")
    without = measured("disk, no index", str(dump), str(home / "cache"))
    start = time.process_time()
    written = index(str(dump), Cache())
    making = time.process_time() - start
    with_index = measured("disk, index", str(dump), str(home / "cache"))
    ratios = ", ".join(f"{one / other:.2f}" for one, other in zip(with_index, without))
    print(f"ratios with and without: {ratios}; the index has {written.nbytes} bytes and took {making:.1f} s")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tensors", type=int, default=200_000, metavar="N", help="of the dump on the disk")
    parser.add_argument("--tokens", type=int, nargs="+", default=[7, 600], metavar="N", help="of the prompts")
    parser.add_argument("--only", nargs="+", choices=("bytes", "disk"), default=["bytes", "disk"])
    parser.add_argument("--open", default="", help=argparse.SUPPRESS)
    parser.add_argument("--cache", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.open:
        opened(given.open, given.cache)
        return
    with tempfile.TemporaryDirectory(prefix="acc-remote-") as home:
        if "bytes" in given.only:
            of_wire(Path(home), given.tokens)
        if "disk" in given.only:
            of_disk(Path(home), given.tensors)


if __name__ == "__main__":
    main()
