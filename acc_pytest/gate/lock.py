"""The threshold lock: what every comparison was allowed when somebody last agreed to it.

A threshold that allows a larger error than in the lock, that is off, or that is gone is loosened; the run
fails until the lock is updated with a reason. Bounds are nominal: they do not depend on the data.
"""

from __future__ import annotations

import datetime
import getpass
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import FormatError
from ..judging.replay import NominalBound, nominal_bounds
from ..judging.standards import DEFAULT, Standard
from ..judging.threshold import ThresholdRule
from ..reporting.row import Row
from ..reporting.view import Result
from ..tensors.json_file import read_json, texts_of, write_json
from .baseline import PREFIX
from .gate import Gate, KeptFileView, key_of

RESOLUTION = 1e-9
"""Relative difference of two bounds that floating point makes."""

FROM_TABLES = ("ascend", "msit", "open")
"""Standards of single operators whose bounds depend on operator and dtype, not on a second run."""

Bounds = Mapping[str, NominalBound]


@dataclass(frozen=True, slots=True)
class Change:
    """The reason for which the lock was updated, when, and by whom."""

    date: str
    user: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lock:
    """The bounds by key (`row_key.key_of`) and metric, and the changes that led to them, oldest first."""

    path: str
    history: tuple[Change, ...]
    tests: Mapping[str, Bounds]


@dataclass(frozen=True, slots=True)
class Loosened:
    """A threshold that allows more than before: `times` the error, infinite where it was bounded and is not.

    `now` is `None` where the metric is not bounded any more.
    """

    key: str
    metric: str
    before: NominalBound
    now: NominalBound | None
    times: float

    def __str__(self) -> str:
        now = "not bounded" if self.now is None else str(self.now)
        return f"{self.key}: {self.metric} {self.before} -> {now}"


def loosened(key: str, before: Bounds, now: Bounds) -> list[Loosened]:
    """The thresholds of one comparison that allow more than before."""
    changes = []
    for metric, old in before.items():
        new = now.get(metric)
        times = float("inf") if new is None else new.looser_than(old)
        if new is None and old == replace(old, bound=float("inf")):
            continue
        if times > 1 + RESOLUTION:
            changes.append(Loosened(key, metric, old, new, times))
    return changes


def tightened(before: Bounds, now: Bounds) -> int:
    """The number of thresholds of one comparison that allow less than before, or are new."""
    return sum(
        metric not in before or new.looser_than(before[metric]) < 1 - RESOLUTION
        for metric, new in now.items()
    )


def with_nominal_bounds(row: Row, rules: Sequence[ThresholdRule], standard: Standard = DEFAULT) -> Row:
    """The row with the nominal bounds that it was judged by; without any where it was not judged."""
    bounds = nominal_bounds(row.context, row.statistics, rules, standard) if row.statistics else {}
    return replace(row, levels=bounds) if bounds else row


class OperatorBounds(Gate):
    """Gives rows of single operators their nominal bounds, where the standard takes them from tables."""

    def apply(self, row: Row) -> Row:
        """The row with its nominal bounds; other rows as they are."""
        standard = row.case.get("standard")
        if standard not in FROM_TABLES:
            return row
        bounds = {
            check.metric: str(NominalBound(check.allowed, check.at_least, str(standard)))
            for check in row.checks
            if not check.metric.startswith(PREFIX)
        }
        return replace(row, levels=bounds) if bounds else row


def nominal_bounds_in(row: Row) -> Bounds:
    """The nominal bounds of a row; none where they cannot be read, as in a file of rows that was edited."""
    try:
        return {metric: NominalBound.parse(str(text)) for metric, text in row.levels.items()}
    except ValueError:
        return {}


# The lock as a file: a line for each comparison, which names its thresholds by a hash of them.
#
# Comparisons of one kind share their thresholds, so that 30,000 of them take two or three megabytes.


FORMAT = "acc-pytest lock"
VERSION = 1
LENGTH = 12
"""Hexadecimal digits of a hash: a collision among a million kinds has a chance of 0.002."""


def read_lock(path: str) -> Lock:
    """The lock in a file. Raises `FormatError` naming the file and what is wrong, else `AccError`."""
    content = read_json(path, FORMAT, VERSION)
    bounds = content.get("bounds")
    if type(bounds) is not dict:
        raise FormatError(f"{path}: bounds must be an object, got {bounds!r:.100}")
    kinds = {name: _bounds(path, name, texts) for name, texts in bounds.items()}
    tests = texts_of(path, content.get("tests"), "tests")
    for key, kind in tests.items():
        if kind not in kinds:
            raise FormatError(
                f"{path}: {key!r:.200} refers to bounds {kind!r:.100}, which the file does not have"
            )
    return Lock(
        path, _history(path, content.get("history")), {key: kinds[kind] for key, kind in tests.items()}
    )


