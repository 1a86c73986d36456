"""The collector and the item of generated tests, whatever mode they are of."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..errors import AccError
from ..garbage import leave_what_stays
from ..ids import SEPARATOR
from ..imports import import_torch
from ..marks import once, threshold_mark
from ..recording import ComparisonFailed, record
from ..reporting.failure_text import RERUN, FailureText
from .mode import GeneratedTest, TestFailed


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
            return FailureText(f"{text}\n{RERUN}{self.test.rerun}")
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
