"""The choices of a plan: which of their tokens differ and may, and which tokens of other pairs they reach."""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from ..dumps.base import StepLabel
from ..errors import AccError
from ..mapping.choices_above import ChoicesAbove, ReachingChoices
from ..mapping.pair import Pair, Plan
from ..mapping.reconcile import open_pair
from ..tensors.ref import readable
from .chosen import Chosen, chosen_of
from .token_rows import Sequences

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
