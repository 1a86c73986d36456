"""Hooks that acc_pytest offers to conftest files and other plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .mapping.pair import Pair
    from .opcheck.case import Case


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


@pytest.hookspec(firstresult=True)
def pytest_acc_case_thresholds(case: Case, config: pytest.Config) -> Mapping[str, object] | None:
    """Bounds for one operator of `--acc-opcheck`, `acc_opcheck` or `acc_operator(...).check`.

    Called in the process that judges the case, when its files have been found and before they are
    opened. `case.name` is ATB's class name, `case.full_name` that with the ids of its path, `case.param` its
    parameters. What is returned is as for `pytest_acc_thresholds`: bounds on metrics count beside those of
    the standard, `factor` stretches the standard's own.

    Example, in `conftest.py`::

        def pytest_acc_case_thresholds(case, config):
            if case.name == "SelfAttentionOperation" and case.param.get("kernelType") == 1:
                return {"factor": 0.5, "reason": "the high precision kernel"}
    """
