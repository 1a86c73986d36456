"""Tokens of padding: what nobody reads is not judged.

A query that sees nothing gets a mean, zeros or anything else, and nobody reads what comes of it. Only a mask
that both sides were fed alike hides a token, and only if no other mask of the step shows it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from ..dumps.base import StepLabel
from ..errors import AccError
from ..lazy_torch import torch
from ..mapping.fed import BLOCKED
from ..mapping.pair import Pair
from ..mapping.reconcile import open_pair
from ..tensors.ref import readable
from .after_ties import Left
from .token_rows import Sequences, token_rows


class Padding:
    """The tokens that the masks among `pairs` hide. Masks are read when they are first asked for."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._hidden = functools.cache(self._read)

    def of(self, graph: str, step: StepLabel, sequences: Sequences) -> torch.Tensor:
        """Whether each token of these sequences is padding."""
        return self._hidden(graph, step).get(sequences, torch.zeros(sequences.tokens, dtype=torch.bool))

    def left(self, graph: str, step: StepLabel, shape: tuple[int, ...]) -> Left | None:
        """The rest of a result of a step; `None` where nobody can tell which rows of it are padding."""
        for sequences, hidden in self._hidden(graph, step).items():
            rows = token_rows(shape, sequences) if shape[1:3].count(sequences.length) < 2 else None
            if rows is not None and rows.shape and len(rows.tokens) >= sequences.tokens:
                padded = int(hidden.sum())
                return Left(0, sequences.tokens - padded, rows.without(hidden), padded)
        return None

    def _read(self, graph: str, step: StepLabel) -> Mapping[Sequences, torch.Tensor]:
        """The tokens of a step that are padding, by what its sequences may be."""
        inputs = [pair for pair in self._pairs if pair.fed and (pair.graph, pair.step) == (graph, step)]
        ids = [readable(pair.golden.refs[0]) for pair in inputs if pair.fed == "token ids"]
        batches = {(1, *header.shape)[-2] for header in ids if header is not None and header.shape}
        # The mask of an encoder says nothing of the tokens of its decoder.
        if len(batches) != 1 or any("coder_" in pair.golden.slot for pair in inputs):
            return {}
        hidden: dict[Sequences, torch.Tensor] = {}
        for pair in (pair for pair in inputs if pair.fed == "mask" and "attention_mask" in pair.golden.slot):
            try:
                compared = open_pair(pair).comparisons
            except (AccError, OSError):
                continue  # masks of two forms say nothing; others may
            sides = [side for comparison in compared for side in (comparison.golden, comparison.mine)]
            masks = [side.read(0, math.prod(side.shape)).reshape(side.shape) for side in sides]
            if not all(torch.equal(masks[0], mask) for mask in masks):
                return {}
            if (tokens := _padding(masks[0], *batches)) is not None:
                sequences, tokens = Sequences(*tokens.shape), tokens.reshape(-1)
                hidden[sequences] = tokens & hidden.get(sequences, tokens)
        return {sequences: tokens for sequences, tokens in hidden.items() if bool(tokens.any())}


def _padding(mask: torch.Tensor, batch: int) -> torch.Tensor | None:
    """The tokens that a mask hides: of a mask `[batch, tokens]` where it is 0, of one `[batch, heads, tokens,
    tokens]` those that see nothing and that nobody sees.

    `None` for one of another meaning: it hides a whole sequence, or from itself a token that others see.
    """
    if mask.dim() == 4 and mask.shape[-1] == mask.shape[-2] and mask.shape[0] in (1, batch):
        visible = (mask > BLOCKED / 2 if mask.is_floating_point() else mask != 0).any(1).expand(batch, -1, -1)
        hidden = ~(visible.any(1) | visible.any(2))
        meaningful = bool((hidden | visible.diagonal(dim1=1, dim2=2)).all())
    else:
        hidden = mask == 0
        meaningful = mask.dim() == 2 and len(mask) == batch and not mask.is_floating_point()
    return hidden if meaningful and not bool(hidden.all(-1).any()) else None
