"""Hooks that acc_pytest offers to conftest files and other plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .mapping.pair import Pair


@pytest.hookspec(firstresult=True)
def pytest_acc_thresholds(pair: Pair, config: pytest.Config) -> Mapping[str, object] | None:
    """Thresholds for one pair, where options, config files and markers are not enough.

    Called in the process that judges the pair, just before it does. Return a mapping with the same
    keys as the marker `acc_threshold` (for example `{"cosine_similarity": 0.99}`), or `None` to
    leave the pair to the other rules. The first answer that is not `None` is taken. What it sets wins
    over `acc_threshold` markers, and these win over the config files.

    Example, in `conftest.py`::

        def pytest_acc_thresholds(pair, config):
            if pair.mine.op_type == "SelfAttentionOperation":
                return {"cosine_similarity": 0.995}
    """
