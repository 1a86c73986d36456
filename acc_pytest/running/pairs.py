"""The base of modes with a plan: a test for each pair, and one for each node without a partner."""

from __future__ import annotations

import abc
import functools
import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import pytest

from ..base.reason import Reason
from ..base.vocabulary import INCOMPLETE
from ..judging.threshold import JudgeContext
from ..mapping.pair import WEIGHTS, explain
from ..metrics.native.library import VARIABLE, chosen, described
from ..options.marks import op_mark, unmapped_mark
from ..reporting.failure_text import WIDTH
from ..reporting.recorder import unmapped_reason, unmapped_row
from ..reporting.texts import REASON, message, near, on_screen, printable
from ..tensors.location import shown_at
from .mode import GeneratedTest, Mode, Naming, TestFailed, together
from .run import gated
from .run_report import open_views

if TYPE_CHECKING:
    from ..dumps.torch_model import Outline
    from ..judging.judges import Judge
    from ..judging.standards import Standard
    from ..judging.threshold import ThresholdRule
    from ..mapping.pair import Pair, Plan, Unmapped
    from ..noise.counterparts import NoisePlan
    from ..reference.recomputation import Recomputer
    from ..reporting.row import Row
    from ..reporting.view import Run, View
    from .mode import GeneratedItem


_MAP_IT = "map it with a [mapping] table or --acc-op-mapping-file, or use acc_unmapped skip"
_DUMP_IT = "dump it again, or leave it out of the run with -m 'not acc_unmapped' or --deselect"


@dataclass(frozen=True, slots=True, eq=False)
class PairTest(GeneratedTest):
    """The test of one pair; `number` is its place in the plan."""

    mode: PairMode
    number: int
    pair: Pair

    needs_torch: ClassVar[bool] = False

    @property
    def headline(self) -> str:
        return f"{self.pair.id} at {self.pair.layer} of step {self.pair.step}"

    @property
    def marks(self) -> Sequence[pytest.Mark]:
        pair = self.pair
        op_type = pair.mine.op_type or pair.golden.op_type
        return (op_mark(op_type, pair.level, pair.layer, pair.step, pair.policy),)

    @property
    def keywords(self) -> Sequence[str]:
        """`-k q_proj` finds what a golden module became. Its own name only: `layers.0` is that of mine."""
        return self.pair.golden.node.rpartition(".")[2], self.pair.mine.op_type

    @property
    def context(self) -> JudgeContext:
        return JudgeContext.of(self.pair)

    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        """Compare, and find the cause of a failure."""
        return [self.mode.causes.examine(item)]

    def lost_row(self, reason: str) -> Row:
        from ..comparison import incomparable, pair_row

        return incomparable(
            pair_row(self.pair, self.node_id, self.number), Reason("not compared: {}", reason)
        )

    def files(self) -> Iterable[str]:
        return (ref.path for side in (self.pair.golden, self.pair.mine) for ref in side.refs)


