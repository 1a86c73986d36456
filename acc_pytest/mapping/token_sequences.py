"""The sequences of a step: which rows are theirs, their token ids, and where in the sequence they begin.

Told by the mask of a padded batch, and by lengths and positions where sequences follow each other.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..base.imports import torch
from ..errors import AccError
from ..tensors.ref import TensorRef
from .pair import BLOCKED
from .views import Stretch, TokenLayout

_MOST = 1 << 22
"""Token ids that are looked at; no step has more."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """The rows of one sequence, its ids (empty where they are not known), and its first position."""

    rows: Sequence[int]
    ids: Sequence[int]
    start: int | None = None


def sequences_of(side: TokenLayout, opposite: TokenLayout) -> list[TokenSequence]:
    """The sequences of a step by its ids, mask, positions and lengths, else by the `opposite` layout."""
    ids = _numbers(side.ids)
    count = math.prod(side.shape)
    if not 0 < count <= _MOST or (ids is not None and len(ids) != count):
        return []
    tokens = ids or []
    if len(side.shape) > 1:
        return list(_padded(side, tokens))
    starts = _numbers(side.positions) or []
    starts = starts if len(starts) == count else []
    borders = _borders(side, count, starts, opposite)
    return [
        TokenSequence(range(low, high), tokens[low:high], starts[low] if starts else None)
        for low, high in itertools.pairwise(borders)
    ]


def _padded(side: TokenLayout, ids: Sequence[int]) -> Iterator[TokenSequence]:
    count = math.prod(side.shape)
    length = side.shape[0] if side.turned else side.shape[-1]
    batch = count // length
    masked = _masked(side, batch, length)
    positions = _numbers(side.positions) or []
    positions = positions * batch if len(positions) == length else positions
    for number in range(batch):
        first, tokens = number * length, ids[number * length : (number + 1) * length]
        rows = range(number, count, batch) if side.turned else range(first, first + length)
        if masked is not None:
            places = [place for place, is_token in enumerate(masked.real[number]) if is_token]
            start = masked.before[number] if masked.tells_start else None
            real_ids = [tokens[place] for place in places] if tokens else []
            yield TokenSequence([rows[place] for place in places], real_ids, start)
        else:
            yield TokenSequence(rows, tokens, positions[first] if len(positions) == count else None)


@dataclass(frozen=True, slots=True)
class _Masked:
    """Tokens of a batch that are no padding, and the number before them in each sequence, if it says so."""

    real: list[list[bool]]
    before: list[int]
    tells_start: bool


def _masked(side: TokenLayout, batch: int, length: int) -> _Masked | None:
    """The mask of a batch by sequence; `None` without one."""
    mask = _opened(side.mask)
    if mask is None or mask.dim() not in (2, 4) or mask.shape[0] != batch or mask.shape[-1] < length:
        return None
    if mask.dim() == 4 and mask.shape[-2] < length:
        return None
    visible = mask > BLOCKED / 2 if mask.is_floating_point() and mask.dim() == 4 else mask != 0
    if mask.dim() == 2:
        real, before = visible[:, -length:], visible[:, :-length].sum(-1)
    else:
        real = visible[:, 0, -length:, -length:].diagonal(dim1=-2, dim2=-1)
        before = visible[:, 0, -1].sum(-1) - real.sum(-1)
    if not bool(real.any(-1).all()):
        return None
    return _Masked(real.tolist(), before.clamp(min=0).tolist(), mask.shape[-1] > 1)


def _borders(side: TokenLayout, count: int, positions: Sequence[int], opposite: TokenLayout) -> list[int]:
    """Rows where sequences that follow each other begin, and the end of the last one."""
    if (borders := borders_by_lengths(side)) is not None:
        return borders
    if positions:
        breaks = [row for row in range(1, count) if positions[row] != positions[row - 1] + 1]
        return [0, *breaks, count]
    if len(opposite.shape) > 1 and count % opposite.shape[-1] == 0:
        return list(range(0, count + 1, opposite.shape[-1]))
    return [0, count]


def borders_by_lengths(side: TokenLayout) -> list[int] | None:
    """The borders of sequences that follow each other by their lengths, or by where they begin; `None` where
    these are not of the tokens of this step."""
    lengths, count = _numbers(side.lengths) or [], math.prod(side.shape)
    if not lengths or len(side.shape) > 1:
        return None
    if len(lengths) == count:
        return list(range(count + 1))
    if sum(lengths) == count and min(lengths) > 0:
        return [0, *itertools.accumulate(lengths)]
    rising = len(lengths) > 1 and sorted(set(lengths)) == lengths
    return lengths if rising and lengths[0] == 0 and lengths[-1] == count else None


def counts_anew(ref: TensorRef) -> bool:
    """Whether whole numbers count tokens of several sequences, each from 0: positions, whatever they are
    called. A sequence of one token is none here, for zeros may be anything."""
    numbers = _numbers(ref) or [1]
    counting = all(n == before + 1 or (n == 0 and before) for before, n in itertools.pairwise(numbers))
    return counting and numbers[0] == 0 < numbers[-1] and numbers.count(0) > 1


def _numbers(ref: TensorRef | None) -> list[int] | None:
    tensor = _opened(ref)
    if tensor is None or tensor.is_floating_point() or tensor.is_complex():
        return None
    return tensor.reshape(-1).tolist()


def _opened(ref: TensorRef | None) -> torch.Tensor | None:
    try:
        tensor = ref.open() if ref is not None else None
    except (AccError, OSError):
        return None
    return tensor if tensor is not None and 0 < tensor.numel() <= _MOST * 64 else None


# The tokens of every step of a dump, by what came before them in their sequences.
#
# A model that only looks back computes the same of a token wherever the step begins and whatever else is in
# the batch. So rows of two dumps meet by their contexts: a whole sequence in one pass, its prompt in
# chunks, and its answer token by token have the same contexts, in other steps.


_NOTHING = 0
"""The context before the first token of a sequence."""
_MOST_STREAMS = 1024
"""Sequences that a later step may go on with; the newest of more. A step of more is not looked at."""
_MOST_TOKENS = 1 << 18
"""Tokens of all steps of a dump that are looked at."""


class Contexts:
    """Numbers of contexts, the same for both dumps."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = {}
        self._lengths = [0]
        self._of_length: dict[int, list[int]] = defaultdict(list, {0: [_NOTHING]})

    def after(self, context: int, token: int) -> int:
        """The context of a token behind another one; it is given a number where it is new."""
        key = (context, token)
        if key not in self._next:
            self._next[key] = len(self._lengths)
            length = self._lengths[context] + 1
            self._of_length[length].append(len(self._lengths))
            self._lengths.append(length)
        return self._next[key]

    def of(self, context: int, token: int) -> int | None:
        """The context of a token behind another one, if it came there before."""
        return self._next.get((context, token))

    def contains(self, context: int, tokens: Sequence[int]) -> bool:
        """Whether these tokens came behind that context before."""
        for token in tokens:
            following = self.of(context, token)
            if following is None:
                return False
            context = following
        return True

    def length(self, context: int) -> int:
        """The number of tokens of a context."""
        return self._lengths[context]

    def of_length(self, length: int) -> Sequence[int]:
        """The contexts of `length` tokens."""
        return self._of_length.get(length, ())


