"""The kernel of ARM processors on others: compiled by a cross compiler, run by QEMU, fed through pipes.

Debian has both as `g++-aarch64-linux-gnu` and `qemu-user-static`. Without them the tests of it are skipped.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from acc_pytest.metrics.native.build import FLAGS, FOLDER
from acc_pytest.metrics.native.library import KernelRequest, KernelResult

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
BYTES = (2, 2, 4)
"""Of an element of each type of the kernel."""


def emulated() -> Callable[[int, int], int]:
    """What stands for the compiled function: the same arguments and results. Skips without it."""
    for program in (COMPILER, EMULATOR):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    return _kernel(_process())


@functools.cache
def _process() -> subprocess.Popen[bytes]:
    """The program, which ends with this process."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "kernel")
        sources = (str(FOLDER / "block.cpp"), str(Path(__file__).with_name("piped.cpp")))
        names = ("-DLANES=4", "-DBLOCK=acc_block_baseline", "-static", "-o", str(program))
        subprocess.run([COMPILER, *FLAGS.split(), *names, *sources, "-lm"], check=True, timeout=300)
        process = subprocess.Popen([EMULATOR, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        request, result = KernelRequest(channels=1), KernelResult()
        _kernel(process)(ctypes.addressof(request), ctypes.addressof(result))  # it runs: its file may go
    atexit.register(process.communicate)
    return process


def _kernel(process: subprocess.Popen[bytes]) -> Callable[[int, int], int]:
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def kernel(request_at: int, result_at: int) -> int:
        request = KernelRequest.from_address(request_at)
        sides = (request.golden, request.golden_type), (request.mine, request.mine_type)
        data = [ctypes.string_at(at, request.elements * BYTES[kind]) if at else b"" for at, kind in sides]
        rows = request.elements // request.channels if request.rows else 0
        stdin.write((ctypes.c_int64 * 3)(len(data[0]), len(data[1]), rows))
        stdin.write(bytes(request) + data[0] + data[1])
        stdin.flush()
        taken = int.from_bytes(stdout.read(8), "little")
        ctypes.memmove(result_at, stdout.read(ctypes.sizeof(KernelResult)), ctypes.sizeof(KernelResult))
        if rows:
            ctypes.memmove(request.rows, stdout.read(24 * rows), 24 * rows)
            channels = 24 * request.channels
            ctypes.memmove(request.columns, stdout.read(channels), channels)
        return taken

    return kernel
