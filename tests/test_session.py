"""Making the plan of a session, from settings alone."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from acc_pytest.errors import AccError
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings


def test_a_plan_that_cannot_be_made_leaves_the_garbage_collector_as_it_was(tmp_path: Path) -> None:
    assert gc.isenabled()
    with pytest.raises(AccError):
        make_plan(Settings(golden=str(tmp_path / "no"), mine=str(tmp_path / "where")))
    assert gc.isenabled()