@dataclass(slots=True)
class _Stream:
    """A sequence as far as it has run: its last context, its length, how many steps had tokens of it, and the
    `last` of them."""

    context: int
    length: int = 0
    steps: int = 0
    last: int = -1


@dataclass(slots=True)
class _Piece:
    """The tokens that a step has of a stream: their rows and contexts."""

    stream: _Stream | None
    rows: Sequence[int] = ()
    contexts: Sequence[int] = ()

    @property
    def is_filling(self) -> bool:
        """Whether it may fill up a captured batch: the only token of its sequence."""
        return self.stream is not None and self.stream.length == self.stream.steps == 1


@dataclass(slots=True)
class TokenStreams:
    """The streams that the tokens of a dump belong to, step by step."""

    contexts: Contexts
    _open: list[_Stream] = field(default_factory=list)
    _steps: list[list[_Piece]] = field(default_factory=list)
    _lost: bool = False
    """Whether a stream was in doubt, so that the length of none can be relied on."""

    def run(self, layouts: Sequence[TokenLayout | None], opposite: TokenLayout | None) -> None:
        """Go through the steps. `opposite` is how the other dump lays out its first step."""
        self._open, self._steps, self._lost = [], [], False
        total = 0
        for layout in layouts:
            total += math.prod(layout.shape) if layout is not None else 0
            is_counted = layout is not None and total <= _MOST_TOKENS
            sequences = sequences_of(layout, opposite or layout) if layout is not None and is_counted else []
            if len(sequences) > _MOST_STREAMS:
                sequences = []
            elif layout is not None and len(layout.shape) == 1 and borders_by_lengths(layout) is None:
                sequences = self._apart(sequences)
            self._steps.append(self._step(sequences))

    def of_step(self, number: int, layout: TokenLayout | None) -> TokenLayout | None:
        """The layout of a step with the contexts of its tokens; `None` where none of them is known."""
        pieces = self._steps[number]
        if layout is None or not any(piece.contexts for piece in pieces):
            return None
        many = len(pieces) > 1 and len(layout.shape) == 1
        return replace(
            layout,
            contexts=tuple(() if many and piece.is_filling else tuple(_stretches(piece)) for piece in pieces),
        )

    def _step(self, sequences: Sequence[TokenSequence]) -> list[_Piece]:
        chosen = self._streams(sequences)
        pieces = [self._piece(sequence, chosen.get(number)) for number, sequence in enumerate(sequences)]
        streams = [piece.stream for piece in pieces if piece.stream is not None]
        ids = {id(stream) for stream in streams}
        self._open = [*streams, *(stream for stream in self._open if id(stream) not in ids)][:_MOST_STREAMS]
        return pieces

    def _apart(self, sequences: Sequence[TokenSequence]) -> list[TokenSequence]:
        """The sequences of rows whose positions go up by one, cut where one ends: a sequence goes on no
        further than in the other dump, where that has another one to go on with. None where one may go on
        or another one may."""
        ends = [self._ends(sequence) for sequence in sequences]
        if any(places is None for places in ends):
            self._lost = True
            return []
        return [
            _cut(sequence, begin, end)
            for sequence, places in zip(sequences, ends)
            for begin, end in itertools.pairwise((0, *(places or ()), len(sequence.rows)))
        ]

    def _ends(self, sequence: TokenSequence) -> list[int] | None:
        """Places in a stretch of rows where another sequence goes on; `None` where that is not sure."""
        start, ends = sequence.start, list[int]()
        if start is None or len(sequence.ids) < 2:
            return ends
        current = self._behind(self._going_on(start), sequence.ids[0])
        for place, token in enumerate(sequence.ids[1:], start=1):
            following, rivals = (
                self._behind(contexts, token) for contexts in (current, self._going_on(start + place))
            )
            if current and rivals - following:
                if following:
                    return None
                ends.append(place)
                following = rivals
            current = following
        return ends

    def _behind(self, contexts: Iterable[int], token: int) -> set[int]:
        return {after for context in contexts if (after := self.contexts.of(context, token)) is not None}

    def _going_on(self, length: int) -> set[int]:
        """The contexts of `length` tokens that a step may go on with."""
        return {stream.context for stream in self._open if stream.length == length} if length else {_NOTHING}

    def _start(self, sequence: TokenSequence, number: int, count: int) -> int:
        """The length of the stream that a sequence goes on with; -1 where nothing says. Several tokens that
        begin no sequence of the other dump go on with the only one that goes on so there."""
        if sequence.start is not None:
            return sequence.start
        if len(sequence.rows) != 1 or not self._steps:
            begins = self.contexts.contains(_NOTHING, sequence.ids)
            fitting = [] if begins else self._fitting(sequence, self._open)
            return fitting[0].length if len(fitting) == 1 else 0
        before = self._steps[-1]
        stream = before[number].stream if len(before) == count else None
        return stream.length if stream is not None else -1

    def _streams(self, sequences: Sequence[TokenSequence]) -> dict[int, _Stream]:
        """The stream that each sequence goes on with, by its number; of none where several might be it."""
        chosen: dict[int, _Stream] = {}
        by_start: dict[int, dict[int, TokenSequence]] = defaultdict(dict)
        for number, sequence in enumerate(sequences):
            if sequence.ids:
                by_start[self._start(sequence, number, len(sequences))][number] = sequence
        for start, group in by_start.items():
            if not start:
                chosen |= {number: _Stream(_NOTHING) for number in group}
            elif start > 0 and not self._lost:
                free = [stream for stream in self._open if stream.length == start]
                chosen |= self._gone_on(group, free) if free else self._begun_before(group, start)
                self._lost |= bool(free) and any(number not in chosen for number in group)
        return chosen

    def _gone_on(self, sequences: Mapping[int, TokenSequence], free: list[_Stream]) -> dict[int, _Stream]:
        """Each sequence with one of the `free` streams, that have come as far: as the other dump has it, else
        in the order that they had in the step before."""
        in_order = self._in_order(sequences, free)
        is_ambiguous = len({stream.context for stream in free}) == 1
        if is_ambiguous or not all(self._fitting(sequence, free) for sequence in sequences.values()):
            return in_order or dict(zip(sequences, free if len(free) == 1 else ()))
        chosen = self._by_tokens(sequences, free)
        used = {id(stream) for stream in chosen.values()}
        pending = {number: in_order.get(number) for number in sequences if number not in chosen}
        in_turn = {
            n: stream for n, stream in pending.items() if stream is not None and id(stream) not in used
        }
        return chosen | in_turn if len(in_turn) == len(pending) else chosen

    def _in_order(self, sequences: Mapping[int, TokenSequence], free: list[_Stream]) -> dict[int, _Stream]:
        """The streams of the step before, one by one, where it had as many."""
        last = [stream for stream in free if stream.last == len(self._steps) - 1]
        return dict(zip(sequences, last)) if len(last) == len(sequences) else {}

    def _by_tokens(self, sequences: Mapping[int, TokenSequence], free: list[_Stream]) -> dict[int, _Stream]:
        """The streams of those sequences whose tokens fit to one context alone among the free ones."""
        chosen: dict[int, _Stream] = {}
        pending, progress = dict(sequences), True
        while pending and progress:
            progress = False
            for number, sequence in list(pending.items()):
                fits = self._fitting(sequence, free)
                if len({stream.context for stream in fits}) == 1:
                    chosen[number], progress = fits[0], True
                    free = [stream for stream in free if stream is not fits[0]]
                    del pending[number]
        return chosen

    def _fitting(self, sequence: TokenSequence, free: list[_Stream]) -> list[_Stream]:
        """The streams behind which the tokens of a sequence came before."""
        return [stream for stream in free if self.contexts.contains(stream.context, sequence.ids)]

    def _begun_before(self, sequences: Mapping[int, TokenSequence], start: int) -> dict[int, _Stream]:
        """Sequences whose first tokens are in no step of this dump, as far as the other has only one such."""
        chosen: dict[int, _Stream] = {}
        for number, sequence in sequences.items():
            contexts = [c for c in self.contexts.of_length(start) if self.contexts.contains(c, sequence.ids)]
            if len(contexts) == 1:
                chosen[number] = _Stream(contexts[0], start)
        return chosen

    def _piece(self, sequence: TokenSequence, stream: _Stream | None) -> _Piece:
        if stream is None:
            return _Piece(None)
        context, contexts = stream.context, []
        for token in sequence.ids:
            context = self.contexts.after(context, token)
            contexts.append(context)
        stream.context, stream.length = context, stream.length + len(contexts)
        stream.steps, stream.last = stream.steps + 1, len(self._steps)
        return _Piece(stream, sequence.rows, contexts)


def _cut(sequence: TokenSequence, begin: int, end: int) -> TokenSequence:
    start = None if sequence.start is None else sequence.start + begin
    return TokenSequence(sequence.rows[begin:end], sequence.ids[begin:end], start)


def _stretches(piece: _Piece) -> Iterator[Stretch]:
    """Rows and contexts that go up together."""
    first = 0
    for place in range(1, len(piece.contexts) + 1):
        together = place < len(piece.contexts) and (
            piece.rows[place] - piece.rows[first] == place - first
            and piece.contexts[place] - piece.contexts[first] == place - first
        )
        if not together:
            yield Stretch(piece.rows[first], piece.contexts[first], place - first)
            first = place
