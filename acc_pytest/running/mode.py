"""`Mode`: one way to run, and `GeneratedTest`: one test of it. All else is the same for every mode.

A mode is opened once, by the process that has the terminal, and travels to xdist workers with its fields.
Each process makes the tests of the mode for itself. CONTRIBUTING.md says what a new mode needs.
"""

from __future__ import annotations

import abc
import difflib
import functools
import itertools
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest

from .. import options
from ..base.imports import import_torch, leave_what_stays
from ..base.vocabulary import selectable
from ..errors import AccError
from ..options.marks import once, threshold_mark
from ..reporting.failure_text import FailureText, with_rerun
from ..reporting.texts import shell
from .run import ComparisonFailed, Judges, record

if TYPE_CHECKING:
    from ..judging.threshold import JudgeContext, ThresholdRule
    from ..mapping.pair import Pair, Plan, Unmapped
    from ..reporting.row import Row
    from ..reporting.view import Run, View
    from ..settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedTest(abc.ABC):
    """One test of a mode. `names` are those of the collectors above it and its own.

    `number` is its place among the tests that shards share out; `None`: the first shard runs it.
    """

    mode: Mode
    names: tuple[str, ...]
    number: int | None

    compares: ClassVar[bool] = True
    """Whether it compares anything; a node without a partner is only reported."""
    needs_torch: ClassVar[bool] = True
    """Whether torch is imported for it beforehand; else it is where somebody asks for a tensor."""

    @property
    def node_id(self) -> str:
        """The whole id."""
        return SEPARATOR.join(self.names)

    @property
    @abc.abstractmethod
    def headline(self) -> str:
        """The line above its failure."""

    @property
    def marks(self) -> Sequence[pytest.Mark]:
        """Its markers, those for thresholds apart."""
        return ()

    @property
    def keywords(self) -> Sequence[str]:
        """Words that `-k` finds beside those of the id."""
        return ()

    @property
    def context(self) -> JudgeContext | None:
        """The values that threshold rules of config files are matched with; `None` where none apply."""
        return None

    @property
    def skip_reason(self) -> str:
        """Why the test is skipped; empty: it runs."""
        return ""

    @property
    def rerun(self) -> str:
        """The command that runs the test again."""
        return self.mode.rerun_command(self.node_id)

    @abc.abstractmethod
    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        """Run the test: its rows, with baseline, known differences and lock applied.

        Raises `TestFailed` where a failure has no row.
        """

    def lost_row(self, reason: str) -> Row | None:
        """The row of a test that failed before it had any: `reason` says why. `None`: there is to be none."""
        return None

    def files(self) -> Iterable[str]:
        """The files that it reads, as far as is known; they say what it costs."""
        return ()


def together(
    tests: Iterable[GeneratedTest], group: Callable[[GeneratedTest], object]
) -> tuple[GeneratedTest, ...]:
    """The tests, those of one group one after the other; groups in the order of their first tests."""
    places: dict[object, int] = {}
    return tuple(sorted(tests, key=lambda test: places.setdefault(group(test), len(places))))


class TestFailed(AssertionError):
    """A generated test fails without a row; the message is the whole failure text."""


