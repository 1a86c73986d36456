"""What tests of several rooms use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fork_server


@pytest.fixture(scope="session")
def commands_with_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of `python`, `pytest` and `acc` that need not import torch: tests/fork_server.py."""
    directory = tmp_path_factory.mktemp("bin")
    fork_server.launchers(directory, directory / "socket")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, fork_server.__file__, str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env=environment,
        )
    yield directory
    server.communicate()


@pytest.fixture
def python_with_torch(commands_with_torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tests start programs that are forked where they would start an interpreter."""
    monkeypatch.setattr(sys, "executable", str(commands_with_torch / "python"))
    monkeypatch.setenv("PATH", f"{commands_with_torch}{os.pathsep}{os.environ.get('PATH', '')}")
