"""Programs for the launcher: the files of a tiny ATB dump, written as the environment says."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

GRAPH = (
    '{"inTensors":["M_input_0"],"modelName":"M","nodes":[{"inTensors":["M_input_0"],"opName":"X_0",'
    '"outTensors":["M_output_0"],"opType":"X"}],"outTensors":["M_output_0"]}\n'
)
LAYER = (
    '{"opName":"X_0","opType":"X","param":null,"inTensors":["X_0_input_0"],"outTensors":["X_0_output_0"]}\n'
)
START = f"""
import os, pathlib, struct, sys, time
PID = str(os.getpid())
root = pathlib.Path(os.environ["ATB_OUTPUT_DIR"] + "msit_dump_" + os.environ["ATB_TIMESTAMP"])

def put(name, content):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())

def tensor(count):
    text = ("$Version=1.0\\n$Object.Count=1\\n$Object.Length=%d\\nformat=2\\ndtype=0\\ndims=%d\\n"
            "$Object.data=0,%d\\n$End=1\\n" % (4 * count, count, 4 * count))
    return text.encode() + struct.pack("<%df" % count, *range(count))

def dump(count=4, step=0):
    home = "tensors/0_" + PID + "/" + str(step) + "/0_X/"
    put(home + "before/intensor0.bin", tensor(count))
    put(home + "after/outtensor0.bin", tensor(count))
    put("model/" + PID + "/M.json", {GRAPH!r})
    put("layer/" + PID + "/X_0.json", {LAYER!r})
"""


def program(directory: Path, code: str, name: str = "program.py") -> list[str]:
    """A command that runs `code`, which may call `put`, `tensor` and `dump`; it imports nothing large."""
    path = directory / name
    path.write_text(START + textwrap.dedent(code))
    return [sys.executable, str(path)]
