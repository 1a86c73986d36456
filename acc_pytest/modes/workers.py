"""The number of xdist workers for a run: they take half a second to start, and hand over each row."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from ..onlookers import implementations
from ..reporting.wrapping import on_screen
from ..run_state import AUTO
from .mode import GeneratedTest, Mode
from .shards import bytes_of

BYTE = 0.25e-9
"""Seconds that a process takes for each byte of a pair."""
SENT, TAKEN = 0.3e-3, 0.4e-3
"""Seconds that a worker takes to send what it found, and that the controller takes for it."""
START, TORCH = 0.5, 0.9
"""Seconds until workers measure, when this process could, and what importing torch adds to that."""
LARGE = 2**22
"""Bytes of a pair of which several threads of one process take their share."""


def start_fewer(config: pytest.Config, modes: Sequence[Mode]) -> None:
    """Have xdist, which has not started any yet, start no worker with which the run takes longer.

    What `-n` says is the most: as many are started as are done first, which may be none. With people's own
    tests, `--tx` and `--dist each` all are; so is the one of `-n 1`, which nobody asks for to save time.
    """
    options: Any = config.option
    requested = len(options.tx) if getattr(options, "numprocesses", None) else 0
    if not modes or not requested or config.args or options.dist == "each" or options.collectonly:
        return
    is_auto = config.stash.get(AUTO, False)
    if (requested == 1 and not is_auto) or modes[0].settings.engine == "ray":
        return  # who measures on nodes is told to leave -n out
    tests = _selected(config, [test for mode in modes for test in mode.chosen])
    number = _best(modes, tests, requested)
    if number < requested and not is_auto:
        line = _line(number, requested, len(tests))
        config.pluginmanager.register(FewerWorkers(line), "acc_fewer_workers")
    options.numprocesses, options.tx = number, options.tx[:number]
    if not number:
        _without_workers(config)


def _best(modes: Sequence[Mode], tests: Sequence[GeneratedTest], limit: int) -> int:
    """The number of workers, up to `limit`, that end such tests first; 0 where none is of use."""
    number = min(limit, len(tests))
    if number < 2:
        return 0
    costs = [seconds for mode in modes if (seconds := mode.pair_seconds) is not None]
    if len(costs) < len(modes):
        return number
    from ..threads import cores

    had = os.environ.get("OMP_NUM_THREADS", "")
    threads = modes[0].settings.threads or (min(cores(), int(had) or 1) if had.isdigit() else cores())
    sizes = [bytes_of(test) for test in tests if test.compares]
    # What mapping these dumps needed torch for, comparing them does as well.
    start = START + TORCH if "torch" in sys.modules else START
    return worth(sizes, max(costs), number, cores(), threads, start)


def _selected(config: pytest.Config, tests: Sequence[GeneratedTest]) -> Sequence[GeneratedTest]:
    """The tests that `--lf` and `-k` are going to leave, as far as their ids say.

    A word of `-k` may also be one that people's own hooks give a test. Then the number of workers is not the
    best one, and that is all.
    """
    if config.getoption("lf", False) and config.cache is not None:
        failed = config.cache.get("cache/lastfailed", {})
        tests = [test for test in tests if test.node_id in failed] or tests
    if not (keyword := config.option.keyword):
        return tests
    with suppress(Exception):  # what is no expression pytest refuses in its own words
        expression = Expression.compile(keyword)
        return [test for test in tests if expression.evaluate(functools.partial(_has, test))]
    return tests


def _has(test: GeneratedTest, word: str, /, **_: object) -> bool:
    """Whether `word` is in a name or keyword of the test, or in the name of one of its markers."""
    names = (*test.names, *test.keywords, *(mark.name for mark in test.marks))
    return any(word.lower() in name.lower() for name in names)


def _line(number: int, requested: int, tests: int) -> str:
    """The header's line on workers that are not started, and the option that starts them."""
    what = f"{tests} test{'s' if tests != 1 else ''}"
    if number:
        why = f"{number} of {requested} are started: more would not be done with {what} sooner"
    else:
        why = f"none of {requested} is started: one process is done with {what} sooner"
    return f"acc workers: {why}; --tx '{requested}*popen' --dist load starts all"


class FewerWorkers:
    """A plugin of the controller that says in the header why there are fewer workers than `-n` asked for."""

    def __init__(self, line: str) -> None:
        self._line = line

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_header(self) -> list[str]:
        """After all other lines."""
        return list(on_screen([self._line]))


def worth(
    sizes: Iterable[int], pair_seconds: float, limit: int, cores: int, threads: int, start: float
) -> int:
    """The number of workers, up to `limit`, that end pairs of so many bytes first; 0: this process does.

    A pair takes `pair_seconds` beside its bytes. This process has so many `threads` for large pairs, as
    workers have together; these measure `start` seconds later.
    """
    sizes = list(sizes)
    work = sum(pair_seconds + size * BYTE for size in sizes)
    alone = sum(pair_seconds + size * BYTE / (threads if size > LARGE else 1) for size in sizes)
    sent, receiving = len(sizes) * SENT, len(sizes) * TAKEN
    seconds = {0: alone}
    for number in range(2, limit + 1):
        seconds[number] = start + max(receiving, (work + sent) / number, (work + sent + receiving) / cores)
    return min(seconds, key=lambda number: (seconds[number], number))


def _without_workers(config: pytest.Config) -> None:
    """Take xdist away, as `-n 0` does. It was told otherwise, and is about to start its session."""
    options: Any = config.option
    options.dist = "no"
    manager = config.pluginmanager
    for implementation in implementations(config.hook, "pytest_sessionstart"):
        if implementation.plugin is manager.get_plugin("dsession"):
            implementation.function = _nothing  # pluggy has listed whom it will call
    for name in ("dsession", "terminaldistreporter"):
        if manager.hasplugin(name):
            manager.unregister(name=name)
    terminal: Any = manager.get_plugin("terminalreporter")
    if terminal is not None:
        terminal.showfspath = None  # xdist shows no file names, for tests of many end in turn


def _nothing(session: pytest.Session) -> None:
    """In place of the session of xdist."""
