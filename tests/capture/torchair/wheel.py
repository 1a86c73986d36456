"""The real TorchAir, from the torch-npu wheel: it needs no NPU to trace, to dump FX data and to print graphs.

The wheel (43 MB) is downloaded by pip once into `$ACC_TORCHAIR_CACHE` (the user's cache directory unless set)
and never again; `ACC_TORCHAIR_CACHE=off` skips the tests that want it. Nothing of it is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch

VERSION = "2.13.0"
"""Whose TorchAir runs on the torch of the same number."""
_VARIABLE = "ACC_TORCHAIR_CACHE"
_INSIDE = "torch_npu/dynamo/torchair/"
_failed = ""


def torchair_home() -> Path:
    """The directory to put on `sys.path`; the test is skipped, with the reason, where there is none."""
    global _failed
    given = os.environ.get(_VARIABLE, "")
    if given == "off":
        pytest.skip(f"{_VARIABLE}=off: the real TorchAir is not wanted")
    cache = Path(given) if given else Path.home() / ".cache" / "acc_pytest"
    unpacked = cache / f"torchair-{VERSION}-cp{sys.version_info.major}{sys.version_info.minor}"
    if not unpacked.is_dir():
        if not _failed:
            _failed = _fetch(cache, unpacked)
        if _failed:
            pytest.skip(f"the wheel of torch-npu {VERSION} cannot be downloaded: {_failed}")
    return unpacked / "torch_npu" / "dynamo"


def needs_same_torch() -> None:
    """Skip where the whole of TorchAir would not run on this torch."""
    if not torch.__version__.startswith(VERSION):
        pytest.skip(f"TorchAir {VERSION} runs on torch {VERSION}, and this is {torch.__version__}")


def _fetch(cache: Path, unpacked: Path) -> str:
    """Download and unpack; gives what went wrong. Workers that do it at once do not disturb each other."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            pip = ["pip", "download", "-q", "--no-deps", "--retries", "0", "--timeout", "15", "-d", scratch]
            run = subprocess.run(
                [sys.executable, "-m", *pip, "--only-binary", ":all:", f"torch-npu=={VERSION}"],
                capture_output=True,
                text=True,
                timeout=180,
                check=False,
            )
            wheels = list(Path(scratch).glob("*.whl"))
            if not wheels:
                return (run.stderr.strip().splitlines() or ["pip says nothing"])[-1]
            target = Path(scratch) / "unpacked"
            with zipfile.ZipFile(wheels[0]) as wheel:
                names = [
                    name for name in wheel.namelist() if name.startswith(_INSIDE) and name.endswith(".py")
                ]
                wheel.extractall(target, names)
            if not unpacked.is_dir():
                shutil.move(target, unpacked)
    except (OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
        return str(error)
    return ""
