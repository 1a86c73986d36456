"""The baseline: the errors and thresholds of an accepted run, and whether this run has larger ones.

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

A threshold that allows a larger error than in the file, that is off, or that is gone is loosened; the run
fails until somebody accepts it (`=all`) and says why in the file. Thresholds there are nominal: they do not
depend on the data.
"""

from __future__ import annotations

import datetime
import getpass
import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from ..base.forms import must, written
from ..base.reason import Reason, joined
from ..base.vocabulary import number
from ..errors import AccError, FormatError
from ..judging.replay import NominalBound, nominal_bounds
from ..judging.standards import DEFAULT, Standard
from ..judging.threshold import OF_STANDARD, ThresholdRule
from ..judging.tolerance import SAMPLE_SIGMAS, coarser
from ..judging.verdict import Check
from ..outputs import file_target
from ..reporting.row import Row
from ..reporting.texts import TO_PASTE
from ..reporting.view import Result, Run
from ..tensors.json_file import header, read_form, write_json
from .gate import Gate, PlanView, dtypes_of, key_of, root_of
from .known import entry_of

LEAST_FACTOR = 2.0
RELATIVE, COUNT = "relative_euclidean_distance", "mismatches"
PREFIX = "baseline."
"""What the metric's name begins with in the check that a row gets."""
OTHER_KIND = "baseline: not compared, the accepted error is {}"
"""A note on a row whose accepted error is of another kind."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The error of one comparison: the metric, its value, the number of elements, and both dtypes."""

    metric: str
    error: float
    elements: int
    dtypes: tuple[str, str]


T = TypeVar("T")
Bounds = Mapping[str, NominalBound]
"""The nominal bounds of a comparison by metric."""


@dataclass(frozen=True, slots=True)
class Change:
    """When thresholds were loosened, by whom, and the reason."""

    date: str
    user: str
    reason: str


@dataclass(frozen=True, slots=True)
class Baseline:
    """The accepted errors and thresholds by key (`gate.key_of`).

    `origin` says when, where, with which versions they were made; `history` are the changes that loosened
    thresholds, oldest first. `path` is where it was read.
    """

    path: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)
    pairs: Mapping[str, Accepted] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    history: tuple[Change, ...] = ()


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
    """Whether the error has become significantly smaller; it is larger where both are exchanged."""
    return comparable(before, now) and before.error > allowed(now, before)


