"""The baseline: the errors of an accepted run, and whether those of this run are significantly worse.

The error of a comparison is `relative_euclidean_distance`, the relative L2 error e; of integers and booleans
it is the number of mismatches k. An accepted e0 allows, with n0 and n elements compared,

    e <= max(2, exp(3.72 * sqrt(1/(2 n0) + 1/(2 n)))) * e0 + u
    k <= max(2 * k0, (sqrt(k0) + 2.63)^2)

* The squared norm of an error of n elements scatters around its expectation with a relative variance of 2/n,
  the logarithm of the norm thus with a standard deviation of 1/sqrt(2n); golden is the same in both runs and
  cancels. 3.72 standard deviations of the difference of two such logarithms are exceeded once in 10,000
  comparisons (the normal quantile of `judging/tolerance.py`).
* 2: elements are no independent draws, and another driver or another order of sums moves errors by tens of
  percent. One bit more error is the smallest change that counts.
* u, the unit roundoff of the coarser dtype: storing the result again may add that much, whatever e0 was.
* Counts scatter like a Poisson variable. Its square root has a standard deviation of 1/2: the difference
  of two roots has 1/sqrt(2), and 3.72/sqrt(2) = 2.63.

The same bound with both runs exchanged says which errors have become significantly better.
"""

from __future__ import annotations

import datetime
import glob
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..base.reason import Reason
from ..base.vocabulary import number
from ..errors import AccError, FormatError
from ..judging.tolerance import SAMPLE_SIGMAS, coarser
from ..judging.verdict import Check
from ..metrics.measurement import METRICS
from ..reporting.row import Row
from ..reporting.texts import TO_PASTE
from ..reporting.view import Result, Run
from ..tensors.json_file import read_json, texts_of, write_json
from .gate import Gate, KeptFileView, dtypes_of, key_of
from .known import measured

LEAST_FACTOR = 2.0
RELATIVE, COUNT = "relative_euclidean_distance", "mismatches"
PREFIX = "baseline."
"""What the metric's name begins with in the check that a row gets."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The error of one comparison: the metric, its value, the number of elements, and both dtypes."""

    metric: str
    error: float
    elements: int
    dtypes: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The accepted errors by key (`row_key.key_of`); `origin` says when, where, with which versions.

    `path` is where it was read.
    """

    path: str
    origin: Mapping[str, str]
    pairs: Mapping[str, Accepted]


def error_of(row: Row) -> Accepted | None:
    """The error of a row; `None` for one that has none: incomparable, of statistics only, or of what the run
    was fed, where nothing but the same is accepted."""
    if row.fed:
        return None
    for metric in (COUNT, RELATIVE):
        value = row.counts.get(metric) if metric == COUNT else row.metrics.get(metric)
        if isinstance(value, (int, float)) and math.isfinite(value):
            compared = row.statistics.get("compared", row.counts.get("elements"))
            elements = compared if isinstance(compared, int) else 0
            return Accepted(metric, value, max(1, elements), dtypes_of(row))
    return None


def allowed(before: Accepted, now: Accepted) -> float:
    """The largest error of now that is no significant change of the error before."""
    if before.metric == COUNT:
        root = math.sqrt(before.error) + SAMPLE_SIGMAS / math.sqrt(2)
        return max(LEAST_FACTOR * before.error, root * root)
    return factor(before, now) * before.error + roundoff(now)


def factor(before: Accepted, now: Accepted) -> float:
    """The factor by which an error may grow by chance; at least 2."""
    scatter = math.sqrt(1 / (2 * before.elements) + 1 / (2 * now.elements))
    return max(LEAST_FACTOR, math.exp(SAMPLE_SIGMAS * scatter))


def roundoff(error: Accepted) -> float:
    """The unit roundoff of the coarser dtype; 0 for two that have none."""
    try:
        return coarser(*error.dtypes).roundoff
    except ValueError:
        return 0.0


def comparable(before: Accepted, now: Accepted) -> bool:
    """Whether the two are errors of the same kind: a change of dtype makes another comparison of it."""
    return (before.metric, before.dtypes) == (now.metric, now.dtypes)


def improved(before: Accepted, now: Accepted) -> bool:
    """Whether the error has become significantly smaller."""
    return comparable(before, now) and before.error > allowed(now, before)


def worse(before: Accepted, now: Accepted) -> bool:
    """Whether the error has become significantly larger."""
    return comparable(before, now) and now.error > allowed(before, now)


class BaselineGate(Gate):
    """Fails a pair whose error is significantly worse than the accepted one."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline

    def apply(self, row: Row) -> Row:
        """The row with a check against its accepted error, where there is one of the same kind."""
        before, now = self._baseline.pairs.get(key_of(row)), error_of(row)
        if before is None or now is None or row.verdict not in ("pass", "fail"):
            return row
        if not comparable(before, now):
            accepted = f"{before.metric} of {' and '.join(before.dtypes)}"
            return replace(
                row, notes=(*row.notes, Reason("baseline: not compared, the accepted error is {}", accepted))
            )
        bound = allowed(before, now)
        bad = now.error > bound
        check = Check(f"{PREFIX}{now.metric}", now.error, bound, False, _reason(before, now), not bad)
        checked = replace(row, checks=(*row.checks, check))
        if not bad:
            return checked
        sentence = _sentence(before, now, bound, self._baseline)
        if row.verdict == "fail":
            return replace(checked, reasons=(*row.reasons, sentence))
        return replace(checked, verdict="fail", sentence=sentence, reasons=(sentence, *row.reasons))


