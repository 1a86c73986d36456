"""What tests of several rooms use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fork_server
from tests.shared_directory import shared_directory


@pytest.fixture(scope="session")
def commands_with_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of `python`, `pytest` and `acc` that need not import torch: tests/fork_server.py."""
    directory = shared_directory(tmp_path_factory) / "bin"
    with fork_server.lease(directory):
        yield directory


@pytest.fixture
def python_with_torch(commands_with_torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tests start programs that are forked where they would start an interpreter."""
    monkeypatch.setattr(sys, "executable", str(commands_with_torch / "python"))
    monkeypatch.setenv("PATH", f"{commands_with_torch}{os.pathsep}{os.environ.get('PATH', '')}")
