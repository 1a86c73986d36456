"""`Mode`: one way to run, and `GeneratedTest`: one test of it. All else is the same for every mode.

A mode is opened once, by the process that has the terminal, and travels to xdist workers with its fields.
Each process makes the tests of the mode for itself. ARCHITECTURE.md says what a new mode needs.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from .. import options
from ..ids import SEPARATOR, is_ours
from ..reporting.printable import shell
from .judges import Judges

if TYPE_CHECKING:
    from ..judging.threshold import JudgeContext
    from ..mapping.pair import Plan
    from ..reporting.row import Row
    from ..reporting.view import Run, View
    from ..settings import Settings
    from .generated import GeneratedItem


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
    def opened(cls, option_values: Mapping[str, Any]) -> Mode | None:
        """The mode that the option values ask for, if they do. Raises `AccError`."""

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
        return Judges(self.settings)

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
        return replace(run, command=("pytest", *options.command_line(self.option_values)))

    def views(self) -> list[View]:
        """Its reports; none: those that people's own tests have. Raises `AccError`."""
        return []

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
        return shell(["pytest", *options.command_line(options.of_one_test(self.option_values)), *words])

    def __getstate__(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.init}
