"""The mode that compares two dumps: `--acc-golden` and `--acc-mine`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from .. import options
from ..base.imports import import_numpy, without_collector
from ..base.vocabulary import OF_MODULES
from ..errors import AccError, SettingsError
from ..mapping.pair import CARRIED
from ..options.marks import op_mark
from ..reporting.row import RowSide
from ..reporting.texts import escaped, on_screen, quoted
from ..session import planning
from ..tensors.address import is_mirrored
from ..tensors.header import looking_once
from .causes import (
    asks_for_replay,
    check_replay,
    is_unasked_of_atb,
    outlines_for,
    recomputer_for,
    unasked_of_atb,
    with_values,
)
from .mode import SEPARATOR, GeneratedTest, Naming, together
from .pairs import NO_MODEL, PairMode, PairTest, outline_line, replay_lines
from .run import RUN, Judges, gated

if TYPE_CHECKING:
    from ..comparison.tie_reach import AfterTies
    from ..dumps.torch_model import Outline
    from ..gate.stored import StoredRun
    from ..judging.judges import Judge
    from ..mapping.pair import Pair, Plan
    from ..noise.along_depth import AlongDepth
    from ..reference.recomputation import Recomputer
    from ..reporting.row import Row
    from ..reporting.view import Run
    from .mode import GeneratedItem


PAIR, RECOMPUTED = 0.7e-3, 1e-3
"""Seconds that a process takes for a pair, and for a small operator that is computed again."""


@dataclass(eq=False)
class ComparisonMode(PairMode):
    """Compares the pairs of two dumps."""

    doing: ClassVar[str] = "opening the comparison"
    noun: ClassVar[str] = "pairs"

    @classmethod
    def takes(cls, option_values: Mapping[str, Any]) -> bool:
        alone = "mine" in option_values and not asks_for_replay(option_values)
        return "from_rows" not in option_values and ("golden" in option_values or alone)

    @classmethod
    def opened(cls, option_values: Mapping[str, Any]) -> ComparisonMode:
        """Open both dumps and map them."""
        if "golden" not in option_values:
            raise AccError("--acc-mine needs --acc-golden too: a comparison has two sides")
        from ..settings import Settings

        settings = Settings.from_values(options.of(option_values))
        plan = planning.make_plan(settings)
        noise = planning.make_noise_plan(settings, plan)
        if noise is not None:
            settings = Settings.from_values(options.of(option_values), standard="three-way")
        mode = cls(settings, option_values, plan=plan, noise=noise)
        mode.judges = Judges.of(settings)
        check_replay(settings, plan)
        if settings.replay:
            mode.operators = mode.make_recomputer()
        return mode

    @property
    def pair_seconds(self) -> float | None:
        """Known, unless all operators are computed again, or metrics of the user's, or a store is read."""
        far = any(map(is_mirrored, (self.plan.golden_root, self.plan.mine_root)))
        if far or self.settings.replay or self._all_outlined or self.settings.metrics:
            return None
        return PAIR + RECOMPUTED if is_unasked_of_atb(self.settings, self.plan) else PAIR

    def header(self) -> list[str]:
        """The lines of every mode with a plan, and one on modules that are computed again, or could be."""
        lines = [outline_line(self._outlines[0])] if self._all_outlined else []
        if not lines and self.plan.mine_kind in OF_MODULES and self.settings.replay is None:
            lines = [NO_MODEL]
        return [*super().header(), *on_screen(lines)]

    def __getstate__(self) -> dict[str, Any]:
        """With golden's outlines: who receives the mode may have no golden to read them from."""
        return {**super().__getstate__(), "_outlines": self._outlines}

    @functools.cached_property
    def _ties(self) -> AfterTies:
        """The reach of ties in this plan, remembered in this process."""
        from ..comparison.tie_reach import AfterTies

        return AfterTies(self.plan)

    @functools.cached_property
    def _compare(self) -> Callable[..., Row]:
        """`compare_pair`, for whose torch this process takes its share of the cores."""
        import_numpy()
        from ..base.threads import share_cores
        from ..comparison import compare_pair

        share_cores(self.settings.threads)
        return compare_pair

    @looking_once()
    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """Open, measure and judge the pair."""
        counterpart = self.noise.counterparts[number] if self.noise is not None else None
        compare = functools.partial(
            self._compare, pair, make_judge, test_id, number, counterpart, lambda: self._ties
        )
        known = pair.fed or (counterpart is not None and counterpart.exists)
        row = compare() if known else self._beside_layers_before(number, compare)
        return self._replayed(row, number) if self._is_computed(pair, number) else row

    def _beside_layers_before(self, number: int, compare: Callable[..., Row]) -> Row:
        """The row of a pair beside the layers before: what is beyond the errors of the residual stream may
        have those of the same tensor."""
        from ..comparison.rows import exceeds_layers_before, row_errors

        stream = self._along_depth.stream(number)
        row = compare(level=stream)
        if stream is not None and exceeds_layers_before(row):
            level = self._along_depth.beside_peers(number, stream)
            row = row if level == stream else compare(level=level)
        if (errors := row_errors(row)) is not None:
            self._along_depth.note(number, errors)
        return row

    @functools.cached_property
    def _along_depth(self) -> AlongDepth:
        """The errors of layers, remembered in this process."""
        from ..noise.along_depth import AlongDepth

        return AlongDepth(self.plan.pairs)

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
        from ..diagnosis.evidence import with_replay
        from ..diagnosis.inheritance import may_differ
        from ..reference.recomputation import DOUBTS

        if self.settings.replay or self._all_outlined:
            replay = self.operators.of_pair(number)
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
    def operators(self) -> Recomputer:
        """The recomputer of replay, whose outcomes stand in rows."""
        return self.make_recomputer()

    @functools.cached_property
    def recomputer(self) -> Recomputer:
        """That of `operators`, and what values show, which only evidence asks for."""
        return with_values(self.operators, self.plan)

    def make_recomputer(self) -> Recomputer:
        """The recomputer of mine's operators. Raises `AccError` where the golden model cannot be made."""
        return recomputer_for(self.settings, self.plan, self._outlines, self._of_atb)


