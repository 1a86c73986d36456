"""The lock as a run ends: loosened thresholds fail it; with a reason they are written into the lock."""

from __future__ import annotations

import datetime
import getpass

from ..reporting.row import Row
from ..reporting.view import Result
from .lock import Bounds, Change, Lock, Loosened, loosened, nominal_bounds_in, tightened
from .lock_file import write_lock
from .plan_view import KeptFileView
from .row_key import key_of

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