@dataclass(frozen=True, slots=True, eq=False)
class UnmappedTest(GeneratedTest):
    """The test of a node without a partner: `ait_dump::step0::unmapped::golden.model.layers.0.x`.

    There is nothing to compare, so it says why not: it is skipped, or fails where `acc_unmapped fail` asks
    for a whole mapping, and where the dump names what is not there. Its row is written by the process that
    has the plan. It is numbered after the pairs.
    """

    mode: PairMode
    number: int
    node: Unmapped

    compares: ClassVar[bool] = False

    @property
    def headline(self) -> str:
        what = INCOMPLETE if self.node.why == INCOMPLETE else "unmapped"
        return f"{what} {self.names[-1]} of step {self.node.step}"

    @property
    def marks(self) -> Sequence[pytest.Mark]:
        node = self.node
        return (unmapped_mark(node.side, node.op_type, node.step, node.why),)

    @property
    def keywords(self) -> Sequence[str]:
        return (self.node.op_type,)

    @property
    def skip_reason(self) -> str:
        return "" if self.fails else self._reason

    @property
    def fails(self) -> bool:
        """Whether it fails where it runs; else it is skipped."""
        return self.mode.settings.unmapped == "fail" or self.node.why == INCOMPLETE

    @property
    def runs(self) -> bool:
        """Whether there is a test to run (`acc_unmapped ignore`)."""
        return self.mode.settings.unmapped != "ignore" or self.fails

    @property
    def _reason(self) -> str:
        return printable(unmapped_reason(self.node), REASON)

    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        """Fail with the reason."""
        node = self.node
        lines = [self._reason, f"{node.side}: {node.op_type} {node.node} {node.slot}".rstrip()]
        if node.ref is not None:
            lines.append(f"file: {node.ref}")
        lines.append(_DUMP_IT if node.why == INCOMPLETE else _MAP_IT)
        raise TestFailed("\n".join(printable(line, WIDTH) for line in lines))

    def lost_row(self, reason: str) -> Row:
        return self.row(strict=True)

    def row(self, *, strict: bool = False) -> Row:
        """Its row; `strict`: the test fails."""
        return unmapped_row(self.node, self.number, self.node_id if self.runs else "", strict=strict)


class Nodes(Protocol):
    """The nodes of a cluster, which measure pairs."""

    @property
    def recomputer(self) -> Recomputer:
        """The recomputer of mine's operators there."""

    def row(self, item: GeneratedItem, test: PairTest) -> Row | None:
        """The row of a pair before any gate; `None` where this process is to judge it itself."""