def _reason(before: Accepted, now: Accepted) -> str:
    if before.metric == COUNT:
        return f"baseline: {before.error:g} accepted; twice that, or what the scatter of counts allows"
    return (
        f"baseline: {factor(before, now):.3g} times the accepted {number(before.error)} (scatter of "
        f"{min(before.elements, now.elements)} elements, at least 2) plus one rounding {roundoff(now):.2g}"
    )


def _sentence(before: Accepted, now: Accepted, bound: float, baseline: Baseline) -> str:
    times = f"{now.error / before.error:.3g} times" if before.error else "above"
    return (
        f"{now.metric} {now.error:.3g} is {times} the accepted {before.error:.3g} of {baseline.path}; "
        f"up to {bound:.3g} would be no significant change"
    )


# Baselines as files, read, put together from those of shards, and written.


FORMAT = "acc-pytest baseline"
VERSION = 1
DIGITS = 5
"""Significant digits of an error: far finer than any band, and short enough to read in a diff."""


def read_baseline(path: str) -> Baseline:
    """The baseline in a file. Raises `FormatError` naming file and entry, `AccError` if unreadable."""
    content = read_json(path, FORMAT, VERSION)
    origin, pairs = texts_of(path, content.get("made"), "made"), content.get("pairs")
    if type(pairs) is not dict:
        raise FormatError(f"{path}: pairs must be an object, got {pairs!r:.100}")
    return Baseline(path, origin, {key: _accepted(path, key, entry) for key, entry in pairs.items()})


def read_baselines(paths: Sequence[str]) -> Baseline:
    """One baseline of the files of several shards.

    Raises `AccError` for a key that two files have with different values.
    """
    baselines = [read_baseline(path) for path in paths]
    pairs: dict[str, Accepted] = {}
    for baseline in baselines:
        for key, entry in baseline.pairs.items():
            if pairs.setdefault(key, entry) != entry:
                raise AccError(
                    f"{baseline.path}: accepts another error for {key!r:.200} than an earlier file; "
                    "accept this comparison in one file only"
                )
    return Baseline(", ".join(paths), baselines[0].origin if baselines else {}, pairs)


def write_baseline(path: str, origin: Mapping[str, str], pairs: Mapping[str, Accepted]) -> None:
    """Write a baseline, atomically. Raises `AccError` where the system refuses."""
    head = {"format": FORMAT, "version": VERSION, "made": dict(origin)}
    write_json(path, head, "pairs", ((key, _entry(accepted)) for key, accepted in pairs.items()))


def _entry(accepted: Accepted) -> dict[str, Any]:
    error = int(accepted.error) if accepted.metric == COUNT else float(f"{accepted.error:.{DIGITS}g}")
    return {"dtypes": " ".join(accepted.dtypes), "elements": accepted.elements, accepted.metric: error}


def _accepted(path: str, key: str, entry: object) -> Accepted:
    where = f"{path}: entry {key!r:.200}"
    if type(entry) is not dict:
        raise FormatError(f"{where} must be an object, got {entry!r:.100}")
    metrics = entry.keys() - {"dtypes", "elements"}
    if len(metrics) != 1 or not metrics <= {COUNT, RELATIVE}:
        raise FormatError(f"{where} must have dtypes, elements, and either {RELATIVE} or {COUNT}")
    (metric,) = metrics
    error, elements, dtypes = entry[metric], entry.get("elements"), entry.get("dtypes")
    if type(error) not in (int, float) or not 0 <= error <= sys.float_info.max:
        raise FormatError(f"{where}: {metric} must be a number >= 0, got {error!r:.100}")
    if type(elements) is not int or elements < 1:
        raise FormatError(f"{where}: elements must be a whole number >= 1, got {elements!r:.100}")
    if type(dtypes) is not str or dtypes.count(" ") != 1:
        raise FormatError(f"{where}: dtypes must be two names with a blank between, got {dtypes!r:.100}")
    golden, _, mine = dtypes.partition(" ")
    return Accepted(metric, float(error), elements, (golden, mine))


# The baseline as a run ends: what is stale, new, better than recorded; and the file, where it is updated.


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
        lines = list(self._use_lines(common))
        if self._update:
            return [*lines, self._update_line(new, better), *self._red_lines()]
        if new:
            lines.append(f"baseline: {_some(new)} not in it: add with --acc-update-baseline=new")
        if better:
            lines.append(f"baseline: {_some(better)} clearly better than accepted: tighten with =all")
        return lines

    def finish(self, result: Result) -> None:
        """Write the file, if it is to be updated. Raises `AccError` where the system refuses."""
        if not self._writes:
            return
        only_new = self._update == NEW
        pairs = {**self._now, **self._before} if only_new else {**self._without_stale(), **self._now}
        # With new entries beside old ones the head stays that of the old ones.
        stays = only_new and self._before
        origin = self._origin if stays else {"date": _today().isoformat(), **self._environment}
        write_baseline(self._path, origin, pairs)

    def _use_lines(self, common: Mapping[str, Accepted]) -> Iterator[str]:
        """Lines on errors compared with those of the file, of which `common` are in both, and on others."""
        incomparable = [key for key, before in common.items() if not comparable(before, self._now[key])]
        if self._before:
            compared = len(common) - len(incomparable)
            yield f"baseline: {compared} comparisons held against the errors of {self._path}"
            differing = [
                f"{name} {self._origin[name]} (now {self._environment.get(name, 'none')})"
                for name in _TELLING
                if name in self._origin and self._origin[name] != self._environment.get(name)
            ]
            if differing:
                yield f"baseline: it was made with {', '.join(differing)}"
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
