"""The tests that pytest's cache leaves out of a run (`--lf`, `--sw`): they do not run, but are known.

Whether a failure is a root depends on what is above it. `-k`, `-m` and `--deselect` are people's word that
nothing else is to be looked at. With `--lf` and `--sw` the question is the one of the run before, so what
the cache leaves out is judged where a failing pair needs it; else a root would become inherited, or what
inherits a root, by the mere choice of tests.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

PLUGINS = ("lfplugin", "stepwiseplugin")
"""Names of pytest's plugins that deselect by its cache."""
LEFT_OUT = "acc_left_out"
"""Name of ours."""


def left_out_of(config: pytest.Config) -> LeftOut | None:
    """A plugin that notes the tests that the cache leaves out of this run, if it may leave out any."""
    failed, stepwise = (bool(config.getoption(option, False)) for option in ("lf", "stepwise"))
    return LeftOut(stepwise) if failed or stepwise else None


class LeftOut:
    """A plugin that keeps the tests which the cache has deselected, in `items`.

    `--lf` deselects around all other hooks, so after people's own selection; `--sw` (`stepwise`) before it,
    all tests up to one, of which people may have deselected some as well.
    """

    def __init__(self, stepwise: bool) -> None:
        self.items: list[pytest.Item] = []
        self._stepwise = stepwise
        self._open: list[pytest.Item] = []
        self._chosen = False

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Note when people's own selection is done."""
        self._open, self._chosen = list(items), False
        yield
        self._chosen = True

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Keep what the cache has deselected."""
        gone = set(items)
        if self._chosen or (self._stepwise and self._open[: len(items)] == list(items)):
            self.items += items
        self._open = [item for item in self._open if item not in gone]
