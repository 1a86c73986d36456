"""For this repository's own tests only: the plugin that drives pytest from pytest, order, surroundings."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

# Several workers share the cores, and their tests start processes of their own: threads of torch would only
# wait for each other. It has to be said before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no processes that wait for work

# The C++ of a test is one small kernel: to compile all headers of vectors before it takes six times as long.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")

# Sessions inside tests, and processes that tests start, would each compile the whole plugin again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

MEMORY = Path("/dev/shm")
ROOM = 3 << 30
"""Bytes that memory must have free: what lies in temporary directories at one time takes a third of them."""


def _temporary_directories_in_memory() -> None:
    """Spare the disk the files of all dumps: 200,000 small ones a run, written, read once and deleted."""
    with contextlib.suppress(OSError):
        usable = os.access(MEMORY, os.W_OK) and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        if usable and shutil.disk_usage(MEMORY).free > ROOM:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


_temporary_directories_in_memory()

gc.set_threshold(10_000, 20, 20)  # what tests leave is little; looking for it took a twentieth of the time

# A shell has its background jobs ignore Ctrl-C, and what they start inherits that; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, so that a commit is red for what it changed, however busy the machine.
# `--hypothesis-profile=default` draws others. Comparisons that are run in this directory need no hypothesis.
with contextlib.suppress(ModuleNotFoundError):
    from hypothesis import settings

    settings.register_profile("suite", deadline=None, derandomize=True)
    settings.load_profile("suite")

LONGEST = (
    "test_torchair_document.py",
    "test_fuzz_sample.py",
    "html/test_chromium.py",
    "test_real_torchair.py",
)
"""Files whose tests cannot be split: a worker that met them last would keep the others waiting."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first; the order of the others stays."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONGEST))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives to the end: torch, thousands of tests and all that they import.

    Each session of pytest that runs in this process collects five times at its end.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _directories_of_inner_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep those of the pytest processes that tests start below our own.

    A pytest that ends removes what all but the last three runs left beside its own directory. Beside ours
    that is hundreds of thousands of files of earlier suites: minutes, in the middle of a test.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path_factory.mktemp("inner")))
        yield
