"""The baseline as a run ends: what is stale, new, better than recorded; and the file, where it is updated."""

from __future__ import annotations

import datetime
import glob
import json
import math
from collections.abc import Iterator, Mapping

from ..metrics.catalogue import METRICS
from ..reporting.row import Row
from ..reporting.view import Result, Run
from ..reporting.wrapping import TO_PASTE
from .baseline import Accepted, Baseline, comparable, error_of, improved
from .baseline_file import write_baseline
from .known import measured
from .plan_view import KeptFileView
from .row_key import key_of

NEW, ALL = "new", "all"
SHOWN = 3
_TELLING = ("machine", "torch", "torch-npu", "numpy", "acc-pytest")
"""Parts of the environment that may move an error."""


class BaselineView(KeptFileView[Accepted]):
    """Compares the errors of a run with `baseline`, the accepted ones (`None`: there is no file yet).

    `update` says what is written to `path` at the end: `new` pairs only, `all`, or nothing (empty).
    """

    def __init__(self, path: str, baseline: Baseline | None, update: str) -> None:
        before = baseline.pairs if baseline is not None else {}
        super().__init__(path, "--acc-baseline", before, update=bool(update))
        self._origin: Mapping[str, str] = baseline.origin if baseline is not None else {}
        self._update = update
        self._without_error = 0
        self._red = 0
        self._first_red: Row | None = None
        self._environment: Mapping[str, str] = {}

    def begin(self, run: Run) -> None:
        """Note the machine and the plan. Raises `SettingsError` for a file that cannot be updated."""
        super().begin(run)
        self._environment = run.environment

    def add(self, row: Row) -> None:
        """Note the error of a row; of two rows at one place the larger."""
        super().add(row)
        if row.alone or row.verdict == "incomparable" or row.fed:
            return
        accepted = error_of(row)
        if accepted is None:
            self._without_error += 1
            return
        if row.verdict == "fail":
            self._red += 1
            if self._first_red is None or (row.number or 0) < (self._first_red.number or 0):
                self._first_red = row
        earlier = self._now.get(key_of(row))
        if earlier is None or earlier.error < accepted.error:
            self._now[key_of(row)] = accepted

    def lines(self) -> list[str]:
        """The lines of the summary on the baseline."""
        new = [key for key in self._now if key not in self._before]
        common = {key: self._before[key] for key in self._now if key in self._before}
        better = [key for key, before in common.items() if improved(before, self._now[key])]
        if self._update:
            after = [self._update_line(new, better), *self._red_lines()]
        else:
            after = list(_how_to_accept(new, better))
        return [*self._use_lines(common), *after]

    def finish(self, result: Result) -> None:
        """Write the file, if it is to be updated. Raises `AccError` where the system refuses."""
        if self._writes:
            write_baseline(self._path, self._origin_now(), self._updated())

    def _use_lines(self, common: Mapping[str, Accepted]) -> Iterator[str]:
        """Lines on errors compared with those of the file, of which `common` are in both, and on others."""
        incomparable = [key for key, before in common.items() if not comparable(before, self._now[key])]
        if self._before:
            compared = len(common) - len(incomparable)
            yield f"baseline: {compared} comparisons held against the errors of {self._path}"
            if differing := self._differing():
                yield f"baseline: it was made with {differing}"
        if self._without_error:
            yield f"baseline: {self._without_error} comparisons have no relative error (statistics only)"
        if incomparable:
            yield f"baseline: {_some(incomparable)} of another dtype than accepted: not compared"
        if stale := self._stale():
            yield f"baseline: {_some(stale)} in it met no test: stale, --acc-update-baseline=all drops them"

    def _update_line(self, new: list[str], better: list[str]) -> str:
        if not self._writes:
            return "baseline: NOT updated, for the run did not come to its end or compared nothing"
        changed = f"{len(new)} new"
        if self._update == ALL:
            changed += f", {len(self._now) - len(new)} recorded anew ({len(better)} clearly better)"
        return f"baseline: updated, {changed}"

    def _red_lines(self) -> Iterator[str]:
        """Lines that a baseline makes nothing green that is beyond its thresholds, and what does."""
        if not self._writes or self._first_red is None:
            return
        which = f"{self._red} pairs stay red: they exceed their"
        if self._red == 1:
            which = "1 pair stays red: it exceeds its"
        yield (
            f"baseline: {which} thresholds, which a baseline does not change. What is right all the same is "
            f"accepted by an entry in a file of --acc-config; for {self._first_red.name}:"
        )
        yield from (f"{TO_PASTE}{line}" for line in entry_of(self._first_red, _today()))

    def _updated(self) -> dict[str, Accepted]:
        if self._update == NEW:
            return {**self._now, **self._before}
        return {**self._without_stale(), **self._now}

    def _differing(self) -> str:
        """The parts of machine and versions that the baseline was made with and that are others now."""
        return ", ".join(
            f"{name} {self._origin[name]} (now {self._environment.get(name, 'none')})"
            for name in _TELLING
            if name in self._origin and self._origin[name] != self._environment.get(name)
        )

    def _origin_now(self) -> dict[str, str]:
        """With `new` entries beside old ones the head stays that of the old ones."""
        if self._update == NEW and self._before:
            return dict(self._origin)
        return {"date": _today().isoformat(), **self._environment}