def comparison_of(config: pytest.Config) -> ComparisonMode | None:
    """The comparison of two dumps of this run, if it has one."""
    run = config.stash.get(RUN, None)
    modes = () if run is None else run.modes
    return next((mode for mode in modes if isinstance(mode, ComparisonMode)), None)


# The mode without golden: `--acc-mine DUMP --acc-replay` is one test for each operator of mine.
#
# The dump is mapped to itself, which gives its operators their names, layers and order. An operator that
# cannot be computed again is a skipped test with the reason.


_NEEDS_GOLDEN = ("noise", "standard", "baseline", "update_baseline", "op_mapping_file", "weights")
"""Options that are about a comparison with golden."""
_OF_DUMPS = ("golden", "mine", "noise", "weights")


@dataclass(eq=False)
class ReplayMode(PairMode):
    """Computes the operators of one dump again, of the pairs `numbers` of its plan."""

    numbers: tuple[int, ...]

    doing: ClassVar[str] = "opening the dump whose operators are computed again"
    noun: ClassVar[str] = "operators"

    @classmethod
    def takes(cls, option_values: Mapping[str, Any]) -> bool:
        alone = "mine" in option_values and not option_values.keys() & {"golden", "from_rows"}
        return alone and asks_for_replay(option_values)

    @classmethod
    def opened(cls, option_values: Mapping[str, Any]) -> ReplayMode:
        """Open the dump and map it to itself."""
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
        mode.recomputer = recomputer_for(settings, plan)
        return mode

    @functools.cached_property
    def pairs(self) -> tuple[PairTest, ...]:
        """A test for each operator's tensor."""
        naming, pairs = self.naming, self.plan.pairs
        return tuple(PairTest(self, naming.names(pairs[n]), n, pairs[n]) for n in self.numbers)

    def header(self) -> list[str]:
        """The lines of the header: the dump that is computed again."""
        return list(on_screen(replay_lines(self.plan, len(self.numbers))))

    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """The operator's tensor beside the recomputed one. Imports torch."""
        from ..base.threads import share_cores
        from ..comparison.rows import pair_row
        from ..diagnosis.evidence import judged_by_replay

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


