"""`AccRun`: all that a run of pytest has of ours, the same in the controller and in its workers."""

from __future__ import annotations

import functools
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ..base.reason import rendered
from ..options.marks import hook_rules, marker_rules
from ..reporting.failure_text import failure_text_of_all, terminal_lines
from ..reporting.junit import properties
from ..reporting.row import Row
from ..reporting.texts import REASON, printable, terminal_width
from ..tensors.address import caches_in_use, use_caches
from .host import want_properties

if TYPE_CHECKING:
    from ..gate.gate import Gate
    from ..judging.judges import Judge
    from ..judging.standards import Standard
    from ..judging.threshold import ThresholdRule
    from ..mapping.pair import Pair
    from ..reference.case import Case
    from ..settings import Settings
    from .mode import Mode


CHANNEL = "acc_pytest"
"""Key of our bytes in xdist's `workerinput`."""


@dataclass
class AccRun:
    """The modes of a run (none where only people's own tests run), and what may change a verdict afterwards.

    `settings` is `None` where no option is about the run. `caches` are those in use in the controller.
    """

    modes: tuple[Mode, ...]
    settings: Settings | None
    gates: tuple[Gate, ...] = ()
    caches: tuple[str, ...] = ()

    @functools.cached_property
    def judges(self) -> Judges:
        """The judges of tests that no mode has made: `acc_compare` and its like."""
        if self.modes:
            return self.modes[0].judges
        from ..settings import Settings

        return Judges.of(self.settings or Settings.from_values({}))

    @functools.cached_property
    def packed(self) -> bytes:
        """The run as bytes for a worker."""
        sent = AccRun(self.modes, self.settings, self.gates, caches_in_use())
        return zlib.compress(pickle.dumps(sent), 1)


RUN = pytest.StashKey[AccRun]()
"""In `config.stash`."""


def received(config: pytest.Config) -> AccRun:
    """In a worker: the run that the controller has packed."""
    # Our own bytes from our own controller, never a file.
    run: AccRun = pickle.loads(zlib.decompress(config.workerinput[CHANNEL]))  # type: ignore[attr-defined]  # noqa: S301
    use_caches(run.caches)
    return run


def gated(config: pytest.Config, row: Row) -> Row:
    """The row as baseline, known differences and lock leave it."""
    for gate in config.stash[RUN].gates:
        row = gate.apply(row)
    return row


# `Judges`: by which rules a test is judged, those of its markers and of hooks among them.


@dataclass(frozen=True)
class Judges:
    """Makes the judge of each test of a run. `custom` are the user's metrics, which stored rows have."""

    settings: Settings
    custom: tuple[Any, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> Judges:
        """With the user's metrics imported in this process. Raises `SettingsError`."""
        if not settings.metrics:
            return cls(settings)
        from ..metrics.kernel import load_customs

        return cls(settings, load_customs(settings.metrics))

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
        from ..judging.judges import Judge

        return Judge(rules, self.custom, self.standard)

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
        # `iter_markers` gives the closest to the test first.
        markers = reversed(marker_rules(item, self._names, ignored))
        return (*self.settings.rules, *markers, *stronger)

    def levelled(self, row: Row, make_judge: Callable[[], Judge]) -> Row:
        """The row with its thresholds apart from its data, where a baseline is in use."""
        if not self.settings.baseline or not row.checks or row.fed:
            return row
        from ..gate.baseline import with_nominal_bounds

        judge = make_judge()
        return with_nominal_bounds(row, judge.rules, judge.standard)


# Record, then assert: a row is on its way to the reports before its test is allowed to fail.
#
# Where the tests run in the process that writes the reports, rows go there at once. An xdist worker
# sends them inside the report of the test's call (`worker_reports`).


SINK = pytest.StashKey[Callable[[Row], None]]()
"""In `config.stash`: what takes the rows of this process."""

ROWS = pytest.StashKey[int]()
"""In `item.stash`: how many rows the test has as properties."""

BESIDE = len("E       ")
"""The columns that pytest puts before each line of an assertion of people's own tests."""

LAST = "acc_last"
"""Attribute of the report of a call: true where no other is made of the test, whose teardown has passed."""


class ComparisonFailed(AssertionError):
    """A comparison that makes its test fail; `text` is the failure text, the message the same wrapped."""

    # As pytest does with its own: the short summary of people's tests has no room for the path of a module.
    __module__ = "builtins"

    def __init__(self, text: str) -> None:
        width = terminal_width() - BESIDE
        super().__init__("\n".join(row for line in text.split("\n") for row in terminal_lines(line, width)))
        self.text = text


class InheritedFailure(pytest.PytestWarning):
    """A pair that fails because what it computes from does, under `acc_inherited = warn`."""


def record(item: pytest.Item, rows: Sequence[Row], *, warns: bool = False) -> None:
    """Hand the rows of a test to the reports and put them into its JUnit properties, then pass, fail or skip.

    With `warns` an inherited failure is a warning, and the test passes; else `_end` says how it ends.
    """
    __tracebackhide__ = True
    for row in rows:
        settings = item.config.stash[RUN].settings
        if (settings is None or settings.junit_properties == "all") and want_properties(item.config):
            earlier = item.stash.get(ROWS, 0)
            item.stash[ROWS] = earlier + 1
            item.user_properties.extend(properties(row, f"{earlier + 1}." if earlier else ""))
        item.config.stash[SINK](row)
    warned = [row for row in rows if warns and row.verdict == "inherited" and not row.strict]
    for row in warned:
        item.warn(InheritedFailure(printable(row.excuse, REASON)))
    if rows and not warned:
        _end(rows)


def _end(rows: Sequence[Row]) -> None:
    """Pass, fail or skip the test of these rows.

    Raises `ComparisonFailed` when a verdict fails the test; a failure that is inherited or known is an
    expected one (xfail). Skips the test when nothing could be judged and no row fails.
    """
    __tracebackhide__ = True
    red = [row for row in rows if row.red]
    excused = [row for row in rows if row.excused]
    if excused and not red:
        pytest.xfail(rendered(printable(excused[0].excuse, REASON)))
    # With --runxfail pytest.xfail does nothing, and what was excused fails after all.
    if failing := red or excused:
        raise ComparisonFailed(failure_text_of_all(failing))
    if all(row.skipped for row in rows):
        pytest.skip(rendered(printable(rows[0].sentence, REASON)))
