"""How long does an msprobe dump take to open? CPU seconds by records, and what is planned of it.

    python benchmarks/msprobe_open.py [--records 50000] [--plan]

The dump has the calls of one step of a model at level mix (modules, functions below them, and their
gradients), with three tensors each, of which statistics were recorded. Each module is a record, its function
another one, and as many again are gradients.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acc_pytest.base.imports import without_collector
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan

_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; the exit status is 1 where opening takes longer than `--limit` seconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=50_000, metavar="N", help="of the dump")
    parser.add_argument("--limit", type=float, default=3.0, metavar="S", help="CPU seconds for opening")
    parser.add_argument("--plan", action="store_true", help="plan it against itself as well")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="acc-msprobe-") as directory:
        size = write(Path(directory) / "step0" / "proc1", given.records)
        start = time.process_time()
        with without_collector():
            dump = open_dump(directory)
        opening = time.process_time() - start
        nodes = sum(1 for _ in dump.steps[0].tree.walk())
        print(
            f"{given.records} records, {size / 1e6:.0f} MB of JSON, {nodes} nodes: opened in {opening:.2f} s"
        )
        if given.plan:
            start = time.process_time()
            with without_collector():
                made = plan(dump, dump)
            print(f"{len(made.pairs)} pairs planned in {time.process_time() - start:.2f} s")
    return int(opening > given.limit)


def write(home: Path, records: int) -> int:
    """Write a dump of that many records; returns the bytes of its JSON files."""
    home.mkdir(parents=True)
    data: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    backward: list[tuple[str, str]] = []
    for number in range(records // 4):
        layer, module = divmod(number, len(_MODULES))
        outer = f"Module.model.layers.{layer}.Layer.forward.0"
        parents.setdefault(outer, None)
        name = f"Module.model.layers.{layer}.{_MODULES[module]}.Linear.forward.0"
        parents[name] = outer
        function = f"Functional.linear.{number}.forward"
        parents[function] = name
        tensors = [_tensor(f"{number}{end}") for end in (1, 2, 3)]
        data[function] = {"input_args": tensors[:2], "input_kwargs": {}, "output": tensors[2:]}
        own = {"weight": tensors[1]}
        data[name] = {**data[function], "input_args": tensors[:1], "parameters": own}
        backward.append((name, function))
    for name, function in reversed(backward):
        gradients = {"input": [_tensor(f"{len(data)}4")], "output": [_tensor(f"{len(data)}5"), None]}
        data[function.replace("forward", "backward")] = gradients
        data[name.replace("forward", "backward")] = gradients
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    home.joinpath("dump.json").write_text(json.dumps({**head, "data": data}, indent=1))
    home.joinpath("construct.json").write_text(json.dumps(parents, indent=1))
    return sum(path.stat().st_size for path in home.iterdir())


def _tensor(seed: str) -> dict[str, Any]:
    value = int(seed) / 7.0
    numbers = {"Max": value + 1, "Min": -value, "Mean": 0.1, "Norm": value * 3}
    kind = {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": [2, 6, 32]}
    return {**kind, **numbers, "requires_grad": False}


if __name__ == "__main__":
    sys.exit(main())
