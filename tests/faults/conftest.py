"""One small pair of dumps for all sessions."""

from __future__ import annotations

import pytest

from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which no sentence is wrapped."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """One layer, one step, no mistake."""
    return make_demo(tmp_path_factory.mktemp("dumps"), DemoSpec(layers=1, decode_steps=0))
