"""Does opening and planning a dump grow in proportion to it? CPU time at three sizes, and the ratios.

    python benchmarks/openings.py [--names 1000] [--only manual atb ...]

Each dump has thousands of tiny tensors (links to one file): a manual mapping, files without a dump, an
operation CSV, the modules of a torch dump, the operations of an ATB dump, records of GE with their graph,
calls of FX, the two against each other. Of each twice and four times as many are opened and planned too.
Ratios near 2 are a straight line, near 4 a square.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torchair import make_step

from acc_pytest.base.imports import without_collector
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan
from acc_pytest.opcheck.settings import OpcheckSettings, listed
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.api import save_npy_data, save_torch_data
from tests.mapping.torchair.hand_made import Fx, Ge, op, tensor

Opening = Callable[[], object]
PROCESS = "0_77"


def _planned(golden: Path, mine: Path) -> Opening:
    def opening() -> object:
        one = open_dump(str(golden))
        return plan(one, open_dump(str(mine), golden=one))

    return opening


def manual(home: Path, count: int) -> Opening:
    """`metadata.json` with that many pairs, of which no file is there."""
    folder = home / "golden_tensor"
    folder.mkdir()
    pairs = {f"id{one}": {"0": [f"g{one}.pth", f"m{one}.bin"]} for one in range(count)}
    (folder / "metadata.json").write_text(json.dumps(pairs))
    return _planned(folder, folder)


def files(home: Path, count: int) -> Opening:
    """Two directories of `.npy` files."""
    for side in ("golden", "mine"):
        first = Path(save_npy_data(home / side / "t0.npy", torch.zeros(2)))
        for one in range(1, count):
            os.link(first, first.with_name(f"t{one}.npy"))
    return _planned(home / "golden", home / "mine")


def operation_csv(home: Path, count: int) -> Opening:
    """An operation CSV; listed, not run."""
    path = home / "operation_tensors_0.csv"
    row = 'SoftmaxOperation_{}|{{"axes":[-1]}}|float16|2,3|float16|2,3|a/intensor0.bin|a/outtensor0.bin'
    head = "OpName|OpParam|InDType|InShape|OutDType|OutShape|InTensorFile|OutTensorFile"
    path.write_text("\n".join([head, *(row.format(one) for one in range(count))]))
    settings = OpcheckSettings.from_values({"opcheck": (str(path),)})
    return lambda: listed(settings)


def modules(home: Path, count: int) -> Opening:
    """Two torch dumps of modules side by side."""
    source = save_torch_data(torch.zeros(2), home / "source.pth")
    names = [f"root.m{one}" for one in range(count)]
    tree = {"name": "root", "type": "M", "children": [{"name": name, "type": "L"} for name in names]}
    for side in ("golden", "mine"):
        process = home / side / "torch_tensors" / PROCESS
        for name in names:
            (process / "0" / name).mkdir(parents=True)
            os.link(source, process / "0" / name / "output.pth")
        (process / "model_tree.json").write_text(json.dumps(tree))
    return _planned(home / "golden", home / "mine")


def operations(home: Path, count: int) -> Opening:
    """Two ATB dumps of operations in a row, each reading what the one before wrote."""
    nodes = [
        {"opName": f"AddOperation_{one}", "opType": "AddOperation", "inTensors": [f"t{one}"],
         "outTensors": [f"t{one + 1}"]}
        for one in range(count)
    ]  # fmt: skip
    for side in ("golden", "mine"):
        source = home / f"{side}.bin"
        atb_bin.write(source, torch.zeros(2).half())
        for node in nodes:
            number = node["opName"].rpartition("_")[2]  # type: ignore[attr-defined]
            after = home / side / "tensors" / PROCESS / "0" / f"{number}_AddOperation" / "after"
            after.mkdir(parents=True)
            os.link(source, after / "outtensor0.bin")
        report = home / side / "model" / PROCESS.partition("_")[2] / "Model.json"
        report.parent.mkdir(parents=True)
        report.write_text(json.dumps({"modelName": "Model", "nodes": nodes}))
    return _planned(home / "golden", home / "mine")


def ge(home: Path, count: int) -> Opening:
    """Two GE dumps of one graph, with three tensors a record."""
    for side in ("golden", "mine"):
        make_step(home / side, count)
    return _planned(home / "golden", home / "mine")


def fx(home: Path, count: int) -> Opening:
    """Two FX dumps of a chain of additions, with three tensors a call."""
    for side in ("golden", "mine"):
        _chain(Fx(home / side), count)
    return _planned(home / "golden", home / "mine")


def ge_and_fx(home: Path, count: int) -> Opening:
    """Such an FX dump, and records of GE for the same chain."""
    _chain(Fx(home / "golden"), count)
    mine = Ge(home / "mine")
    names = [op("arg0_1", kind="Data")]
    for number in range(count):
        before = names[-1].name
        names.append(op(f"Add_{number}", f"{before} {before}", f"{_call(number)}.OUTPUT.0"))
        mine.ran(f"Add_{number}", [tensor(number)] * 2, [tensor(number + 1)])
    mine.graph(*names)
    return _planned(home / "golden", home / "mine")


def _chain(dump: Fx, count: int) -> None:
    for number in range(count):
        dump.ran(_call(number), {"0": tensor(number), "1": tensor(number)}, tensor(number + 1))


def _call(number: int) -> str:
    return f"add_{number}-aten.add.Tensor"


KINDS: Mapping[str, Callable[[Path, int], Opening]] = {
    one.__name__: one for one in (manual, files, operation_csv, modules, operations, ge, fx, ge_and_fx)
}


def seconds(kind: str, count: int) -> float:
    """CPU time to open and plan one dump of that many names."""
    with tempfile.TemporaryDirectory() as home:
        opening = KINDS[kind](Path(home), count)
        before = time.process_time()
        with without_collector():  # as in a run
            opening()
        return time.process_time() - before


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--names", type=int, default=1000, metavar="N", help="the smallest size")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [given.names * times for times in (1, 2, 4)]
    seconds("manual", 10)  # what is imported on the way
    print(f"{'':14}", *(f"{size:>9}" for size in sizes), "   ratios")
    for kind in given.only:
        found = [seconds(kind, size) for size in sizes]
        ratios = ", ".join(f"{after / before:.1f}" for before, after in itertools.pairwise(found))
        print(f"{kind:14}", *(f"{one:8.2f}s" for one in found), f"   {ratios}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
