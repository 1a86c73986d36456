"""What all workers of a run have in common: a directory, and dumps that are made once for all of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pytest

Made = TypeVar("Made")

_IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ
"""Read once, as the session begins: tests that run a session of their own hide the variable meanwhile."""


def shared_directory(factory: pytest.TempPathFactory) -> Path:
    """The temporary directory of the whole run; without workers, that of the process."""
    base = factory.getbasetemp()
    return base.parent if _IN_WORKER else base


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep the other workers waiting meanwhile."""
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]) -> Made:
    """What `make` returns for an empty directory, from the first worker that asks. Nobody may change it."""
    directory = shared_directory(factory) / f"shared-{name}"
    directory.mkdir(exist_ok=True)
    kept = directory / "made.pickle"
    with locked(directory):
        if not kept.exists():
            (directory / "made").mkdir()
            kept.write_bytes(pickle.dumps(make(directory / "made")))
    made: Made = pickle.loads(kept.read_bytes())
    return made
