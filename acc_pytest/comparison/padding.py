"""Tokens of padding: what nobody reads is not judged.

A query that sees nothing gets a mean, zeros or anything else; and no other token reads what comes of it. Only
a mask that both sides were fed alike hides a token, and only if nothing that the run was fed says otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from ..dumps.base import StepLabel
from ..errors import AccError
from ..mapping.fed import BLOCKED, EXACT
from ..mapping.pair import Pair
from ..mapping.reconcile import open_pair
from ..tensors.ref import readable
from .after_ties import Left
from .token_rows import Sequences, token_rows

_Hidden = Mapping[Sequences, torch.Tensor]


class Padding:
    """The tokens that the masks among `pairs` hide, by graph and step; masks are read when first asked for."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._of_step = functools.cache(self._read)

    def of(self, pair: Pair, sequences: Sequences) -> torch.Tensor:
        """Whether each token of these sequences is padding."""
        none = torch.zeros(sequences.tokens, dtype=torch.bool)
        return self._of_step(pair.graph, pair.step).get(sequences, none)

    def left(self, pair: Pair, shape: tuple[int, ...]) -> Left | None:
        """What padding leaves of a pair of results; `None` where it has no rows of padding."""
        if pair.fed in EXACT or pair.golden.tokens or pair.golden.experts:
            return None
        return self.left_of(pair.graph, pair.step, shape)

    def left_of(self, graph: str, step: StepLabel, shape: tuple[int, ...]) -> Left | None:
        """The same of a tensor of a step that has a row for each token, in one way only."""
        for sequences, hidden in self._of_step(graph, step).items():
            rows = token_rows(shape, sequences) if shape[1:3].count(sequences.length) < 2 else None
            if (
                rows is not None
                and rows.shape
                and len(rows.tokens) >= sequences.tokens
                and bool(hidden.any())
            ):
                return Left(0, sequences.tokens, rows.without(hidden), int(hidden.sum()))
        return None

    def _read(self, graph: str, step: StepLabel) -> _Hidden:
        fed = [pair for pair in self._pairs if pair.fed and (pair.graph, pair.step) == (graph, step)]
        ids = [readable(pair.golden.refs[0]) for pair in fed if pair.fed == "token ids"]
        batches = {(1, *header.shape)[-2] for header in ids if header is not None and header.shape}
        # The mask of an encoder says nothing of the tokens of its decoder.
        if len(batches) != 1 or any("coder_" in pair.golden.slot for pair in fed):
            return {}
        hidden: dict[Sequences, torch.Tensor] = {}
        for pair in fed:
            if pair.fed != "mask" or "attention_mask" not in pair.golden.slot:
                continue
            try:
                comparisons = open_pair(pair).comparisons
            except (AccError, OSError):
                continue  # masks of two forms say nothing; others may
            for each in comparisons:
                golden, mine = (
                    side.read(0, math.prod(side.shape)).reshape(side.shape)
                    for side in (each.golden, each.mine)
                )
                if not torch.equal(golden, mine):
                    return {}
                for sequences, tokens in _hidden(golden, *batches):
                    hidden[sequences] = tokens & hidden.get(sequences, tokens)
        return hidden


def _hidden(mask: torch.Tensor, batch: int) -> Iterator[tuple[Sequences, torch.Tensor]]:
    """The tokens that a mask hides: of a mask `[batch, tokens]` where it is 0, of one `[batch, heads, tokens,
    tokens]` those that see nothing and that nobody sees.

    None of a mask that hides a whole sequence, or a token from itself that others see: it says something else.
    """
    if mask.dim() == 4 and mask.shape[-1] == mask.shape[-2] and mask.shape[0] in (1, batch):
        floats = mask.is_floating_point()
        seen = (mask > BLOCKED / 2 if floats else mask != 0).any(1).expand(batch, -1, -1)
        hidden = ~(seen.any(1) | seen.any(2))
        if not bool((hidden | seen.diagonal(dim1=1, dim2=2)).all()):
            return
    elif mask.dim() == 2 and mask.shape[0] == batch and not mask.is_floating_point():
        hidden = mask == 0
    else:
        return
    if not bool(hidden.all(1).any()):
        yield Sequences(*hidden.shape), hidden.reshape(-1)