def _how_to_accept(new: list[str], better: list[str]) -> Iterator[str]:
    """Which updates of the file would take in what it does not have yet."""
    if new:
        yield f"baseline: {_some(new)} not in it: add with --acc-update-baseline=new"
    if better:
        yield f"baseline: {_some(better)} clearly better than accepted: tighten with =all"


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.timezone.utc).date()


def _some(keys: list[str]) -> str:
    """`12 entries (a, b, c, ...)`."""
    named = ", ".join(sorted(keys)[:SHOWN]) + (", ..." if len(keys) > SHOWN else "")
    return f"{len(keys)} {'entry' if len(keys) == 1 else 'entries'} ({named})"


DAYS = 90
"""How long the entry that is offered holds: a quarter."""
ROOM = 1.05
"""How much more than the measured error the entry accepts: it is written with two digits."""


def entry_of(row: Row, today: datetime.date) -> Iterator[str]:
    """The lines; whoever pastes them says why the difference is right, and whose it is."""
    yield "[[known]]"
    for key, value in _matched(row).items():
        yield f"match.{key} = {_toml(value)}"
    yield 'reason = "WHY IT IS RIGHT"'
    yield 'owner = "WHOSE IT IS"'
    yield f"expires = {today + datetime.timedelta(days=DAYS)}"
    failing = (check.metric for check in row.checks if not check.passed and not check.at_least)
    for metric in ("relative_euclidean_distance", *(metric for metric in failing if metric in METRICS)):
        error = measured(row, metric)
        if error is not None and math.isfinite(error):
            yield f"at_most.{metric} = {_bound(error)}"
            return


def _matched(row: Row) -> dict[str, str | int]:
    """The fields that tell the row from others: its operator, layer and step."""
    side = row.mine if row.mine.node else row.golden
    match: dict[str, str | int] = {"name": glob.escape(side.name or side.node or row.name)}
    if row.layer:
        match["layer"] = glob.escape(row.layer)
    if isinstance(row.step, (int, str)) and row.step != "":
        match["step"] = row.step
    return match


def _toml(value: str | int) -> str:
    """A value of TOML. Its basic strings are those of JSON, without lone surrogates."""
    if isinstance(value, int):
        return str(value)
    return json.dumps(value.encode("utf-8", "replace").decode("utf-8")).replace("\x7f", "\\u007f")


def _bound(error: float) -> str:
    text = f"{error * ROOM:.2g}"
    return text if "e" in text else f"{error * ROOM:#.2g}".rstrip(".")