@dataclass(eq=False)
class Mode(abc.ABC):
    """One way to run.

    `settings` are the options that all modes have, `option_values` those that the user gave. `share` are the
    numbers of this machine's tests, `None` where the run is not shared out (`--acc-shard`). `selected` are
    the tests that the command line asks for, those of other machines among them.
    """

    settings: Settings
    option_values: Mapping[str, Any]
    _: KW_ONLY
    plan: Plan | None = None
    share: frozenset[int | None] | None = None
    selected: tuple[GeneratedTest, ...] = field(default=(), init=False)

    doing: ClassVar[str]
    """The name of its opening in error messages."""
    noun: ClassVar[str] = ""
    """The noun of progress lines; empty: a run is too short for such lines."""
    leaves_rows: ClassVar[bool] = True

    @classmethod
    @abc.abstractmethod
    def takes(cls, option_values: Mapping[str, Any]) -> bool:
        """Whether the option values are for this mode."""

    @classmethod
    @abc.abstractmethod
    def opened(cls, option_values: Mapping[str, Any]) -> Mode:
        """The mode of option values that it takes, with all loaded that they name. Raises `AccError`."""

    @property
    @abc.abstractmethod
    def root(self) -> str:
        """The first name of its node ids."""

    @property
    @abc.abstractmethod
    def tests(self) -> tuple[GeneratedTest, ...]:
        """All tests, in the order in which they run."""

    @functools.cached_property
    def judges(self) -> Judges:
        """By what its tests are judged."""
        return Judges.of(self.settings)

    @property
    def shared_out(self) -> Sequence[GeneratedTest]:
        """The tests that shards divide, by number."""
        return [test for test in self.tests if test.number is not None]

    @property
    def chosen(self) -> tuple[GeneratedTest, ...]:
        """The tests that this machine is asked to run."""
        if self.share is None:
            return self.selected
        return tuple(test for test in self.selected if self.has_share_in(test.number))

    def has_share_in(self, number: int | None) -> bool:
        """Whether the test of this number is this machine's."""
        return self.share is None or number is None or number in self.share

    @property
    def pair_seconds(self) -> float | None:
        """Seconds that a test takes beside reading its files; `None` where their sizes say little."""
        return None

    @property
    def lacks(self) -> Sequence[str]:
        """A sentence for each part that its data lack, so that the run is not complete."""
        return ()

    @property
    def compares_elsewhere(self) -> bool:
        """Whether other machines run all the tests that compare anything."""
        comparing = [test for test in self.shared_out if test.compares]
        return bool(comparing) and not any(self.has_share_in(test.number) for test in comparing)

    def owns(self, argument: str) -> bool:
        """Whether an argument of the command line names tests of this mode."""
        return is_ours(argument, self.root)

    def header(self) -> list[str]:
        """Lines before the first test."""
        return []

    def explanation(self) -> list[str]:
        """Lines that were asked for and that `-q` leaves in place."""
        return []

    def described(self, run: Run) -> Run:
        """The run as views get it."""
        return replace(run, command=self._command, rerun=options.of_one_test(self._command))

    def views(self) -> list[View]:
        """Its reports; none: those that people's own tests have. Raises `AccError`."""
        return []

    def all_rows(self, rules: Sequence[ThresholdRule], gate: Callable[[Row], Row]) -> Iterable[Row]:
        """The rows of all tests in a run without pytest: those of config files judge, and then `rules`."""
        return ()

    def early_rows(self) -> Iterable[Row]:
        """Rows that no test stands for, written before the first test."""
        return ()

    def late_rows(self, recorded: Container[str]) -> Iterable[Row]:
        """Rows that are still missing when the last test has run; `recorded` are the ids with a row."""
        return ()

    def begin(self, session: pytest.Session, left_out: Sequence[pytest.Item]) -> None:  # noqa: B027
        """Note which tests run: those of `session`. `left_out`: those that only pytest's cache left out."""

    def rerun_command(self, *words: str) -> str:
        """The command line that runs one generated test again."""
        return shell([*options.of_one_test(self._command), *words])

    @property
    def _command(self) -> tuple[str, ...]:
        return ("pytest", *options.command_line(self.option_values))

    def __getstate__(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.init}


# Test ids of generated tests, and which of them a command line selects.
#
# An id reads `ait_dump::step0::layers.3::SelfAttentionOperation_2_0_3`: the plan's name, the step, the
# rank where there are several, the layer, the pair. Ids hold no paths, times or process numbers, so
# they are the same in every run over the same model.


