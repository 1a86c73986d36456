"""The markers `acc_op` and `acc_threshold`: their usage, those of generated tests, the users' own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .judging.threshold import JudgeContext, ThresholdRule
    from .mapping.pair import Pair
    from .opcheck.case import Case

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
    """The rules of the `acc_threshold` markers on a test, closest first, as `in_precedence` wants them.

    `ignored` is the marker a generated test got from the config files, whose rules count already.
    Raises `SettingsError` for a wrong marker.
    """
    marks = [mark for mark in item.iter_markers("acc_threshold") if mark is not ignored]
    if not marks:
        return []
    from .judging.rules import rule_from_marker

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
    from .judging.rules import rule_from_hook

    return [rule_from_hook(answer, custom, hook)]
