"""The mode that compares two dumps: `--acc-golden` and `--acc-mine`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from .. import options
from ..errors import AccError
from ..imports import import_numpy
from ..mapping.carried import CARRIED
from ..session import planning
from ..tensors.header import looking_once
from ..tensors.stores.caches import is_mirrored
from .pairs import PairMode
from .replaying import (
    asks_for_replay,
    check_replay,
    is_unasked_of_atb,
    outlines_for,
    recomputer_for,
    unasked_of_atb,
)
from .run import RUN

if TYPE_CHECKING:
    from ..comparison.tie_reach import AfterTies
    from ..diagnosis.recomputation import Recomputer
    from ..dumps.torch_outline import Outline
    from ..ids import Naming
    from ..judging.judges import Judge
    from ..mapping.pair import Pair
    from ..reporting.row import Row

PAIR, RECOMPUTED = 0.7e-3, 1e-3
"""Seconds that a process takes for a pair, and for a small operator that is computed again."""


@dataclass(eq=False)
class ComparisonMode(PairMode):
    """Compares the pairs of two dumps."""

    doing: ClassVar[str] = "opening the comparison"
    noun: ClassVar[str] = "pairs"

    @classmethod
    def opened(cls, option_values: Mapping[str, Any]) -> ComparisonMode | None:
        """Open both dumps and map them."""
        if "from_rows" in option_values or not option_values.keys() & {"golden", "mine"}:
            return None
        if "golden" not in option_values:
            if asks_for_replay(option_values):
                return None
            raise AccError("--acc-mine needs --acc-golden too: a comparison has two sides")
        from ..settings import Settings

        settings = Settings.from_values(options.of(option_values))
        plan = planning.make_plan(settings)
        noise = planning.make_noise_plan(settings, plan)
        if noise is not None:
            settings = Settings.from_values(options.of(option_values), standard="three-way")
        mode = cls(settings, option_values, plan=plan, noise=noise)
        _ = mode.judges.custom  # a metric that cannot be loaded is a mistake to report before the first test
        check_replay(settings, plan)
        if settings.replay:
            _ = mode.recomputer  # nor a golden model that cannot be made
        return mode

    @property
    def pair_seconds(self) -> float | None:
        """Known, unless all operators are computed again, or metrics of the user's, or a store is read."""
        far = any(map(is_mirrored, (self.plan.golden_root, self.plan.mine_root)))
        if far or self.settings.replay or self._all_outlined or self.settings.metrics:
            return None
        return PAIR + RECOMPUTED if is_unasked_of_atb(self.settings, self.plan) else PAIR

    def header(self) -> list[str]:
        """The lines of every mode with a plan, and one where golden's dump outlines its model."""
        from ..reporting.header import outline_line
        from ..reporting.wrapping import on_screen

        lines = [outline_line(self._outlines[0])] if self._all_outlined else []
        return [*super().header(), *on_screen(lines)]

    def __getstate__(self) -> dict[str, Any]:
        """With golden's outlines: who receives the mode may have no golden to read them from."""
        return {**super().__getstate__(), "_outlines": self._outlines}

    @functools.cached_property
    def naming(self) -> Naming:
        from ..ids import Naming

        return Naming.of(self.plan)

    @functools.cached_property
    def _ties(self) -> AfterTies:
        """The reach of ties in this plan, remembered in this process."""
        from ..comparison.tie_reach import AfterTies

        return AfterTies(self.plan)

    @functools.cached_property
    def _compare(self) -> Callable[..., Row]:
        """`compare_pair`, for whose torch this process takes its share of the cores."""
        import_numpy()
        from ..comparison import compare_pair
        from ..threads import share_cores

        share_cores(self.settings.threads)
        return compare_pair

    @looking_once()
    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """Open, measure and judge the pair."""
        counterpart = self.noise.counterparts[number] if self.noise is not None else None
        row = self._compare(pair, make_judge, test_id, number, counterpart, lambda: self._ties)
        return self._replayed(row, number) if self._is_computed(pair, number) else row

    def _is_computed(self, pair: Pair, number: int) -> bool:
        """Whether an operator wrote the tensor of a pair: of this step, or of the one before that hands it
        on."""
        if pair.fed:
            return pair.fed == CARRIED and self._all_outlined and bool(self.plan.parents[number])
        return pair.mine.slot.startswith("output") or number in self.plan.gaps

    def _replayed(self, row: Row, number: int) -> Row:
        """The row of an operator with what replay found of it.

        Where that was not asked for, it says only what it knows or refuses, and of operators of ATB only
        which are wrong beyond doubt, of those that pass.
        """
        from ..diagnosis.recomputation import DOUBTS
        from ..diagnosis.replayed import with_replay
        from ..diagnosis.suspects import may_differ

        if self.settings.replay or self._all_outlined:
            replay = self.recomputer.of_pair(number)
            return with_replay(row, replay) if replay.outcome or replay.note or self.settings.replay else row
        if self._of_atb is None or row.verdict != "pass":
            return row
        replay = self._of_atb.of_pair(number)
        if not replay.is_beyond(DOUBTS) and may_differ(row, number, self.plan.pairs[number]):
            of_golden = self._of_atb.of_golden(number)
            replay = of_golden if of_golden.is_beyond(DOUBTS) else replay
        return with_replay(row, replay) if replay.is_beyond(DOUBTS) or replay.note else row

    @functools.cached_property
    def _of_atb(self) -> Recomputer | None:
        return unasked_of_atb(self.settings, self.plan, self._outlines)

    @functools.cached_property
    def _outlines(self) -> tuple[Outline, ...]:
        return outlines_for(self.settings, self.plan)

    @property
    def _all_outlined(self) -> bool:
        """Whether all modules are computed again as golden's dump outlines them."""
        return bool(self._outlines) and self.plan.mine_kind == "torch"

    @functools.cached_property
    def recomputer(self) -> Recomputer:
        return recomputer_for(self.settings, self.plan, self._outlines, self._of_atb)


def comparison_of(config: pytest.Config) -> ComparisonMode | None:
    """The comparison of two dumps of this run, if it has one."""
    run = config.stash.get(RUN, None)
    modes = () if run is None else run.modes
    return next((mode for mode in modes if isinstance(mode, ComparisonMode)), None)
