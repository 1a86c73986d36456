"""How many xdist workers a run is worth: they take a second until they measure, and hand over each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from ..onlookers import implementations
from ..run_state import AUTO
from .mode import Mode
from .shards import bytes_of

PAIR, BYTE = 0.7e-3, 0.25e-9
"""Seconds that a process takes for a pair, and for each byte of it."""
SENT, TAKEN = 0.3e-3, 0.5e-3
"""Seconds that a worker takes to send what it found, and that the controller takes for it."""
START = 1.3
"""Seconds until workers measure, when this process could."""
LARGE = 2**22
"""Bytes of a pair of which several threads of one process take their share."""


def start_fewer(config: pytest.Config, modes: Sequence[Mode]) -> None:
    """Have xdist, which has not started any yet, start no worker that will run nothing.

    Under `-n auto` only as many as are done before this process would be alone, which may be none. With
    people's own tests, and `--tx`, all are started.
    """
    options: Any = config.option
    if not modes or config.args or set(getattr(options, "tx", ())) != {"popen"}:
        return
    tests = [test for mode in modes for test in mode.chosen]
    number = min(len(options.tx), max(1, len(tests)))
    if config.stash.get(AUTO, False) and all(mode.costs_by_size for mode in modes):
        from ..threads import cores  # imports torch, which a worker does not need yet

        threads = modes[0].settings.threads or cores()
        number = worth([bytes_of(test) for test in tests if test.compares], number, cores(), threads)
    options.numprocesses, options.tx = number, options.tx[:number]
    if not number:
        _run_here(config)


def worth(sizes: Iterable[int], most: int, cores: int, threads: int) -> int:
    """How many workers, up to `most`, are done first with pairs of so many bytes; 0: this process is.

    It has so many `threads` for large pairs, as workers have together.
    """
    sizes = list(sizes)
    work = sum(PAIR + size * BYTE for size in sizes)
    alone = sum(PAIR + size * BYTE / (threads if size > LARGE else 1) for size in sizes)
    sent, taken = len(sizes) * SENT, len(sizes) * TAKEN
    seconds = {0: alone}
    for number in range(2, most + 1):
        seconds[number] = START + max(taken, (work + sent) / number, (work + sent + taken) / cores)
    return min(seconds, key=lambda number: (seconds[number], number))


def _run_here(config: pytest.Config) -> None:
    """Take xdist away, as `-n 0` does. It was told otherwise, and is about to start its session."""
    options: Any = config.option
    options.dist = "no"
    manager = config.pluginmanager
    for one in implementations(config.hook, "pytest_sessionstart"):
        if one.plugin is manager.get_plugin("dsession"):
            one.function = _nothing  # pluggy has listed whom it will call
    for name in ("dsession", "terminaldistreporter"):
        if manager.hasplugin(name):
            manager.unregister(name=name)
    terminal: Any = manager.get_plugin("terminalreporter")
    if terminal is not None:
        terminal.showfspath = None  # xdist shows no file names, for tests of many end in turn


def _nothing(session: pytest.Session) -> None:
    """In place of the session of xdist."""