SEPARATOR = "::"
UNMAPPED = "unmapped"
"""The collector, below a step, of the nodes that found no partner."""
T = TypeVar("T")
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of the pairs of one plan; `ranks` says whether ids need a rank to be unique."""

    root: str
    ranks: bool

    @classmethod
    def of(cls, plan: Plan) -> Naming:
        """The naming of `plan`: ranks are named only when pairs of several are judged."""
        return cls(plan.name, len({pair.rank for pair in plan.pairs} - {None}) > 1)

    def parents(self, pair: Pair) -> tuple[str, ...]:
        """Names of the collectors above a pair, outermost first, the layer last."""
        step = f"step{pair.step}"
        if self.ranks and pair.rank is not None:
            return (self.root, step, f"rank{pair.rank}", selectable(pair.layer))
        return (self.root, step, selectable(pair.layer))

    def names(self, pair: Pair) -> tuple[str, ...]:
        """Names of the collectors above a pair, and its own."""
        return (*self.parents(pair), pair.id)

    def node_id(self, pair: Pair) -> str:
        """The whole id of a pair's test."""
        return SEPARATOR.join(self.names(pair))

    def of_unmapped(self, nodes: Iterable[Unmapped]) -> list[tuple[str, ...]]:
        """Names of the collectors above each unmapped node and its own: `golden.model.layers.0.x`.

        They are unique: a node may be unmapped more than once, and the later ones are numbered.
        """
        used: dict[tuple[str, ...], int] = {}
        named = []
        for node in nodes:
            rank = (f"rank{node.rank}",) if self.ranks and node.rank is not None else ()
            slot = f"[{node.slot}]" if node.slot else ""
            label = selectable(f"{node.side}.{(node.name or node.node).removeprefix('root.')}{slot}")
            names = (self.root, f"step{node.step}", *rank, UNMAPPED, label)
            while (count := used.get(names, 0)) > 0:
                used[names] = count + 1
                names = (*names[:-1], f"{label}.{count + 1}")
            used[names] = 1
            named.append(names)
        return named

    def parameter(self, pair: Pair) -> str:
        """The name without the root, fit for the brackets of a parametrized test."""
        return "/".join((*self.parents(pair)[1:], pair.id))


def is_ours(argument: str, root: str) -> bool:
    """Whether a positional argument of pytest names generated tests of the plan called `root`.

    pytest prints ids relative to the working directory (`../ait_dump::step0`), so a leading path is
    accepted where names follow; without names only the bare root is ours, for anything else may be
    a directory of tests.
    """
    path, separator, _ = argument.partition(SEPARATOR)
    return os.path.basename(path) == root if separator else path == root


def select_named(
    candidates: Sequence[tuple[tuple[str, ...], T]], root: str, arguments: Iterable[str]
) -> tuple[T, ...]:
    """The `candidates`, each with the names of its collectors and its own, below any node id of `arguments`.

    Each node id `is_ours`; the answer is in the order of `candidates`. As for function tests, an id without
    brackets stands for all ids that differ from it by brackets alone. Raises `AccError` for an argument that
    selects nothing; the message has the nearest ids.
    """
    chosen: set[int] = set()
    for argument in arguments:
        prefix = (root, *argument.split(SEPARATOR)[1:])
        hits = [index for index, (names, _) in enumerate(candidates) if _selects(prefix, names)]
        if not hits:
            raise AccError(
                f"no generated test matches {argument!r}; {_nearest(prefix, [n for n, _ in candidates])}"
            )
        chosen.update(hits)
    return tuple(item for index, (_, item) in enumerate(candidates) if index in chosen)


def _selects(prefix: tuple[str, ...], names: tuple[str, ...]) -> bool:
    depth = len(prefix)
    if depth > len(names) or prefix[:-1] != names[: depth - 1]:
        return False
    last, name = prefix[-1], names[depth - 1]
    return name == last or ("[" not in last and name.partition("[")[0] == last)


def _nearest(prefix: tuple[str, ...], candidates: list[tuple[str, ...]]) -> str:
    """The ids that share the longest beginning with `prefix` and continue most alike."""
    if not candidates:
        return "nothing could be mapped, so there is none"
    depth = 0
    while depth < len(prefix) and any(names[: depth + 1] == prefix[: depth + 1] for names in candidates):
        depth += 1
    longer = [names for names in candidates if names[:depth] == prefix[:depth] and len(names) > depth]
    choices = list(dict.fromkeys(names[depth] for names in longer))
    if not choices or depth == len(prefix):
        return f"{SEPARATOR.join(prefix[:depth])} has nothing below it"
    near = difflib.get_close_matches(prefix[depth], choices, n=SHOWN, cutoff=0.3) or choices[:SHOWN]
    ids = ", ".join(SEPARATOR.join((*prefix[:depth], name)) for name in near)
    return f"nearest: {ids} (list all with --co -q)"


# The collector and the item of generated tests, whatever mode they are of.


