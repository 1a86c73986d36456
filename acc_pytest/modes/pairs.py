"""The base of modes with a plan: a test for each pair, and one for each node without a partner."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import pytest

from ..marks import op_mark, unmapped_mark
from ..recording import REASON
from ..views import open_views
from ..vocabulary import INCOMPLETE
from .mode import GeneratedTest, Mode, TestFailed, together
from .run import gated

if TYPE_CHECKING:
    from ..diagnosis.recomputation import Recomputer
    from ..ids import Naming
    from ..judging.judges import Judge
    from ..judging.threshold import JudgeContext, ThresholdRule
    from ..mapping.pair import Pair, Plan, Unmapped
    from ..noise.counterparts import NoisePlan
    from ..reporting.row import Row
    from ..reporting.view import Run, View
    from .generated import GeneratedItem


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
        from ..judging.threshold import JudgeContext

        return JudgeContext.of(self.pair)

    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        """Compare, and find the cause of a failure."""
        return [self.mode.causes.examine(item)]

    def lost_row(self, reason: str) -> Row:
        from ..comparison import incomparable, pair_row

        return incomparable(pair_row(self.pair, self.node_id, self.number), f"not compared: {reason}")

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
        from ..reporting.printable import printable
        from ..reporting.recorder import unmapped_reason

        return printable(unmapped_reason(self.node), REASON)

    def rows(self, item: GeneratedItem) -> Sequence[Row]:
        """Fail with the reason."""
        from ..reporting.failure_text import WIDTH
        from ..reporting.printable import printable

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
        from ..reporting.recorder import unmapped_row

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

    @property
    @abc.abstractmethod
    def naming(self) -> Naming:
        """The names of the pairs."""

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
        from ..reporting.header import header_lines, judging_lines, kernel_lines
        from ..reporting.wrapping import on_screen

        judging = judging_lines(self.judges.standard, self.noise, self.plan)
        first = self.explanation() or on_screen(header_lines(self.plan))
        return [*first, *on_screen(judging), *on_screen(kernel_lines())]

    def explanation(self) -> list[str]:
        """The plan in words (`--acc-explain-mapping`)."""
        if not self.settings.explain_mapping:
            return []
        from ..mapping.explain import explain
        from ..reporting.printable import message

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
        judges = self.judges
        make_judge = functools.partial(judges.judge, item, pair, ignored=ignored, arguments=arguments)
        row = self.compared(pair, number, item.nodeid, make_judge)
        return gated(item.config, judges.levelled(row, make_judge))

    @abc.abstractmethod
    def compared(self, pair: Pair, number: int, test_id: str, make_judge: Callable[[], Judge]) -> Row:
        """The row of one pair."""

    @property
    @abc.abstractmethod
    def recomputer(self) -> Recomputer:
        """The recomputer of mine's operators, which tells an own error from an inherited one."""
