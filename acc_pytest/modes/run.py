"""`AccRun`: all that a run of pytest has of ours, the same in the controller and in its workers."""

from __future__ import annotations

import functools
import pickle
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from ..tensors.stores.caches import caches_in_use, use_caches
from .judges import Judges

if TYPE_CHECKING:
    from ..gate.gate import Gate
    from ..reporting.row import Row
    from ..settings import Settings
    from .mode import Mode

CHANNEL = "acc_pytest"
"""Key of our bytes in xdist's `workerinput`."""


@dataclass
class AccRun:
    """The modes of a run (none where only people's own tests run), and what may change a verdict afterwards.

    `settings` is `None` where no option is about the run. `caches` are those in use in the controller.
    """

    modes: tuple[Mode, ...]
    settings: Settings | None
    gates: tuple[Gate, ...] = ()
    caches: tuple[str, ...] = ()

    @functools.cached_property
    def judges(self) -> Judges:
        """The judges of tests that no mode has made: `acc_compare` and its like."""
        if self.modes:
            return self.modes[0].judges
        from ..settings import Settings

        return Judges(self.settings or Settings.from_values({}))

    @functools.cached_property
    def packed(self) -> bytes:
        """The run as bytes for a worker."""
        sent = AccRun(self.modes, self.settings, self.gates, caches_in_use())
        return zlib.compress(pickle.dumps(sent), 1)


RUN = pytest.StashKey[AccRun]()
"""In `config.stash`."""


def received(config: pytest.Config) -> AccRun:
    """In a worker: the run that the controller has packed."""
    # Our own bytes from our own controller, never a file.
    run: AccRun = pickle.loads(zlib.decompress(config.workerinput[CHANNEL]))  # type: ignore[attr-defined]  # noqa: S301
    use_caches(run.caches)
    return run


def gated(config: pytest.Config, row: Row) -> Row:
    """The row as baseline, known differences and lock leave it."""
    for gate in config.stash[RUN].gates:
        row = gate.apply(row)
    return row
