"""The mode without golden: `--acc-mine DUMP --acc-replay` is one test for each operator of mine.

The dump is mapped to itself, which gives its operators their names, layers and order. An operator that
cannot be computed again is a skipped test with the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from .. import options
from ..errors import SettingsError
from ..session import planning
from .pairs import PairMode, PairTest
from .replaying import asks_for_replay, check_replay, recomputer_for

if TYPE_CHECKING:
    from ..diagnosis.recomputation import Recomputer
    from ..ids import Naming
    from ..judging.judges import Judge
    from ..mapping.pair import Pair, Plan
    from ..reporting.row import Row

_NEEDS_GOLDEN = ("noise", "standard", "baseline", "update_baseline", "lock", "update_lock", "op_mapping_file")
"""Options that are about a comparison with golden."""


@dataclass(eq=False)
class ReplayMode(PairMode):
    """Computes the operators of one dump again, of the pairs `numbers` of its plan."""

    numbers: tuple[int, ...]

    doing: ClassVar[str] = "opening the dump whose operators are computed again"
    noun: ClassVar[str] = "operators"

    @classmethod
    def opened(cls, option_values: Mapping[str, Any]) -> ReplayMode | None:
        """Open the dump and map it to itself."""
        if (
            not asks_for_replay(option_values)
            or "mine" not in option_values
            or option_values.keys() & {"golden", "from_rows"}
        ):
            return None
        for name in _NEEDS_GOLDEN:
            if name in option_values:
                flag = f"--acc-{name.replace('_', '-')}"
                raise SettingsError(f"{flag} is for comparing with golden; add --acc-golden, or leave it out")
        from ..settings import Settings

        settings = Settings.from_values(options.of(option_values))
        self_plan = planning.make_plan(replace(settings, golden=settings.mine))
        numbers = tuple(
            number for number, pair in enumerate(self_plan.pairs) if _is_operator(self_plan, number, pair)
        )
        count = len(numbers)
        plan = replace(
            self_plan, golden_root="", golden_kind="", golden_total=0, golden_mapped=0, mine_total=count,
            mine_mapped=count, unmapped=(),
        )  # fmt: skip
        mode = cls(settings, option_values, numbers, plan=plan)
        check_replay(settings, plan)
        _ = mode.recomputer  # a model that cannot be made is a mistake to report before the first test
        return mode

    @functools.cached_property
    def naming(self) -> Naming:
        from ..ids import Naming

        return Naming.of(self.plan)

    @functools.cached_property
    def pairs(self) -> tuple[PairTest, ...]:
        """A test for each operator's tensor."""
        naming, pairs = self.naming, self.plan.pairs
        return tuple(PairTest(self, naming.names(pairs[n]), n, pairs[n]) for n in self.numbers)

    def header(self) -> list[str]:
        """The lines of the header: the dump that is computed again."""
        from ..reporting.header import replay_lines
        from ..reporting.wrapping import on_screen

        return list(on_screen(replay_lines(self.plan, len(self.numbers))))

    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """The operator's tensor beside the recomputed one. Imports torch."""
        from ..comparison.rows import pair_row
        from ..diagnosis.replayed import judged_by_replay
        from ..reporting.row import RowSide
        from ..threads import share_cores

        share_cores(self.settings.threads)
        row = replace(pair_row(pair, test_id, number), golden=RowSide())
        return judged_by_replay(row, self.recomputer.of_pair(number))

    @functools.cached_property
    def recomputer(self) -> Recomputer:
        return recomputer_for(self.settings, self.plan)


def _is_operator(plan: Plan, number: int, pair: Pair) -> bool:
    """Whether the tensor of a pair was written by an operator; graphs of ATB are their operators."""
    if pair.fed or (plan.mine_kind == "atb" and pair.level != "op"):
        return False
    return pair.mine.slot.startswith("output") or number in plan.gaps