class GeneratedCollector(pytest.Collector):
    """A level of the ids. What is below is made from `tests` when pytest asks for it.

    Tests stay in their order, so that a layer that is left and entered again (`model` around `layers.0`)
    appears as often as it runs.
    """

    def __init__(self, *, tests: Sequence[GeneratedTest], depth: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._tests = tests
        self._depth = depth

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The collectors of the next level, or the items."""
        depth = self._depth

        def next_name(test: GeneratedTest) -> str | None:
            return test.names[depth] if len(test.names) > depth + 1 else None

        for name, tests in itertools.groupby(self._tests, next_name):
            if name is not None:
                yield GeneratedCollector.from_parent(self, name=name, tests=tuple(tests), depth=depth + 1)
                continue
            for test in tests:
                # pytest reads a bracket in an id that it is given as a parameter, in one that it makes not
                usual_id = f"{self.nodeid}{SEPARATOR}{test.names[-1]}"
                nodeid = None if test.node_id == usual_id else test.node_id
                yield GeneratedItem.from_parent(self, name=test.names[-1], nodeid=nodeid, test=test)


def collectors_of(session: pytest.Session, tests: Sequence[GeneratedTest]) -> Iterator[GeneratedCollector]:
    """A collector below the session for each first name."""
    for name, group in itertools.groupby(tests, lambda test: test.names[0]):
        yield GeneratedCollector.from_parent(session, name=name, nodeid=name, tests=tuple(group), depth=1)


def items_of(node: pytest.Item | pytest.Collector) -> Iterator[pytest.Item]:
    """The tests below a collector, of which no plugin is told."""
    if isinstance(node, pytest.Item):
        yield node
        return
    for child in node.collect():
        yield from items_of(child)


class GeneratedItem(pytest.Item):
    """A generated test. Its failure is told in our words, without a traceback of ours.

    `config_mark` is the marker that stands for the threshold rules of config files. `phase_hooks` are the
    hooks that it runs with where these are not simply pytest's (`runtest.PhaseHooks`).
    """

    phase_hooks: Any = None

    def __init__(self, *, test: GeneratedTest, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.test = test
        self.own_markers.extend((*once(self.config), *test.marks))
        self.extra_keyword_matches.update(test.keywords)
        rules = test.mode.settings.rules
        context = test.context if rules else None
        self.config_mark = None if context is None else threshold_mark(rules, context)
        if self.config_mark is not None:
            self.own_markers.append(self.config_mark)

    def __repr__(self) -> str:
        return f"<{type(self.test).__name__} {self.name}>"

    @property
    def ihook(self) -> Any:
        """Its hooks."""
        return self.phase_hooks or super().ihook

    def setup(self) -> None:
        """Skip what there is nothing to do for."""
        if reason := self.test.skip_reason:
            pytest.skip(reason)

    def runtest(self) -> None:
        """Record the rows, then pass, fail or skip."""
        if self.test.compares:
            if not self.config.args:  # what people's own tests leave is looked at
                leave_what_stays()
            if self.test.needs_torch:
                import_torch()
        record(self, self.test.rows(self), warns=self.test.mode.settings.inherited == "warn")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure in our words; anything unexpected keeps its traceback."""
        error = excinfo.value
        if isinstance(error, (ComparisonFailed, AccError)):
            text = error.text if isinstance(error, ComparisonFailed) else str(error)
            return FailureText(with_rerun(text, self.test.rerun))
        if isinstance(error, TestFailed):
            return FailureText(str(error))
        if isinstance(error, pytest.xfail.Exception):
            # An expected failure has its reason; a traceback of each would take longer than comparing.
            return str(error)
        return super().repr_failure(excinfo, style)

    @property
    def location(self) -> tuple[str, int | None, str]:
        """The place of the test for reports. It is not kept, as that would take half a kilobyte."""
        path, line, headline = self.reportinfo()
        return _relative(path, self.config.rootpath), line, headline

    def reportinfo(self) -> tuple[Any, int, str]:
        """The headline of failures. (It must not be the end of the id, whose dots pytest would rewrite.)

        pytest wants a line for skip markers and warnings; the directory has only the first.
        """
        return self.path, 0, self.test.headline


@functools.cache
def _relative(path: Path, root: Path) -> str:
    return os.path.relpath(path, root)
