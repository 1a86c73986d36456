"""Several processes, and one that is killed: no talking to each other, nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import acc_pytest
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan

HERE = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, sys, torch
from torch import nn
from acc_pytest import DumpConfig, register_hook
torch.set_num_threads(1)
torch.manual_seed(0)
layer = lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True))
model = nn.Sequential(*(layer() for _ in range(4)))
handle = register_hook(model, DumpConfig(sys.argv[1], range(100_000)))
print(os.getpid(), handle.dump_path, flush=True)
for step in range(int(sys.argv[2])):
    model(torch.full((32, 64), float(step)))
"""

RANKS = f"""
import os, sys
ranks = []
for rank in (2, 0, 1):  # process ids do not sort as ranks do
    ranks.append(os.fork())
    if not ranks[-1]:
        os.environ |= {{"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank)}}
        break
else:
    ended = [os.waitpid(rank, 0)[1] for rank in ranks]
    print(*ranks, flush=True)
    sys.exit(any(ended))
{PROGRAM}
"""


def started(program: str, folder: Path, steps: int) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("ATB_TIMESTAMP", "WORLD_SIZE", "RANK")}
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(steps)],
        cwd=HERE,
        env=clean | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_killed_process_leaves_whole_files_only_and_a_dump_that_can_be_compared(
    tmp_path: Path, python_with_torch: None
) -> None:
    process = started(PROGRAM, tmp_path, 100_000)
    assert process.stdout is not None
    number, folder = process.stdout.readline().rstrip("\n").split(" ", 1)
    home = Path(folder)
    deadline = time.monotonic() + 60
    while not (home / "5" / "manifest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(int(number), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    found = [path for path in home.rglob("*") if path.is_file()]
    visible = [path for path in found if not path.name.startswith(".")]
    assert len(visible) > 100
    for path in visible:
        if path.suffix in (".pth", ".pt"):
            torch.load(path, weights_only=True)
        else:
            json.loads(path.read_bytes())
    dump = open_dump(str(tmp_path))
    assert len(dump.steps) >= 6
    mapped = plan(dump, open_dump(str(tmp_path)))
    whole = [step for step in dump.steps if (home / step.directory / "manifest.json").exists()]
    assert len([pair for pair in mapped.pairs if pair.step == 0]) >= 12
    assert {pair.step for pair in mapped.pairs} >= {step.label for step in whole}
    for pair in (pair for pair in mapped.pairs if pair.fed not in ("weight", "buffer")):
        for ref in (*pair.golden.refs, *pair.mine.refs):
            ref.open()


def test_ranks_find_one_directory_and_one_order_without_talking(
    tmp_path: Path, python_with_torch: None
) -> None:
    launcher = started(RANKS, tmp_path, 1)
    said, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    (root,) = tmp_path.iterdir()
    dump = open_dump(str(root))
    pids = dict(zip(said.splitlines()[-1].split(), (2, 0, 1)))
    assert [pids[rank.name.rpartition("_")[2]] for rank in dump.ranks] == [0, 1, 2]
    manifest = json.loads((root / "torch_tensors" / dump.ranks[1].name / "manifest.json").read_text())
    assert {key: manifest["process"][key] for key in ("rank", "world_size", "local_rank")} == {
        "rank": 1,
        "world_size": 3,
        "local_rank": 1,
    }


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_a_process_group_is_neither_made_nor_used(tmp_path: Path, python_with_torch: None) -> None:
    code = (
        "import sys, torch; from acc_pytest import DumpConfig, register_hook\n"
        "model = torch.nn.Linear(1, 1)\n"
        "with register_hook(model, DumpConfig(sys.argv[1])): model(torch.ones(1))\n"
        "assert not torch.distributed.is_initialized()"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": "2"},  # the other never comes
        cwd=Path(acc_pytest.__file__).parents[1],
        timeout=120,
        check=True,
    )
