"""The gates of a session: what may change a verdict after the thresholds, in every process the same."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from .. import options
from .door import door

if TYPE_CHECKING:
    from ..gate.gate import Gate
    from ..reporting.row import Row
    from ..settings import Settings

GATES = pytest.StashKey[tuple["Gate", ...]]()
"""In `config.stash`: what may change a verdict after the thresholds."""
GATES_CHANNEL = "acc_gates"
"""Key of the gates' bytes in xdist's `workerinput`."""


def open_gates(config: pytest.Config, settings: Settings | None) -> None:
    """Make the gates that `settings` ask for (without any: those that the options do), or receive them.

    Raises `pytest.UsageError` for everything that is the user's to mend.
    """
    if hasattr(config, "workerinput"):
        # Our own bytes from our own controller, never a file.
        config.stash[GATES] = pickle.loads(config.workerinput[GATES_CHANNEL])  # noqa: S301
        return
    with door("opening the gates"):
        if settings is None and (settings := common_settings(config)) is None:
            config.stash[GATES] = ()
            return
        from ..gate.opening import gates_of

        config.stash[GATES] = gates_of(settings)


def common_settings(config: pytest.Config) -> Settings | None:
    """The settings of what is no comparison of two dumps; `None` where no option is about it.

    Raises `AccError`.
    """
    given = {name: value for name, value in options.values(config).items() if name in options.SHARED}
    if not given:
        return None
    from ..settings import Settings

    return Settings.from_values(given)


def gated(config: pytest.Config, row: Row) -> Row:
    """The row as the gates leave it."""
    for gate in config.stash[GATES]:
        row = gate.apply(row)
    return row
