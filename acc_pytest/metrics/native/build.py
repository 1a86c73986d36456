"""Compile the native kernel into the package: `python acc_pytest/metrics/native/build.py`.

The hook of the wheel calls `build`, for wheels and for editable installs. It needs a C++17 compiler (`CXX`,
or `c++`) and nothing else: no header of Python, no package. The library is the same for every Python.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / "libacc_kernel.so.1"
"""No name that Python would import as a module."""
SOURCES = (
    *("block.h", "vectors.h", "tile.h", "summing.h", "nonfinite.h", "errors.h", "divergence.h"),
    *("block.cpp", "dispatch.cpp"),
)
FLAGS = (
    "-std=c++17 -O3 -fPIC -fno-exceptions -fno-rtti -fno-math-errno -fno-trapping-math -fvisibility=hidden"
)
_AVX512 = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512"
_BASELINE = ("baseline", 4, "")
_X86 = (_BASELINE, ("avx2", 8, "-mavx2 -mfma -mf16c"), ("avx512", 16, _AVX512))


class BuildError(Exception):
    """Reason why there is no native kernel, in one sentence."""


def digest() -> str:
    """The digest of this version of the sources; empty where they are not there."""
    try:
        return hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
    except OSError:
        return ""


def build() -> Path:
    """Compile the library and put it beside its sources, whole or not at all. Raises `BuildError`.

    It is for the machine that the compiler compiles for, which another one may do (`aarch64-linux-gnu-g++`).
    """
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise BuildError(f"no C++ compiler: {' '.join(compiler) or 'CXX'} is not in PATH")
    x86 = _run([*compiler, "-dumpmachine"]).startswith(("x86_64", "amd64"))
    with tempfile.TemporaryDirectory(prefix="acc_kernel_") as folder:
        objects = []
        for isa, lanes, flags in _X86 if x86 else (_BASELINE,):
            objects.append(f"{folder}/{isa}.o")
            names = [f"-DLANES={lanes}", f"-DBLOCK=acc_block_{isa}"]
            _compile([*compiler, *FLAGS.split(), *flags.split(), *names], "block.cpp", objects[-1])
        objects.append(f"{folder}/dispatch.o")
        names = [f'-DACC_DIGEST="{digest()}"', *(["-DACC_X86"] if x86 else [])]
        _compile([*compiler, *FLAGS.split(), *names], "dispatch.cpp", objects[-1])
        library = f"{folder}/{LIBRARY.name}"
        _run([*compiler, "-shared", "-s", "-Wl,--as-needed", *objects, "-lm", "-o", library])
        temporary = LIBRARY.with_suffix(f".{os.getpid()}.part")
        shutil.copy(library, temporary)
        os.replace(temporary, LIBRARY)
    return LIBRARY


def _compile(command: list[str], source: str, target: str) -> None:
    _run([*command, "-c", str(FOLDER / source), "-o", target])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the C++ compiler did not run: {error}") from error
    if done.returncode:
        message = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise BuildError(f"the C++ compiler failed: {message.strip()}")
    return done.stdout


def main() -> int:
    """Build, and say where it lies or why not."""
    try:
        sys.stdout.write(f"{build()}\n")
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