def write_lock(path: str, history: tuple[Change, ...], tests: Mapping[str, Bounds]) -> None:
    """Write a lock, atomically. Raises `AccError` where the system refuses."""
    names: dict[str, str] = {}
    bounds: dict[str, dict[str, str]] = {}
    for key, bounds_of_test in tests.items():
        texts = {metric: str(bound) for metric, bound in sorted(bounds_of_test.items())}
        names[key] = name = _hash(texts)
        bounds[name] = texts
    changes = [{"date": change.date, "user": change.user, "reason": change.reason} for change in history]
    head = {"format": FORMAT, "version": VERSION, "history": changes, "bounds": dict(sorted(bounds.items()))}
    write_json(path, head, "tests", names.items())


def _hash(texts: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:LENGTH]


def _bounds(path: str, name: str, value: object) -> Bounds:
    texts = texts_of(path, value, f"bounds.{name:.100}")
    if _hash(texts) != name:
        raise FormatError(
            f"{path}: bounds {name:.100} were edited; change thresholds where they are set and "
            "update the lock with --acc-update-lock REASON"
        )
    try:
        return {metric: NominalBound.parse(text) for metric, text in texts.items()}
    except ValueError as error:
        raise FormatError(f"{path}: bounds {name:.100}: {error}") from None


def _history(path: str, value: Any) -> tuple[Change, ...]:
    if type(value) is not list:
        raise FormatError(f"{path}: history must be a list, got {value!r:.100}")
    changes = []
    for entry in value:
        texts = texts_of(path, entry, "an entry of history")
        if texts.keys() != {"date", "user", "reason"}:
            raise FormatError(
                f"{path}: an entry of history must have date, user and reason, got {sorted(texts)}"
            )
        changes.append(Change(**texts))
    return tuple(changes)


# The lock as a run ends: loosened thresholds fail it; with a reason they are written into the lock.


SHOWN = 5


class LockView(KeptFileView[Bounds]):
    """Compares the thresholds of a run with `lock` (`None`: there is no file yet).

    With a `reason` the thresholds of this run are written to `path` at the end.
    """

    def __init__(self, path: str, lock: Lock | None, reason: str) -> None:
        super().__init__(path, "--acc-lock", lock.tests if lock is not None else {}, update=bool(reason))
        self._history = lock.history if lock is not None else ()
        self._reason = reason
        self._loosened: list[Loosened] = []
        self._tightened = self._bounds = 0

    def add(self, row: Row) -> None:
        """Hold the thresholds of a row against those of the lock."""
        super().add(row)
        bounds = nominal_bounds_in(row)
        if not bounds:
            return
        key = key_of(row)
        self._now[key] = bounds
        self._bounds += len(bounds)
        if key in self._before:
            self._loosened += loosened(key, self._before[key], bounds)
            self._tightened += tightened(self._before[key], bounds)

    def lines(self) -> list[str]:
        """The lines of the summary on the lock."""
        new = sum(key not in self._before for key in self._now)
        lines = [f"lock: {self._bounds} thresholds of {len(self._now)} comparisons held against {self._path}"]
        if self._tightened:
            lines.append(f"lock: {self._tightened} thresholds are tighter than locked")
        if new and not self._reason:
            lines.append(f"lock: {new} comparisons are not in it: --acc-update-lock REASON adds them")
        if stale := self._stale():
            lines.append(f"lock: {len(stale)} comparisons in it met no test ({stale[0]}, ...)")
        if self._reason:
            what = f"updated, {new} new, {len(self._loosened)} thresholds loosened: {self._reason}"
            stopped = "NOT updated, for the run did not come to its end or judged nothing"
            lines.append(f"lock: {what if self._writes else stopped}")
            lines += [f"lock: loosened {change}" for change in self._worst()]
        return lines

    def problems(self) -> list[str]:
        """The worst loosened thresholds, and what to do about it."""
        if self._reason or not self._loosened:
            return []
        tests = len({change.key for change in self._loosened})
        return [
            f"lock: {len(self._loosened)} thresholds of {tests} comparisons are looser than in {self._path}; "
            "put them back, or agree with --acc-update-lock REASON",
            *(f"lock: loosened {change}" for change in self._worst()),
        ]

    def finish(self, result: Result) -> None:
        """Write the lock, if it is to be updated. Raises `AccError` where the system refuses."""
        if not self._writes:
            return
        day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        change = Change(day, _user(), self._reason)
        write_lock(self._path, (*self._history, change), {**self._without_stale(), **self._now})

    def _worst(self) -> list[Loosened]:
        """The most loosened threshold of each kind of change: one rule may loosen thousands."""
        kinds: dict[tuple[str, str, str], Loosened] = {}
        for change in sorted(self._loosened, key=lambda change: (-change.times, change.metric, change.key)):
            rule = change.now.rule if change.now is not None else ""
            kinds.setdefault((change.metric, change.before.rule, rule), change)
        return list(kinds.values())[:SHOWN]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