# The mode that judges rows again, without any dump: `--acc-from-rows`.
#
# Pairs are judged by the thresholds of this run. Tests that were not generated from pairs (of operators,
# people's own) keep their verdicts, for their bounds were set where they ran; baseline, known differences
# and lock hold for them too.


@dataclass(frozen=True, slots=True, eq=False)
class StoredTest(GeneratedTest):
    """A test that is none of a pair: all rows that it left, as they were judged when they were written."""

    mode: StoredRowsMode
    test_id: str

    @property
    def node_id(self) -> str:
        """The id may hold what pytest's cache and reports cannot."""
        return escaped(self.test_id)

    @property
    def headline(self) -> str:
        return self.names[-1]

    @property
    def marks(self) -> Sequence[pytest.Mark]:
        for row in self.mode.stored.unpaired[self.test_id]:
            if op_type := row.mine.op_type or row.golden.op_type:
                step = row.step if isinstance(row.step, int) else str(row.step) or "unknown"
                return (op_mark(op_type, row.level, row.layer, step, row.policy),)
        return ()

    @property
    def rerun(self) -> str:
        return f"{self.mode.rerun_command('-k')} {quoted(self.names[-1])}"

    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        from ..gate.rejudge import ungated

        return [gated(item.config, ungated(row)) for row in self.mode.stored.unpaired[self.test_id]]


@dataclass(eq=False)
class StoredRowsMode(PairMode):
    """Judges a run again from its files of rows."""

    stored: StoredRun

    doing: ClassVar[str] = "opening the rows that are judged again"

    @classmethod
    def takes(cls, option_values: Mapping[str, Any]) -> bool:
        return "from_rows" in option_values

    @classmethod
    def opened(cls, option_values: Mapping[str, Any]) -> StoredRowsMode:
        """Read the files of rows."""
        from ..gate.stored import stored_run
        from ..reporting.rows_file import read_rows
        from ..settings import Settings

        if dumps := [f"--acc-{side}" for side in _OF_DUMPS if side in option_values]:
            raise AccError(f"--acc-from-rows judges without dumps; leave {' and '.join(dumps)} out")
        with without_collector():
            stored = stored_run([read_rows(path) for path in option_values["from_rows"]])
        metrics = dict.fromkeys((*stored.metrics, *option_values.get("metrics", ())))
        values = {**options.of(option_values), "metrics": metrics}
        settings = Settings.from_values(values, standard=stored.standard)
        return cls(settings, option_values, stored, plan=stored.plan, stored_rows=stored.pairs)

    @functools.cached_property
    def judges(self) -> Judges:
        return Judges(self.settings)

    @functools.cached_property
    def naming(self) -> Naming:
        return Naming(self.plan.name, self.stored.ranks)

    @functools.cached_property
    def tests(self) -> tuple[GeneratedTest, ...]:
        """The tests of pairs, then of other rows, by the first name of their ids, in row order."""
        tests = []
        for test_id in self.stored.unpaired:
            root, _, name = escaped(test_id).partition(SEPARATOR)
            tests.append(StoredTest(self, (root, name or root), None, test_id))
        return (*super().tests, *together(tests, lambda test: test.names[0]))

    def described(self, run: Run) -> Run:
        return replace(super().described(run), title=self.stored.title)

    @property
    def lacks(self) -> Sequence[str]:
        return self.stored.incomplete

    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """Judge its stored numbers."""
        from ..gate.rejudge import rejudge

        return rejudge(self.stored.pairs[number], make_judge)

    @functools.cached_property
    def recomputer(self) -> Recomputer:
        """The results of the run that wrote the rows: there are no tensors here."""
        from ..diagnosis.evidence import stored_replay
        from ..reference.recomputation import StoredRecomputer

        replays = ((number, stored_replay(row)) for number, row in self.stored.pairs.items())
        return StoredRecomputer({number: replay for number, replay in replays if replay is not None})
