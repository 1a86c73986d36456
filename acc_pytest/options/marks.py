"""The markers `acc_op` and `acc_threshold`: their usage, those of generated tests, the users' own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..judging.threshold import JudgeContext, ThresholdRule
    from ..mapping.pair import Pair
    from ..reference.case import Case


USAGE = (
    "acc_op(type, level, layer, step, policy): what a generated test compares; select with "
    "-m \"acc_op(type='LinearOperation')\".",
    "acc_unmapped(side, type, step, why): a node that found no partner; why is alone, refused, ambiguous or "
    "incomplete.",
    "acc_threshold(metric=bound, ..., factor=1.0, reason=''): bounds for the comparisons of this test, "
    "e.g. acc_threshold(cosine_similarity=0.999, kl_divergence=None); None or False switches one off.",
)


REPEATERS = ("rerunfailures", "pytest-retry")
"""Plugins that run a failing test again, and that the marker `flaky` stops; by the names they register."""


def once(config: pytest.Config) -> tuple[pytest.Mark, ...]:
    """The markers that keep a generated test from being run again: the same tensors give the same result."""
    if not any(map(config.pluginmanager.hasplugin, REPEATERS)):
        return ()
    return (_once(),)


@functools.cache
def _once() -> pytest.Mark:
    return pytest.mark.flaky(reruns=0, condition=False).mark


@functools.cache
def op_mark(op_type: str, level: str, layer: str, step: int | str, policy: str) -> pytest.Mark:
    """The `acc_op` marker. Pairs of one kind share one object: there may be 100,000 of them."""
    return pytest.mark.acc_op(type=op_type, level=level, layer=layer, step=step, policy=policy).mark


@functools.cache
def unmapped_mark(side: str, op_type: str, step: int | str, why: str) -> pytest.Mark:
    """The `acc_unmapped` marker, shared as `op_mark` is."""
    return pytest.mark.acc_unmapped(side=side, type=op_type, step=step, why=why).mark


def threshold_mark(rules: tuple[ThresholdRule, ...], context: JudgeContext) -> pytest.Mark | None:
    """The thresholds of config files for a pair or an operator, as a marker that hooks and plugins can read.

    Rules for certain dtypes are left out: dtypes are in the tensors, which collection does not open.
    """
    bounds: dict[str, float | None] = {}
    for rule in rules:
        if rule.match.dtype or not rule.match.holds(context, ()):
            continue
        bounds.update((bound.metric, bound.value) for bound in rule.bounds)
        if rule.factor is not None:
            bounds["factor"] = rule.factor
    return _threshold_mark(tuple(bounds.items())) if bounds else None


@functools.cache
def _threshold_mark(bounds: tuple[tuple[str, float | None], ...]) -> pytest.Mark:
    return pytest.mark.acc_threshold(**dict(bounds)).mark


def marker_rules(
    item: pytest.Item, custom: tuple[str, ...], ignored: pytest.Mark | None = None
) -> list[ThresholdRule]:
    """The rules of the `acc_threshold` markers on a test, closest first.

    `ignored` is the marker a generated test got from the config files, whose rules count already.
    Raises `SettingsError` for a wrong marker.
    """
    marks = [mark for mark in item.iter_markers("acc_threshold") if mark is not ignored]
    if not marks:
        return []
    from ..judging.rules import rule_from_marker

    return [rule_from_marker(mark.kwargs, item.nodeid, custom) for mark in marks]


def hook_rules(
    item: pytest.Item, hook: str, custom: tuple[str, ...], **judged: Pair | Case
) -> list[ThresholdRule]:
    """The rule of a hook of ours for the pair or the case `judged`, if a conftest file has one.

    Raises `SettingsError` for a wrong answer.
    """
    if not getattr(item.config.hook, hook).get_hookimpls():
        return []
    answer: Any = getattr(item.ihook, hook)(config=item.config, **judged)
    if answer is None:
        return []
    from ..judging.rules import rule_from_hook

    return [rule_from_hook(answer, custom, hook)]


# Hooks that acc_pytest offers to conftest files and other plugins.


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
