"""The mode that compares two dumps: `--acc-golden` and `--acc-mine`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from .. import options
from ..errors import AccError, SettingsError
from ..session import planning
from .pairs import PairMode
from .run import RUN

if TYPE_CHECKING:
    from ..diagnosis.recomputation import Recomputer
    from ..ids import Naming
    from ..judging.judges import Judge
    from ..mapping.pair import Pair
    from ..reporting.row import Row


@dataclass(eq=False)
class ComparisonMode(PairMode):
    """Compares the pairs of two dumps."""

    doing: ClassVar[str] = "opening the comparison"
    noun: ClassVar[str] = "pairs"

    @classmethod
    def opened(cls, given: Mapping[str, Any]) -> ComparisonMode | None:
        """Open both dumps and map them."""
        if "from_rows" in given or not given.keys() & {"golden", "mine"}:
            return None
        if "golden" not in given:
            raise AccError("--acc-mine needs --acc-golden too: a comparison has two sides")
        from ..settings import Settings

        settings = Settings.from_values(options.of(given))
        plan = planning.make_plan(settings)
        noise = planning.make_noise_plan(settings, plan)
        if noise is not None:
            settings = Settings.from_values(options.of(given), standard="three-way")
        mode = cls(settings, given, plan=plan, noise=noise)
        _ = mode.judges.custom  # a metric that cannot be loaded is a mistake to report before the first test
        mode.check_replay()
        return mode

    @functools.cached_property
    def naming(self) -> Naming:
        from ..ids import Naming

        return Naming.of(self.plan)

    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """Open, measure and judge the pair. Imports torch."""
        from ..comparison import compare_pair
        from ..threads import share_cores

        share_cores()
        counterpart = self.noise.counterparts[number] if self.noise is not None else None
        row = compare_pair(pair, make_judge, test_id, number, counterpart)
        written = pair.mine.slot.startswith("output") or number in self.plan.gaps
        if self.settings.replay is None or pair.fed or not written:
            return row
        from ..diagnosis.replayed import with_replay

        return with_replay(row, self.recomputer.of_pair(number))

    def check_replay(self) -> None:
        """Raises `AccError` where what replay needs is not there."""
        settings = self.settings
        if settings.replay is None:
            if settings.model:
                raise SettingsError("--acc-model needs --acc-replay: it is for computing operators again")
            return
        if self.plan.mine_kind != "torch":
            if settings.model:
                raise SettingsError(
                    f"--acc-model is for torch dumps, and mine is one of {self.plan.mine_kind}; leave it out"
                )
            return
        if not settings.model:
            raise SettingsError(
                "--acc-replay of a torch dump needs --acc-model FILE.py:FUNCTION, "
                "a function that returns the golden model"
            )
        _ = self.recomputer  # a model that cannot be made is a mistake to report before the first test

    @functools.cached_property
    def recomputer(self) -> Recomputer:
        from ..diagnosis.recomputation import Budget
        from ..diagnosis.recomputers import recomputer_of

        settings = self.settings
        if settings.replay is None:
            return recomputer_of(self.plan)
        return recomputer_of(self.plan, Budget(settings.replay, measured=True), settings.model)


def comparison_of(config: pytest.Config) -> ComparisonMode | None:
    """The comparison of two dumps of this run, if it has one."""
    return next((mode for mode in config.stash[RUN].modes if isinstance(mode, ComparisonMode)), None)