@dataclass(eq=False)
class PairMode(Mode):
    """A mode with a plan. `noise` is what a noise run has of golden's tensors.

    `stored_rows` are the rows that are judged again, by pair; `None` where dumps are compared. `nodes`
    measure the pairs of generated tests while these run; `None` where this process does.
    """

    plan: Plan = field(kw_only=True)
    noise: NoisePlan | None = field(default=None, kw_only=True)
    stored_rows: Mapping[int, Row] | None = field(default=None, kw_only=True)
    nodes: Nodes | None = field(default=None, init=False)

    @property
    def root(self) -> str:
        return self.naming.root

    @functools.cached_property
    def naming(self) -> Naming:
        """The names of the pairs."""
        return Naming.of(self.plan)

    @functools.cached_property
    def pairs(self) -> tuple[PairTest, ...]:
        """A test for each pair, of stored ones for each that has a row."""
        naming, pairs = self.naming, self.plan.pairs
        numbers = range(len(pairs)) if self.stored_rows is None else self.stored_rows
        return tuple(PairTest(self, naming.names(pairs[number]), number, pairs[number]) for number in numbers)

    @functools.cached_property
    def unmapped(self) -> tuple[UnmappedTest, ...]:
        """A test for each node without a partner, also where they do not run (`acc_unmapped ignore`)."""
        nodes, first = self.plan.unmapped, len(self.plan.pairs)
        named = enumerate(zip(self.naming.of_unmapped(nodes), nodes), start=first)
        return tuple(UnmappedTest(self, names, number, node) for number, (names, node) in named)

    @functools.cached_property
    def tests(self) -> tuple[GeneratedTest, ...]:
        """Steps and ranks one after the other, each in execution order, then its nodes without a partner."""
        unmapped = [test for test in self.unmapped if test.runs]
        return together((*self.pairs, *unmapped), lambda test: test.names[:-2])

    @property
    def shared_out(self) -> Sequence[GeneratedTest]:
        return (*self.pairs, *self.unmapped)

    def header(self) -> list[str]:
        """The lines of the header: both dumps, the mapping (on request line by line), and the rules."""
        judging = judging_lines(self.judges.standard, self.noise, self.plan)
        first = self.explanation() or on_screen(header_lines(self.plan))
        return [*first, *on_screen(judging), *on_screen(kernel_lines())]

    def explanation(self) -> list[str]:
        """The plan in words (`--acc-explain-mapping`)."""
        if not self.settings.explain_mapping:
            return []
        return list(map(message, explain(self.plan)))

    def described(self, run: Run) -> Run:
        return replace(super().described(run), plan=self.plan, floor=self.settings.min_coverage)

    def views(self) -> list[View]:
        return open_views(self.settings, csv=True)

    def early_rows(self) -> Iterator[Row]:
        """The rows of unmapped nodes; but those whose tests fail have theirs when these have run."""
        later = set(self.chosen)
        for test in self.unmapped:
            if self.has_share_in(test.number) and not (test.fails and test in later):
                yield test.row()

    def late_rows(self, recorded: Container[str]) -> Iterator[Row]:
        """The rows of unmapped nodes whose tests were to fail, but did not run."""
        for test in self.chosen:
            if isinstance(test, UnmappedTest) and test.fails and test.node_id not in recorded:
                yield test.row()

    def begin(self, session: pytest.Session, left_out: Sequence[pytest.Item]) -> None:
        """Whether a failure is inherited depends on which pairs run."""
        from .causes import Causes

        self.causes = Causes(self, session, left_out)

    def examined(self, item: GeneratedItem) -> Row:
        """The row of a pair as its test judges it; it has no cause yet."""
        test = item.test
        assert isinstance(test, PairTest)
        row = None if self.nodes is None else self.nodes.row(item, test)
        if row is None:
            return self.judged(item, test.pair, test.number, ignored=item.config_mark)
        make_judge = functools.partial(self.judges.judge, item, test.pair, ignored=item.config_mark)
        return gated(item.config, self.judges.levelled(row, make_judge))

    def judge_by(self, rules: tuple[ThresholdRule, ...] | None) -> Judge:
        """The judge of pairs with these rules; `None`: with those of the config files alone."""
        return self.judges.judge_by(self.settings.rules if rules is None else rules)

    def judged(
        self,
        item: pytest.Item,
        pair: Pair,
        number: int,
        *,
        ignored: pytest.Mark | None = None,
        arguments: Mapping[str, float | None] | None = None,
    ) -> Row:
        """The row of one pair, `number` its place in the plan, judged as the test `item` asks for."""
        make_judge = functools.partial(self.judges.judge, item, pair, ignored=ignored, arguments=arguments)
        row = self.compared(pair, number, item.nodeid, make_judge)
        return gated(item.config, self.judges.levelled(row, make_judge))

    def all_rows(self, rules: Sequence[ThresholdRule], gate: Callable[[Row], Row]) -> Iterator[Row]:
        """See `Mode.all_rows`: of all pairs, then of nodes without a partner."""
        from ..diagnosis.run import explained
        from .causes import lifts

        judge = self.judges.judge_by((*self.settings.rules, *rules))
        compared = (self.compared(test.pair, test.number, test.node_id, lambda: judge) for test in self.pairs)
        rows = [gate(self.judges.levelled(row, lambda: judge)) for row in compared]
        strict = self.settings.inherited == "fail"
        yield from explained(self.plan, rows, self.recomputer, lifts(self.settings, self.plan), strict)
        yield from (test.row(strict=test.fails) for test in self.unmapped)

    @abc.abstractmethod
    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """The row of one pair."""

    @property
    @abc.abstractmethod
    def recomputer(self) -> Recomputer:
        """The recomputer of mine's operators, which tells an own error from an inherited one."""


# The lines before the first test: what is compared, what was decided, how much could be mapped.


NOTE = 2000
"""Characters of a note, which may name what lies in a dump."""


