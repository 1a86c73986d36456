"""How many xdist workers a run is worth: each takes a second or two until its first pair is measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from ..run_state import AUTO
from .mode import Mode
from .shards import PER_TEST, cost_of

WORTH = 500 * PER_TEST
"""What a worker should have to do, as `cost_of` counts: half a second."""


def start_fewer(config: pytest.Config, modes: Sequence[Mode]) -> None:
    """Have xdist, which has not started any yet, start no worker that will run nothing.

    Under `-n auto` nor one that would have too little to do. With people's own tests, and `--tx`, all are
    started.
    """
    options: Any = config.option
    if not modes or config.args or set(getattr(options, "tx", ())) != {"popen"}:
        return
    tests = [test for mode in modes for test in mode.chosen]
    number = min(len(options.tx), max(1, len(tests)))
    if config.stash.get(AUTO, False) and all(mode.costs_by_size for mode in modes):
        number = worth(map(cost_of, tests), number)
    options.numprocesses, options.tx = number, options.tx[:number]


def worth(costs: Iterable[int], most: int) -> int:
    """How many workers tests of these costs keep busy, up to `most`. Asks for no more than needed."""
    for done in itertools.accumulate(costs, initial=0):
        if done > (most - 1) * WORTH:
            return most
    return max(1, -(-done // WORTH))
