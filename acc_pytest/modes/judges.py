"""`Judges`: by which rules a test is judged, those of its markers and of hooks among them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ..marks import hook_rules, marker_rules

if TYPE_CHECKING:
    from ..judging.judges import Judge
    from ..judging.standards import Standard
    from ..judging.threshold import ThresholdRule
    from ..mapping.pair import Pair
    from ..opcheck.case import Case
    from ..reporting.row import Row
    from ..settings import Settings


@dataclass(frozen=True)
class Judges:
    """Makes the judge of each test of a run. `measures`: metrics are computed, not read from stored rows."""

    settings: Settings
    measures: bool = True

    @functools.cached_property
    def custom(self) -> tuple[Any, ...]:
        """The user's metrics, imported in this process. Raises `SettingsError`."""
        if not self.settings.metrics or not self.measures:
            return ()
        from ..metrics.custom import load_customs

        return load_customs(self.settings.metrics)

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        """The names of the user's metrics, which rules may bound."""
        return self.settings.custom_metrics

    @functools.cached_property
    def standard(self) -> Standard:
        """By which standard pairs are judged."""
        from ..judging.standards import STANDARDS

        return STANDARDS[self.settings.standard]

    def judge(
        self,
        item: pytest.Item,
        pair: Pair | None = None,
        *,
        ignored: pytest.Mark | None = None,
        arguments: Mapping[str, float | None] | None = None,
    ) -> Judge:
        """The judge of one test (`rules_of_pair`)."""
        return self.judge_by(self.rules_of_pair(item, pair, ignored=ignored, arguments=arguments))

    def judge_by(self, rules: tuple[ThresholdRule, ...]) -> Judge:
        """The judge with these rules, weakest first."""
        return self._judge(rules, self.custom, self.standard)

    def rules_of_pair(
        self,
        item: pytest.Item,
        pair: Pair | None,
        *,
        ignored: pytest.Mark | None = None,
        arguments: Mapping[str, float | None] | None = None,
    ) -> tuple[ThresholdRule, ...]:
        """The rules of one test, weakest first: config files, markers, the hook, arguments of a call.

        `ignored` is the marker that stands for the config files. Raises `SettingsError` for a marker,
        an answer of the hook or an argument that is wrong.
        """
        stronger = [] if pair is None else hook_rules(item, "pytest_acc_thresholds", self._names, pair=pair)
        if arguments:
            from ..judging.rules import rule_from_table

            stronger.append(rule_from_table(arguments, "arguments of the call", self._names))
        return self._rules(item, ignored, stronger)

    def rules_of_case(
        self, item: pytest.Item, ignored: pytest.Mark | None, case: Case
    ) -> tuple[ThresholdRule, ...]:
        """The rules for the case of a single operator, in the same order. Raises `SettingsError`."""
        answered = hook_rules(item, "pytest_acc_case_thresholds", self._names, case=case)
        return self._rules(item, ignored, answered)

    def _rules(
        self, item: pytest.Item, ignored: pytest.Mark | None, stronger: list[ThresholdRule]
    ) -> tuple[ThresholdRule, ...]:
        return self._in_precedence(self.settings.rules, marker_rules(item, self._names, ignored), stronger)

    @functools.cached_property
    def _judge(self) -> type[Judge]:
        from ..judging.judges import Judge

        return Judge

    @functools.cached_property
    def _in_precedence(self) -> Callable[..., tuple[ThresholdRule, ...]]:
        from ..judging.rules import in_precedence

        return in_precedence

    def levelled(self, row: Row, make_judge: Callable[[], Judge]) -> Row:
        """The row with its thresholds apart from its data, where a lock is in use."""
        if not self.settings.lock or not row.checks or row.fed:
            return row
        from ..gate.lock import with_nominal_bounds

        judge = make_judge()
        return with_nominal_bounds(row, judge.rules, judge.standard)
