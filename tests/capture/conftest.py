"""FX dumps that several tests look at, each made once for all workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from acc_pytest.capture.fx_backend import fx_dump_backend
from tests.shared_directory import made_once

from .torchair.models import run_program
from .torchair.tree import graphs

Graphs = list[dict[str, bytes]]


@pytest.fixture(scope="session")
def eager_graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Graphs]:
    """What the backend dumps of the graphs of a program when it runs them eagerly, by the program's name."""

    def of(program: str) -> Graphs:
        def make(directory: Path) -> Graphs:
            run_program(program, fx_dump_backend(directory))
            return graphs(directory)

        return made_once(tmp_path_factory, f"eager-{program}", make)

    return of