class BaselineGate(Gate):
    """Fails a pair whose error is significantly worse than the accepted one."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline

    def apply(self, row: Row) -> Row:
        """The row with a check against its accepted error, where there is one of the same kind."""
        row = _with_operator_bounds(row)
        before, now = self._baseline.pairs.get(key_of(row)), error_of(row)
        if before is None or now is None or row.verdict not in ("pass", "fail"):
            return row
        if not comparable(before, now):
            accepted = f"{before.metric} of {' and '.join(before.dtypes)}"
            return replace(row, notes=(*row.notes, Reason(OTHER_KIND, accepted)))
        bound = allowed(before, now)
        bad = now.error > bound
        if before.metric == COUNT:
            why = Reason("{:g} accepted; twice that, or what the scatter of counts allows", before.error)
        else:
            why = Reason(
                "{:.3g} times the accepted {} (scatter of {} elements, at least 2) plus one rounding {:.2g}",
                *(factor(before, now), number(before.error)),
                *(min(before.elements, now.elements), roundoff(now)),
            )
        check = Check(
            f"{PREFIX}{now.metric}", now.error, bound, False, Reason(OF_STANDARD, "baseline", why), not bad
        )
        checked = replace(row, checks=(*row.checks, check))
        if not bad:
            return checked
        times = Reason("{:.3g} times", now.error / before.error) if before.error else "above"
        comparison = Reason(
            "{} {:.3g} is {} the accepted {:.3g} of {}",
            *(now.metric, now.error, times, before.error, self._baseline.path),
        )
        sentence = joined("; ", (comparison, Reason("up to {:.3g} would be no significant change", bound)))
        if row.verdict == "fail":
            return replace(checked, reasons=(*row.reasons, sentence))
        return replace(checked, verdict="fail", sentence=sentence, reasons=(sentence, *row.reasons))


# Thresholds apart from the data, and which of them are loosened.


RESOLUTION = 1e-9
"""Relative difference of two bounds that floating point makes."""

FROM_TABLES = ("ascend", "msit", "open")
"""Standards of single operators whose bounds depend on operator and dtype, not on a second run."""


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


def _with_operator_bounds(row: Row) -> Row:
    """A row of a single operator with its nominal bounds, where the standard takes them from tables."""
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


# Baselines as files, read, put together from those of shards, and written.
#
# Comparisons of one kind share their thresholds, which each names by a hash of them.


FORMAT = "acc-pytest baseline"
VERSION = 1
RETIRED = {
    "acc-pytest lock": "is a threshold lock of an earlier acc-pytest; a baseline holds thresholds now: write "
    "one with --acc-baseline FILE --acc-update-baseline"
}
DIGITS = 5
"""Significant digits of an error: far finer than any band, and short enough to read in a diff."""
LENGTH = 12
"""Hexadecimal digits of a hash: a collision among a million kinds has a chance of 0.002."""
WHY = "WHY"
"""The reason that an update writes, in whose place a person says why."""


def _error(value: object, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:  # type: ignore[operator]
        raise must(where, "a number >= 0", value)
    return float(value)  # type: ignore[arg-type]


def _positive(value: object, where: str) -> int:
    if type(value) is not int or value < 1:
        raise must(where, "a whole number >= 1", value)
    return value


def _dtypes(value: object, where: str) -> str:
    if type(value) is not str or value.count(" ") != 1:
        raise must(where, "two names with a blank between", value)
    return value


@dataclass(frozen=True, slots=True)
class _BaselineEntry:
    """The accepted error of a comparison, by one of two metrics, the hash of its thresholds, or both."""

    dtypes: Annotated[str, _dtypes] = ""
    elements: Annotated[int, _positive] = 0
    relative_euclidean_distance: Annotated[float, _error] | None = None
    mismatches: Annotated[float, _error] | None = None
    bounds: str = ""

    @classmethod
    def of(cls, accepted: Accepted | None, bounds: str) -> _BaselineEntry:
        """The entry of what there is."""
        if accepted is None:
            return cls(bounds=bounds)
        error = int(accepted.error) if accepted.metric == COUNT else float(f"{accepted.error:.{DIGITS}g}")
        return cls(" ".join(accepted.dtypes), accepted.elements, bounds=bounds, **{accepted.metric: error})

    def accepted(self, where: str) -> Accepted | None:
        """The error, `None` for thresholds alone. Raises `FormatError`."""
        errors = {name: error for name in (RELATIVE, COUNT) if (error := getattr(self, name)) is not None}
        if self == _BaselineEntry(bounds=self.bounds) and self.bounds:
            return None
        if len(errors) != 1 or not self.dtypes or not self.elements:
            raise FormatError(f"{where} must have dtypes, elements, and either {RELATIVE} or {COUNT}")
        golden, _, mine = self.dtypes.partition(" ")
        return Accepted(*errors.popitem(), self.elements, (golden, mine))


@dataclass(frozen=True, slots=True)
class _BaselineFile:
    """The fields of a file: `made` when, where and with what; thresholds by their hash."""

    made: Mapping[str, str]
    pairs: Mapping[str, _BaselineEntry]
    bounds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    history: tuple[Change, ...] = ()


def read_baseline(path: str) -> Baseline:
    """The baseline in a file; one of before thresholds were in it has none of these.

    Raises `FormatError` naming file and entry, `AccError` if unreadable.
    """
    stated = read_form(_BaselineFile, path, FORMAT, VERSION, RETIRED)
    kinds = {name: _bounds(path, name, texts) for name, texts in stated.bounds.items()}
    pairs, bounds = {}, {}
    for key, entry in stated.pairs.items():
        where = f"{path}: pairs.{key:.200}"
        if (accepted := entry.accepted(where)) is not None:
            pairs[key] = accepted
        if entry.bounds:
            if entry.bounds not in kinds:
                raise FormatError(
                    f"{where} refers to bounds {entry.bounds!r:.100}, which the file does not have"
                )
            bounds[key] = kinds[entry.bounds]
    return Baseline(path, stated.made, pairs, bounds, stated.history)


def read_baselines(paths: Sequence[str]) -> Baseline:
    """One baseline of the files of several shards.

    Raises `AccError` for a key that two files have with different values.
    """
    baselines = [read_baseline(path) for path in paths]
    pairs: dict[str, Accepted] = {}
    bounds: dict[str, Bounds] = {}
    for baseline in baselines:
        _join(pairs, baseline.pairs, f"{baseline.path}: accepts another error")
        _join(bounds, baseline.bounds, f"{baseline.path}: holds other thresholds")
    history = dict.fromkeys(change for baseline in baselines for change in baseline.history)
    return Baseline(", ".join(paths), baselines[0].origin if baselines else {}, pairs, bounds, tuple(history))


def _join(union: dict[str, T], entries: Mapping[str, T], sentence: str) -> None:
    for key, entry in entries.items():
        if union.setdefault(key, entry) != entry:
            raise AccError(
                f"{sentence} for {key!r:.200} than an earlier file; accept this comparison in one file only"
            )


def write_baseline(baseline: Baseline) -> None:
    """Write a baseline to its path, atomically. Raises `AccError` where the system refuses."""
    kinds: dict[str, dict[str, str]] = {}
    names: dict[str, str] = {}
    for key, bounds in baseline.bounds.items():
        texts = {metric: str(bound) for metric, bound in sorted(bounds.items())}
        names[key] = _hash(texts)
        kinds[names[key]] = texts
    entries = {
        key: _BaselineEntry.of(baseline.pairs.get(key), names.get(key, ""))
        for key in baseline.pairs.keys() | baseline.bounds.keys()
    }
    stated = written(_BaselineFile(baseline.origin, entries, dict(sorted(kinds.items())), baseline.history))
    write_json(baseline.path, header(FORMAT, VERSION) | stated, "pairs")


def _hash(texts: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:LENGTH]


def _bounds(path: str, name: str, texts: Mapping[str, str]) -> Bounds:
    if _hash(texts) != name:
        raise FormatError(
            f"{path}: bounds {name:.100} were edited; change thresholds where they are set and "
            "update the baseline with --acc-update-baseline=all"
        )
    try:
        return {metric: NominalBound.parse(text) for metric, text in texts.items()}
    except ValueError as error:
        raise FormatError(f"{path}: bounds {name:.100}: {error}") from None


# The baseline as a run ends: what is stale, new, better or looser than recorded; and the file, where it is
# updated.


NEW, ALL = "new", "all"
SHOWN = 3
"""Entries that a line names."""
WORST = 5
"""Loosened thresholds that a run lists."""
_TELLING = ("machine", "torch", "torch-npu", "numpy", "acc-pytest")
"""Parts of the environment that may move an error."""


class BaselineView(PlanView):
    """Compares the errors and thresholds of a run with `baseline` (`None`: there is no file yet).

    `update` says what is written to `path` at the end: `new` comparisons only, `all`, or nothing (empty).
    """

    def __init__(self, path: str, baseline: Baseline | None, update: str) -> None:
        super().__init__()
        self._path = path
        self._update = update
        self._before = baseline or Baseline(path)
        self._now: dict[str, Accepted] = {}
        self._bounds: dict[str, Bounds] = {}
        self._loosened: list[Loosened] = []
        self._without_error = 0
        self._red = 0
        self._first_red: Row | None = None
        self._environment: Mapping[str, str] = {}

    @property
    def files(self) -> list[str]:
        """The file, where it is written."""
        return [self._path] if self._writes else []

    @property
    def place(self) -> str:
        """The file."""
        return self._path

    def begin(self, run: Run) -> None:
        """Note the machine and the plan. Raises `SettingsError` for a file that cannot be updated."""
        super().begin(run)
        self._environment = run.environment
        if self._update:
            file_target(self._path, "--acc-baseline")

    def add(self, row: Row) -> None:
        """Note the error of a row, of two rows at one place the larger; and its thresholds."""
        super().add(row)
        key = key_of(row)
        if bounds := nominal_bounds_in(row):
            self._bounds[key] = bounds
            self._loosened += loosened(key, self._before.bounds.get(key, {}), bounds)
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
        earlier = self._now.get(key)
        if earlier is None or earlier.error < accepted.error:
            self._now[key] = accepted

    def lines(self) -> list[str]:
        """The lines of the summary on the baseline."""
        before = self._before
        new = [key for key in self._now if key not in before.pairs]
        common = {key: before.pairs[key] for key in self._now if key in before.pairs}
        better = [key for key, accepted in common.items() if improved(accepted, self._now[key])]
        lines = [*self._use_lines(common), *self._threshold_lines()]
        if self._update:
            return [*lines, self._update_line(new, better), *self._red_lines()]
        if new:
            lines.append(Reason("baseline: {} not in it: add with --acc-update-baseline=new", _some(new)))
        if better:
            lines.append(
                Reason("baseline: {} clearly better than accepted: tighten with =all", _some(better))
            )
        return lines

    def problems(self) -> list[str]:
        """The worst loosened thresholds, loosened ones without a reason, and what to do about it."""
        problems: list[str] = []
        if self._loosened and self._update != ALL:
            tests = len({change.key for change in self._loosened})
            problems += [
                Reason(
                    "baseline: {} thresholds of {} comparisons are looser than in {}; put them back, or "
                    "accept them with --acc-update-baseline=all",
                    *(len(self._loosened), tests, self._path),
                ),
                *(Reason("baseline: loosened {}", change) for change in self._worst()),
            ]
        if any(change.reason == WHY for change in self._before.history):
            problems.append(
                Reason(
                    "baseline: {} accepts loosened thresholds without a reason; write it in "
                    '"history", in the place of "{}"',
                    *(self._path, WHY),
                )
            )
        return problems

    def finish(self, result: Result) -> None:
        """Write the file, if it is to be updated. Raises `AccError` where the system refuses."""
        if not self._writes:
            return
        before, now = self._before, Baseline(self._path, pairs=self._now, bounds=self._bounds)
        if self._update == NEW:
            pairs, bounds = {**now.pairs, **before.pairs}, {**now.bounds, **before.bounds}
        else:
            stale = set(self._stale())
            pairs = {key: entry for key, entry in before.pairs.items() if key not in stale} | self._now
            bounds = {key: entry for key, entry in before.bounds.items() if key not in stale} | self._bounds
        # With new entries beside old ones the head stays that of the old ones.
        stays = self._update == NEW and before.pairs
        today = _today().isoformat()
        origin = before.origin if stays else {"date": today, **self._environment}
        change = (Change(today, _user(), WHY),) if self._loosened and self._update == ALL else ()
        write_baseline(Baseline(self._path, origin, pairs, bounds, (*before.history, *change)))

    @property
    def _writes(self) -> bool:
        return bool(self._update) and self._complete and bool(self._now or self._bounds)

    def _stale(self) -> list[str]:
        """Entries of this plan that no test met, where all of the plan has run."""
        if not self._plan_ran:
            return []
        entries = dict.fromkeys((*self._before.pairs, *self._before.bounds))
        met = self._now.keys() | self._bounds.keys()
        return [key for key in entries if root_of(key) == self._plan_name and key not in met]

    def _use_lines(self, common: Mapping[str, Accepted]) -> Iterator[str]:
        """Lines on errors compared with those of the file, of which `common` are in both, and on others."""
        incomparable = [key for key, before in common.items() if not comparable(before, self._now[key])]
        origin = self._before.origin
        if self._before.pairs:
            compared = len(common) - len(incomparable)
            yield Reason("baseline: {} comparisons held against the errors of {}", compared, self._path)
            differing = [
                f"{name} {origin[name]} (now {self._environment.get(name, 'none')})"
                for name in _TELLING
                if name in origin and origin[name] != self._environment.get(name)
            ]
            if differing:
                yield Reason("baseline: it was made with {}", ", ".join(differing))
        if self._without_error:
            yield Reason(
                "baseline: {} comparisons have no relative error (statistics only)", self._without_error
            )
        if incomparable:
            yield Reason("baseline: {} of another dtype than accepted: not compared", _some(incomparable))
        if stale := self._stale():
            yield Reason(
                "baseline: {} in it met no test: stale, --acc-update-baseline=all drops them", _some(stale)
            )

    def _threshold_lines(self) -> Iterator[str]:
        """Lines on the thresholds held against those of the file, and what it does not have."""
        before = self._before
        common = {key: bounds for key, bounds in self._bounds.items() if key in before.bounds}
        if common:
            count = sum(map(len, common.values()))
            yield Reason(
                "baseline: {} thresholds of {} comparisons held against {}", count, len(common), self._path
            )
        if tighter := sum(tightened(before.bounds[key], bounds) for key, bounds in common.items()):
            yield Reason("baseline: {} thresholds are tighter than in it: record them with =all", tighter)
        lacking = [key for key in self._bounds if key in before.pairs and key not in before.bounds]
        if lacking and not self._update:
            yield Reason(
                "baseline: {} without thresholds in it: add with --acc-update-baseline=new", _some(lacking)
            )

    def _update_line(self, new: list[str], better: list[str]) -> str:
        if not self._writes:
            return "baseline: NOT updated, for the run did not come to its end or compared nothing"
        changes = [Reason("{} new", len(new))]
        if self._update == ALL:
            anew = len(self._now) - len(new), len(better)
            changes.append(Reason("{} recorded anew ({} clearly better)", *anew))
            if self._loosened:
                changes.append(Reason("{} thresholds loosened: say why in its history", len(self._loosened)))
        return Reason("baseline: updated, {}", joined(", ", changes))

    def _worst(self) -> list[Loosened]:
        """The most loosened threshold of each kind of change: one rule may loosen thousands."""
        kinds: dict[tuple[str, str, str], Loosened] = {}
        for change in sorted(self._loosened, key=lambda change: (-change.times, change.metric, change.key)):
            rule = change.now.rule if change.now is not None else ""
            kinds.setdefault((change.metric, change.before.rule, rule), change)
        return list(kinds.values())[:WORST]

    def _red_lines(self) -> Iterator[str]:
        """Lines that a baseline makes nothing green that is beyond its thresholds, and what does."""
        if not self._writes or self._first_red is None:
            return
        which = Reason("{} pairs stay red: they exceed their", self._red)
        if self._red == 1:
            which = Reason("1 pair stays red: it exceeds its")
        yield Reason(
            "baseline: {} thresholds, which a baseline does not change. What is right all the same is "
            "accepted by an entry in a file of --acc-config; for {}:",
            *(which, self._first_red.name),
        )
        yield from (f"{TO_PASTE}{line}" for line in entry_of(self._first_red, _today()))


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.timezone.utc).date()


def _some(keys: list[str]) -> str:
    """`12 entries (a, b, c, ...)`."""
    named = ", ".join(sorted(keys)[:SHOWN]) + (", ..." if len(keys) > SHOWN else "")
    return Reason("{} {} ({})", len(keys), "entry" if len(keys) == 1 else "entries", named)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
