"""The lock as a run ends: loosened thresholds fail it; with a reason they are written into the lock."""

from __future__ import annotations

import datetime
import getpass
import math

from ..outputs import file_target
from ..reporting.row import Row
from ..reporting.view import Result, Run, View
from .extent import Extent
from .lock import Change, Levels, Lock, Loosened, levels_in, loosened, tightened
from .lock_file import write_lock
from .place import key_of, root_of

SHOWN = 5


class LockView(View):
    """Compares the thresholds of a run with `lock` (`None`: there is no file yet).

    With a `reason` the thresholds of this run are written to `path` at the end.
    """

    def __init__(self, path: str, lock: Lock | None, reason: str) -> None:
        self._path = path
        self._before = lock.tests if lock is not None else {}
        self._history = lock.history if lock is not None else ()
        self._reason = reason
        self._now: dict[str, Levels] = {}
        self._loosened: list[Loosened] = []
        self._tightened = self._bounds = 0
        self._extent = Extent(Run())
        self._complete = False

    @property
    def files(self) -> list[str]:
        """The file, where it is written."""
        return [self._path] if self._writes else []

    @property
    def place(self) -> str:
        """The file."""
        return self._path

    def begin(self, run: Run) -> None:
        """Note what there is to run. Raises `SettingsError` for a lock that cannot be updated."""
        if self._reason:
            file_target(self._path, "--acc-lock")
        self._extent = Extent(run)

    def add(self, row: Row) -> None:
        """Hold the thresholds of a row against those of the lock."""
        self._extent.add(row)
        levels = levels_in(row)
        if not levels:
            return
        key = key_of(row)
        self._now[key] = levels
        self._bounds += len(levels)
        if key in self._before:
            self._loosened += loosened(key, self._before[key], levels)
            self._tightened += tightened(self._before[key], levels)

    def end(self, complete: bool) -> None:
        """Whether what was asked for has run to its end."""
        self._complete = complete

    def lines(self) -> list[str]:
        """What the summary says of the lock."""
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
            lines += [f"lock: loosened {one}" for one in self._worst()]
        return lines

    def problems(self) -> list[str]:
        """The worst loosened thresholds, and what to do about it."""
        if self._reason or not self._loosened:
            return []
        tests = len({one.key for one in self._loosened})
        return [
            f"lock: {len(self._loosened)} thresholds of {tests} comparisons are looser than in {self._path}; "
            "put them back, or agree with --acc-update-lock REASON",
            *(f"lock: loosened {one}" for one in self._worst()),
        ]

    def finish(self, result: Result) -> None:
        """Write the lock, if it is to be updated. Raises `AccError` where the system refuses."""
        if not self._writes:
            return
        stale = set(self._stale())
        kept = {key: levels for key, levels in self._before.items() if key not in stale}
        day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        change = Change(day, _user(), self._reason)
        write_lock(self._path, (*self._history, change), {**kept, **self._now})

    @property
    def _writes(self) -> bool:
        return bool(self._reason) and self._complete and bool(self._now)

    def _worst(self) -> list[Loosened]:
        """The most loosened threshold of each kind of change, for one rule may loosen thousands."""
        kinds: dict[tuple[str, str, str], Loosened] = {}
        for one in sorted(self._loosened, key=lambda one: (-one.times, one.key, one.metric)):
            rule = one.now.rule if one.now is not None else ""
            kinds.setdefault((one.metric, one.before.rule, rule), one)
        found = sorted(kinds.values(), key=lambda one: (not math.isinf(one.times), -one.times, one.metric))
        return found[:SHOWN]

    def _stale(self) -> list[str]:
        """Entries of this plan that no test met, where all of the plan has run."""
        if not self._extent.whole or not self._complete:
            return []
        return [key for key in self._before if root_of(key) == self._extent.root and key not in self._now]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
