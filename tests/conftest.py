"""What tests of several rooms use."""

from __future__ import annotations

import contextlib
import importlib
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have each worker of a whole run import the test modules from another one on.

    In a fresh tree each would rewrite the assertions of all of them at the same time; so each finds what the
    others have rewritten.
    """
    config = session.config
    if not hasattr(config, "workerinput") or config.args != config.getini("testpaths"):
        return
    files = sorted(config.rootpath.joinpath("tests").rglob("test_*.py"))
    number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    first = len(files) * number // count
    for file in (*files[first:], *files[:first]):
        # Collection says what is wrong with a module that cannot be imported, or skips itself.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))
