"""A process that is killed while it dumps leaves whole files, and a dump that opens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acc_pytest.dumps import open_dump
from acc_pytest.tensors.atb_bin import FORMAT
from acc_pytest.tensors.ref import TensorRef

PROGRAM = """
import os
import sys
import torch
from acc_pytest.lab.atb import Call, Runtime, graph, operation
from acc_pytest.lab.atb.probe import probe_from_environment
from acc_pytest.lab.atb.graph import AtbModel
from acc_pytest.lab.atb.graph import Cell

param = {"elewiseType": 2, "mulsParam": {"varAttr": 1.5}}
scale = operation("ElewiseOperation", param, ("x",), ("y",))
layer = graph("Prefill_layer", ("x",), ("y",), Call(scale, ("x",), ("y",)))
model = AtbModel("Model", (Call(layer, ("input_0",), ("output_0",)),), (), (0,), 1)
environ = {"ATB_OUTPUT_DIR": sys.argv[1], "ATB_SAVE_TENSOR_RANGE": "all",
           "ATB_DUMP_TYPE": "model|layer|tensor|op|kernel"}
loaded = Runtime([probe_from_environment(0, environ=environ)])
running = loaded.load([model])
x = torch.ones(256, 1024)
while True:
    running.execute([{"input_0": Cell(x)}])
    print(os.getpid(), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_what_a_killed_process_left_is_whole_and_opens(tmp_path: Path, python_with_torch: None) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"{tmp_path}/"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(3):
        number = int(process.stdout.readline())
    time.sleep(0.01)
    os.kill(number, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    root = tmp_path / "msit_dump"
    tensors = list(root.rglob("*tensor*.bin"))
    assert len(tensors) >= 12
    for path in tensors:
        header = FORMAT.header(TensorRef(str(path)))
        assert (header.shape, header.nbytes) == ((256, 1024), 256 * 1024 * 4)
    for path in root.rglob("*.csv"):
        assert path.read_bytes().endswith(b"NO_ERROR\n")
    assert open_dump(str(root)).kind == "atb"
