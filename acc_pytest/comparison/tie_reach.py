"""Which tokens of a pair come after a tie: those that a tie reaches, and whose error comes from above.

A tie changes its token, and by way of attention later ones. Where a pair fails, such tokens are left out and
the others are judged as ever. A tie excuses a token of a pair only where what the pair computes from is off
there as well, and only as far as one operator may make that larger: attention hands on the mean of what it
reads. So an operator that is wrong is not excused by a tie above it.

Only the tensors of choices and of what a failing pair computes from are read, in whichever process runs it.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..dumps.base import StepLabel
from ..errors import AccError, ShapesDiffer
from ..mapping.choices import ChoicesAbove, ReachingChoices, is_choice
from ..mapping.module_flow import CACHES
from ..mapping.pair import EXACT, Pair, Plan
from ..mapping.reconcile import Comparison, as_stored, open_pair
from ..tensors.ref import readable
from .choices import Chosen, chosen_of
from .tokens import (
    ExpertCalls,
    Left,
    Padding,
    Sequences,
    TokenRows,
    levels,
    routed_rows,
    strangers,
    token_rows,
)

AMPLIFIED = 4.0
"""How many times the share of T that its inputs have may be that of a token: `diagnosis.relative_errors`."""
OFF = 0.5
"""The share of T from which on a token counts as moved by a tie: rounding alone stays below it."""
RARE = 0.25
"""The share of tokens that may look at one moved token above all, so that they are off by more than the mean
of what they see. An operator that is wrong is so for most."""
STRANGERS = 0.25
"""Share of rows that may lie beside another row of golden's in an order that is taken for the right one."""
REMEMBERED = 4096
"""Pairs whose tokens are remembered, for those that compute from them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """The layout of a step's tokens in the tensors of a pair: their rows (`None` where nobody can tell), the
    share of T of each token, and the tokens `unlike` that chose otherwise: their rows do not go together.
    `by_choice`: their choices say which row is which token's, of those that have any."""

    sequences: Sequences
    rows: TokenRows | None
    level: torch.Tensor
    unlike: torch.Tensor
    by_choice: bool = False

    @classmethod
    def unknown(cls, sequences: Sequences) -> _Layout:
        """The layout of a tensor whose rows nobody can tell."""
        return cls(sequences, None, torch.zeros(0), torch.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class _Explained:
    """The share of T that each token may have: a `usual` one, which sees the mean of what it reads, and at
    `peak`, where it sees but one token; and which tokens are `moved` themselves in what the pair reads."""

    usual: torch.Tensor
    peak: torch.Tensor
    moved: torch.Tensor


class AfterTies:
    """The tokens that the ties of a plan reach."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._choices = ChoicesAbove(plan)
        self._tied = TiedChoices(plan, self._choices)
        self._experts = ExpertCalls(plan)
        self._padding = Padding(plan.pairs)
        self._shifts = functools.lru_cache(REMEMBERED)(self._shifts_of)

    def reached(self, number: int) -> torch.Tensor | None:
        """The tokens of the choice `number` that a tie above reaches; `None` where none does."""
        return self._tied.reached_rows(number)

    def hidden_choice(self, number: int) -> str:
        """The name of a choice of which only statistics are known, which differ: the pair itself, or that of
        its whole numbers or of the experts whose tokens it holds; empty without one."""
        pair = self._plan.pairs[number]
        choices = [number] if is_choice(pair) and not pair.fed else []
        header = readable(pair.golden.refs[0])
        is_whole = header is not None and header.dtype.format is None
        if not pair.fed and (is_whole or self._experts.holds(pair)):
            choices += self._choices.of(number).same
        for choice in (self._plan.pairs[choice] for choice in choices):
            headers = [readable(side.refs[0]) for side in (choice.golden, choice.mine)]
            if any(header is not None and header.payload == "statistics" for header in headers):
                golden, mine = (header and header.statistics for header in headers)
                if golden != mine:
                    return choice.mine.name
        return ""

    def left(self, number: int, comparison: Comparison | None) -> Left | None:
        """The rest of a failing pair, whose sides may be of other shapes; these are no single tensors where
        `comparison` is `None`.

        `None` where no tie excuses it, and no token of it is padding.
        """
        left, pair = self._left_by_ties(number, comparison), self._plan.pairs[number]
        picked = pair.fed in EXACT or pair.golden.tokens or self._experts.holds(pair)
        if left is not None or comparison is None or not comparison.alike or picked:
            return left
        return self._padding.left(pair.graph, pair.step, comparison.golden.shape)

    def _left_by_ties(self, number: int, comparison: Comparison | None) -> Left | None:
        choices, pair = self._choices.of(number), self._plan.pairs[number]
        if not choices or is_choice(pair):
            return None
        layout = self._layout(number, comparison)
        reached = self._tied.reached(number, choices, layout.sequences)
        padding = self._padding.of(pair.graph, pair.step, layout.sequences)
        if not bool((reached | padding).any()):
            return None
        explained = self._explained(number, layout)
        if layout.rows is None:
            # Rows of the tokens of one expert, or of the whole run: nothing says which of them are which.
            excused = bool(reached.any() and (explained.peak > 0).any())
            return Left(layout.sequences.tokens, layout.sequences.tokens) if excused else None
        present = torch.zeros_like(reached).index_fill_(0, layout.rows.tokens, value=True) | layout.unlike
        if not layout.by_choice:
            padding = padding & present.all()  # one row of a sequence may be that of any of its tokens
        off = reached & (layout.level > OFF)
        usual = off & (layout.level <= AMPLIFIED * explained.usual)
        rare = off & ~usual & (layout.level <= AMPLIFIED * explained.peak)
        few = int((off & ~usual).sum()) <= max(1.0, RARE * int(reached.sum()))
        out = (usual | rare if few else usual) | padding
        padded, after = (int((which & present).sum()) for which in (padding, out & ~padding))
        by_token = layout.by_choice and not torch.equal(layout.rows.golden, layout.rows.mine)
        if not (after or padded or by_token) or bool((layout.unlike & ~out).any()):
            return None
        rows = layout.rows.without(out)
        if comparison is not None and bool((layout.level[rows.tokens] <= 1).all()):
            # Rows that hold with all their keys: only what is said of single keys may leave some out.
            moved = (out | explained.moved).reshape(-1, layout.sequences.length).any(0)
            rows = rows.without_keys(comparison.golden, moved)
        tokens = int(present.sum()) - padded
        if not len(rows.tokens):
            return Left(tokens, tokens, None, padded, by_token)
        return Left(after, tokens, rows, padded, by_token)

    def _layout(self, number: int, comparison: Comparison | None) -> _Layout:
        """The layout of a pair's tensors."""
        pair = self._plan.pairs[number]
        several = self._tied.sequences(pair)
        if comparison is None:
            return _Layout.unknown(several[0])
        for choice in reversed(self._choices.of(number).same) if self._experts.of_one(pair) else ():
            if (layout := self._at_expert(number, choice, comparison)) is not None:
                return layout
        if not comparison.alike or self._experts.holds(pair):
            return _Layout.unknown(several[0])
        golden, mine = comparison.golden, comparison.mine
        if any(word in pair.mine.slot for word in CACHES):
            several = [*self._tied.until(pair), *several]
        for sequences in several:
            if (rows := token_rows(golden.shape, sequences)) is not None:
                level = levels(pair, golden, mine, rows, sequences.tokens)
                return _Layout(sequences, rows, level, torch.zeros_like(level, dtype=torch.bool))
        for choice in reversed(self._choices.of(number).same):
            if (layout := self._routed(number, choice, comparison)) is not None:
                return layout
        return _Layout.unknown(several[0])

    def _routed(self, number: int, choice: int, comparison: Comparison) -> _Layout | None:
        """The layout of a tensor with one row for each choice of a token; `None` where nobody can tell.

        Of the orders that bring golden and mine together it is the one in which ties explain most.
        """
        chosen = self._tied.chosen(choice)
        if chosen is None:
            return None
        possible = routed_rows(comparison.golden.shape, chosen.golden, chosen.mine)
        return self._nearest(number, choice, comparison, possible, chosen.differing.any(-1), STRANGERS)

    def _at_expert(self, number: int, choice: int, comparison: Comparison) -> _Layout | None:
        """The layout of a tensor of one expert; `None` where its rows are not as many as chose it."""
        chosen = self._tied.chosen(choice)
        if chosen is None:
            return None
        possible, apart = self._experts.rows(self._plan.pairs[number], (chosen.golden, chosen.mine))
        layout = self._nearest(number, choice, comparison, possible, apart, 1.0)
        return None if layout is None else replace(layout, by_choice=True)

    def _nearest(
        self,
        number: int,
        choice: int,
        comparison: Comparison,
        possible: Sequence[TokenRows],
        unlike: torch.Tensor,
        most: float,
    ) -> _Layout | None:
        """The layout with the rows, among those that are possible, that have the fewest strangers, of which
        there is at most this share; of several the one in which ties and padding explain most."""
        golden, mine = comparison.golden, comparison.mine
        apart = [strangers(golden, mine, rows) for rows in possible]
        if not apart or min(apart) > most:
            return None
        sequences = self._tied.sequences_of(choice, len(unlike))
        layouts = []
        for rows in (rows for rows, share in zip(possible, apart) if share == min(apart)):
            level = levels(self._plan.pairs[number], golden, mine, rows, len(unlike))
            layouts.append(_Layout(sequences, rows, level.masked_fill_(unlike, torch.inf), unlike))
        if len(layouts) == 1:
            return layouts[0]
        pair = self._plan.pairs[number]
        usual = AMPLIFIED * self._explained(number, layouts[0]).usual
        judged = ~self._padding.of(pair.graph, pair.step, sequences)
        return min(layouts, key=lambda layout: float(layout.level[judged & (layout.level > usual)].sum()))

    def _explained(self, number: int, layout: _Layout) -> _Explained:
        """Which share of T each token of a pair may have for what the pair computes from."""
        pair, sequences = self._plan.pairs[number], layout.sequences
        peak = usual = torch.zeros(sequences.tokens, dtype=torch.float64)
        moved = usual > 0
        for parent in self._plan.parents[number]:
            parent_sequences, shifts = self._shifts(parent)
            if not bool(shifts.any()):
                continue
            producer = self._plan.pairs[parent]
            if parent_sequences != sequences or (producer.step, producer.graph) != (pair.step, pair.graph):
                handed, largest = _over_sequences(shifts, parent_sequences, sequences)
            elif self._choices.mixes(number, parent):
                handed, largest = self._attended(number, shifts, sequences)
                moved |= shifts > 0
            else:
                handed = largest = shifts
            usual, peak = torch.maximum(usual, handed), torch.maximum(peak, largest)
        for choice in self._choices.beside(number):
            chosen, rows = self._tied.chosen(choice), layout.rows
            if chosen is not None and rows is not None and rows.shape == chosen.golden.shape[1:]:
                tie_shares = _infinite(self._tied.ties(choice, sequences).reshape(-1))
                usual, peak = torch.maximum(usual, tie_shares), torch.maximum(peak, tie_shares)
        return _Explained(usual, peak, moved)

    def _attended(
        self, number: int, shifts: torch.Tensor, sequences: Sequences
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Over what each token sees the root mean square, and the largest."""
        if self._tied.sees_all(number):
            return _over_sequences(shifts, sequences, sequences)
        visible = torch.arange(1, sequences.length + 1)
        rows = shifts.reshape(-1, sequences.length)
        usual = (rows.square().cumsum(-1) / visible).sqrt()
        return torch.maximum(shifts, usual.reshape(-1)), rows.cummax(-1).values.reshape(-1)

    def _shifts_of(self, number: int) -> tuple[Sequences, torch.Tensor]:
        """The share of T of each token of a pair that a tie moved; 0 of all others."""
        pair, choices = self._plan.pairs[number], self._choices.of(number)
        if is_choice(pair):
            excused = self._tied.excused(number)
            return self._tied.sequences_of(number, len(excused)), _infinite(excused)
        if not choices:
            return Sequences(1, 1), torch.zeros(1)
        try:
            layouts = [self._layout(number, comparison) for comparison in open_pair(pair).comparisons]
        except ShapesDiffer:
            layouts = [self._layout(number, as_stored(pair))]
        except (AccError, OSError):
            layouts = [self._layout(number, None)]
        sequences = layouts[0].sequences
        reached = self._tied.reached(number, choices, sequences)
        if any(layout.rows is None for layout in layouts):
            return sequences, _infinite(reached)
        level = torch.stack([layout.level for layout in layouts]).amax(0)
        return sequences, torch.where(reached & (level > OFF), level, 0.0)


def _over_sequences(
    shifts: torch.Tensor, of: Sequences, sequences: Sequences
) -> tuple[torch.Tensor, torch.Tensor]:
    """The root mean square over each sequence, and the largest, for all of its tokens; over all sequences
    where there are not as many."""
    rows = shifts.reshape(of.batch if of.batch == sequences.batch else 1, -1)
    statistics = rows.square().mean(-1).sqrt(), rows.amax(-1)
    usual, peak = (statistic.repeat_interleave(sequences.tokens // len(rows)) for statistic in statistics)
    return usual, peak


def _infinite(tokens: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(tokens), dtype=torch.float64).masked_fill_(tokens, torch.inf)


# The choices of a plan: which of their tokens differ and may, and which tokens of other pairs they reach.


_SEES_ALL = re.compile(r"(^|[./_])(encoder|vision|visual)", re.IGNORECASE)
"""Paths of networks whose attention has no causal mask."""


class TiedChoices:
    """Reads the tensors of choices, and what these were chosen from, once each."""

    def __init__(self, plan: Plan, choices: ChoicesAbove) -> None:
        self._plan = plan
        self._choices = choices
        self._chosen: dict[int, Chosen | None] = {}
        self._excused: dict[int, torch.Tensor] = {}

    def reached_rows(self, number: int) -> torch.Tensor | None:
        """The tokens of the choice `number` that a tie above reaches; `None` where none does."""
        reaching = self._choices.of(number)
        chosen = self.chosen(number) if reaching else None
        if chosen is None:
            return None
        reached = self.reached(number, reaching, self.sequences_of(number, len(chosen.golden)))
        return reached if bool(reached.any()) else None

    def reached(self, number: int, reaching: ReachingChoices, sequences: Sequences) -> torch.Tensor:
        """The tokens of a pair that ties among the choices `reaching` it reach."""
        reached = torch.zeros(sequences.batch, sequences.length, dtype=torch.bool)
        for choice in reaching.same:
            reached |= self.ties(choice, sequences)
        later = torch.zeros_like(reached)
        for choice in reaching.later:
            later |= self.ties(choice, sequences)
        if self.sees_all(number):
            reached |= later.any(-1, keepdim=True)
        else:
            reached |= later.cummax(-1).values
        for choice in reaching.every:
            reached |= self._sequences_with_ties(choice, sequences)
        return reached.reshape(-1)

    def ties(self, choice: int, sequences: Sequences) -> torch.Tensor:
        """The tokens `[batch, length]` whose choices differ and may; all where those are no tokens of this
        kind."""
        excused = self.excused(choice)
        shape = sequences.batch, sequences.length
        if len(excused) == sequences.tokens:
            return excused.reshape(shape)
        return excused.any().expand(shape)

    def _sequences_with_ties(self, choice: int, sequences: Sequences) -> torch.Tensor:
        """The tokens by a choice of an earlier step: of a sequence all, or none."""
        excused = self.excused(choice)
        if len(excused) % sequences.batch:
            return excused.any().expand(1, 1)
        return excused.reshape(sequences.batch, -1).any(-1, keepdim=True)

    def sees_all(self, number: int) -> bool:
        """Whether attention there has no causal mask."""
        return bool(_SEES_ALL.search(self._plan.pairs[number].mine.node))

    def excused(self, choice: int) -> torch.Tensor:
        """The tokens whose choices differ and may: ties, and what comes after one."""
        for number in self._choices.choices:  # one after the other: each asks for those above it
            if number > choice:
                break
            if number not in self._excused:
                self._excused[number] = self._excused_of(number)
        return self._excused[choice]

    def _excused_of(self, choice: int) -> torch.Tensor:
        chosen = self.chosen(choice)
        if chosen is None or not bool(chosen.differing.any()):
            return torch.zeros(1 if chosen is None else len(chosen.golden), dtype=torch.bool)
        reached = self.reached_rows(choice)
        return chosen.ties if reached is None else chosen.excused(reached)

    def chosen(self, choice: int) -> Chosen | None:
        """The choices of both sides; `None` where a tensor cannot be read, or is no choice."""
        if choice not in self._chosen:
            self._chosen[choice] = _opened(self._plan.pairs[choice])
        return self._chosen[choice]

    def sequences_of(self, choice: int, tokens: int) -> Sequences:
        """The sequences of a choice's tokens."""
        possible = self.sequences(self._plan.pairs[choice])
        return next((sequences for sequences in possible if sequences.tokens == tokens), Sequences(1, tokens))

    def sequences(self, pair: Pair) -> Sequence[Sequences]:
        """The sequences that the tokens of a pair's step may be; at least one."""
        return self._sequences_of_step.get((pair.graph, pair.step)) or [Sequences(1, 1)]

    def until(self, pair: Pair) -> Sequence[Sequences]:
        """The sequences of a pair's step and of those before, whose tokens a cache holds."""
        until: list[Sequences] = []
        for (graph, step), (sequences, *_) in self._sequences_of_step.items():
            if graph == pair.graph and {sequences.batch} >= {earlier.batch for earlier in until}:
                total = sequences.length + (until[-1].length if until else 0)
                until.append(Sequences(sequences.batch, total))
            if (graph, step) == (pair.graph, pair.step):
                return until[-1:]
        return ()

    @functools.cached_property
    def _sequences_of_step(self) -> Mapping[tuple[str, StepLabel], list[Sequences]]:
        """The sequences of each graph and step: as its token ids say, else one of as many tokens as chose."""
        by_step: dict[tuple[str, StepLabel], list[Sequences]] = defaultdict(list)
        for pair in self._plan.pairs:
            if pair.fed == "token ids" and (header := readable(pair.golden.refs[0])) is not None:
                *batch, length = header.shape or (1,)
                by_step[pair.graph, pair.step].append(Sequences(math.prod(batch), length))
        for choice in self._choices.choices:
            pair, chosen = self._plan.pairs[choice], self.chosen(choice)
            possible = by_step[pair.graph, pair.step]
            if chosen is not None and all(sequences.tokens != len(chosen.golden) for sequences in possible):
                possible.append(Sequences(1, len(chosen.golden)))
        return by_step


def _opened(pair: Pair) -> Chosen | None:
    """The choices of both sides of a pair; `None` where they cannot be read, or chose nothing."""
    try:
        opened = open_pair(pair)
        return chosen_of(pair, opened.golden, opened.mine)
    except (AccError, OSError):
        return None