def header_lines(plan: Plan) -> list[str]:
    """Kinds, paths and sizes of both dumps, the notes of the plan, and what was left over."""
    steps = len({pair.step for pair in plan.pairs})
    left = Counter(node.side for node in plan.unmapped)
    golden, mine = (_path(root) for root in (plan.golden_root, plan.mine_root))
    return [
        Reason("acc golden: {} {} ({})", plan.golden_kind, golden, _nodes(plan.golden_total)),
        Reason("acc mine: {} {} ({})", plan.mine_kind, mine, _nodes(plan.mine_total)),
        *map(_note, (*plan.notes, *_warnings(plan))),
        Reason(
            "acc mapping: {} in {}; unmapped: {} of golden, {} of mine",
            _pairs(len(plan.pairs)),
            Reason("{} step", 1) if steps == 1 else Reason("{} steps", steps),
            left["golden"],
            left["mine"],
        ),
    ]


def replay_lines(plan: Plan, operators: int) -> list[str]:
    """The lines on replay: the dump, its notes, the number of operator tensors."""
    tensors = Reason("{} tensor", 1) if operators == 1 else Reason("{} tensors", operators)
    return [
        Reason("acc mine: {} {}", plan.mine_kind, _path(plan.mine_root)),
        *map(_note, plan.notes),
        Reason("acc replay: {} of operators, computed again from their own inputs", tensors),
    ]


def outline_line(outline: Outline) -> str:
    """The line on operators that are computed again unasked: which, and the option that turns it off."""
    what = "modules" if outline.traced else "linear layers"
    if outline.model:
        installed = importlib.util.find_spec("transformers")
        of_model = Reason("modules of {}", printable(outline.model, NOTE))
        what = of_model if installed else Reason("{} (transformers are not installed)", what)
    return Reason(
        "acc replay: {} of mine computed again, as golden's dump outlines them (--acc-replay=off)", what
    )


NO_MODEL = Reason(
    "acc replay: no module of mine is computed again, since golden's dump does not outline its model; "
    "--acc-model CHECKPOINT (golden's) computes them: then faults of twice the rounding of a module are seen"
)
"""The line where bounds of the comparison are all that is held against modules of mine."""


def judging_lines(standard: Standard, noise: NoisePlan | None, plan: Plan) -> list[str]:
    """By which standard pairs are judged, unless it is the default one, and of what the noise is known."""
    lines: list[str] = []
    if standard.name != "default" or noise is not None:
        lines.append(Reason("acc standard: {}: {}", standard.name, standard.about))
    if noise is not None:
        kind, place = printable(noise.kind, NOTE), _path(noise.root)
        if noise.is_profile:
            results = sum(pair.fed not in WEIGHTS for pair in plan.pairs)
            count = Reason("{} of {}", noise.count, _pairs(results))
            lines.append(Reason("acc noise profile: {}, {} ({})", kind, count, place))
        else:
            count = Reason("has the golden tensor of {} of {}", noise.count, _pairs(len(plan.pairs)))
            lines.append(Reason("acc noise: {} {} ({})", kind, place, count))
        if noise.note:
            lines.append(_note(noise.note))
    return lines


def kernel_lines() -> list[str]:
    """Why the kernel in Python measures, unless it was asked for. Raises `SettingsError`."""
    python_requested = os.environ.get(VARIABLE) == "python"
    if chosen() is not None or python_requested:
        return []
    return [Reason("acc kernel: {}", printable(described(), NOTE))]


def _warnings(plan: Plan) -> list[str]:
    """The lines on reading these files with the torch that is installed."""
    files = {ref.path for pair in plan.pairs[:1] for side in (pair.golden, pair.mine) for ref in side.refs}
    if not any(path.endswith((".pth", ".pt")) for path in files):
        return []
    from ..tensors.torch_file import pickle_advice

    advice = pickle_advice()
    return [advice] if advice else []


def _path(path: str) -> str:
    return printable(near(shown_at(path)), NOTE, name=NOTE)


def _nodes(count: int) -> Reason:
    return Reason("{} dumped node", 1) if count == 1 else Reason("{} dumped nodes", count)


def _pairs(count: int) -> Reason:
    return Reason("{} pair", 1) if count == 1 else Reason("{} pairs", count)


def _note(text: str) -> Reason:
    return Reason("acc note: {}", printable(text, NOTE))
