"""The tokens of every step of a dump, by what came before them in their sequences.

A model that only looks back computes the same of a token wherever the step begins and whatever else is in the
batch. So rows of two dumps meet by their contexts: a whole sequence in one pass, its prompt in chunks, and
its answer token by token have the same contexts, in other steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from .engine_views import Stretch, TokenLayout
from .token_order import TokenSequence, sequences_of

_NOTHING = 0
"""The context before the first token of a sequence."""
_MOST_STREAMS = 4096
"""Sequences that a later step may go on with; the newest of more."""
_MOST_TOKENS = 1 << 20
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

    def known(self, context: int, tokens: Sequence[int]) -> bool:
        """Whether these tokens came behind that context before."""
        for token in tokens:
            following = self.of(context, token)
            if following is None:
                return False
            context = following
        return True

    def length(self, context: int) -> int:
        """How many tokens a context has."""
        return self._lengths[context]

    def of_length(self, length: int) -> Sequence[int]:
        """The contexts of so many tokens."""
        return self._of_length.get(length, ())


@dataclass(slots=True)
class _Stream:
    """A sequence as far as it has run: its last context, its length, and how many steps had tokens of it."""

    context: int
    length: int = 0
    steps: int = 0


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
    """What the steps of a dump tell of their tokens, in the order of the steps."""

    contexts: Contexts
    _open: list[_Stream] = field(default_factory=list)
    _steps: list[list[_Piece]] = field(default_factory=list)

    def run(self, layouts: Sequence[TokenLayout | None], others: TokenLayout | None) -> None:
        """Go through the steps. `others` is how the other dump lays out its first step."""
        self._open, self._steps = [], []
        total = 0
        for layout in layouts:
            found = sequences_of(layout, others or layout) if layout is not None else []
            if layout is not None and layout.lengths is None and len(layout.shape) == 1:
                found = [part for sequence in found for part in self._apart(sequence)]
            total += sum(len(sequence.rows) for sequence in found)
            if total > _MOST_TOKENS:
                found = []
            self._steps.append(self._step(found))

    def of_step(self, number: int, layout: TokenLayout | None) -> TokenLayout | None:
        """The layout of a step with the contexts of its tokens; `None` where none of them is known."""
        pieces = self._steps[number]
        if layout is None or not any(piece.contexts for piece in pieces):
            return None
        many = len(pieces) > 1
        return replace(
            layout,
            contexts=tuple(() if many and piece.is_filling else tuple(_stretches(piece)) for piece in pieces),
        )

    def _step(self, found: Sequence[TokenSequence]) -> list[_Piece]:
        wanted: dict[int, int] = defaultdict(int)
        for number, sequence in enumerate(found):
            wanted[self._start(sequence, number, len(found))] += 1
        taken: list[_Stream] = []
        pieces = []
        for number, sequence in enumerate(found):
            start = self._start(sequence, number, len(found))
            stream = self._stream(sequence, start, wanted[start], taken)
            wanted[start] -= 1
            pieces.append(self._piece(sequence, stream))
            if stream is not None:
                taken.append(stream)
        rest = [stream for stream in self._open if not any(stream is one for one in taken)]
        self._open = [*taken, *rest][:_MOST_STREAMS]
        return pieces

    def _apart(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        """The sequences of rows whose positions go up by one, of which nothing else tells where one ends: one
        goes on no further than the other dump has it, where that has another one to go on with."""
        begin, start = 0, sequence.start
        if start is None or not sequence.ids:
            yield sequence
            return
        here = self._going_on(start)
        for place, token in enumerate(sequence.ids):
            following = {after for context in here if (after := self.contexts.of(context, token)) is not None}
            if here and not following:
                others = self._going_on(start + place)
                following = {after for one in others if (after := self.contexts.of(one, token)) is not None}
                if following:
                    yield _part(sequence, begin, place)
                    begin = place
            here = following
        yield _part(sequence, begin, len(sequence.ids))

    def _going_on(self, length: int) -> set[int]:
        """The contexts of so many tokens that a step may go on with."""
        return {stream.context for stream in self._open if stream.length == length} if length else {_NOTHING}

    def _start(self, sequence: TokenSequence, number: int, count: int) -> int:
        """Where a sequence goes on; -1 where nothing tells."""
        if sequence.start is not None:
            return sequence.start
        if len(sequence.rows) != 1 or not self._steps:
            return 0
        before = self._steps[-1]
        stream = before[number].stream if len(before) == count else None
        return stream.length if stream is not None else -1

    def _stream(
        self, sequence: TokenSequence, start: int, wanted: int, taken: Sequence[_Stream]
    ) -> _Stream | None:
        """The stream that a sequence goes on with; `None` where several might be it."""
        if start <= 0 or not sequence.ids:
            return _Stream(_NOTHING) if not start and sequence.ids else None
        going_on = [
            stream
            for stream in self._open
            if stream.length == start and not any(stream is other for other in taken)
        ]
        if not going_on:
            known = [c for c in self.contexts.of_length(start) if self.contexts.known(c, sequence.ids)]
            return _Stream(known[0], start) if len(known) == 1 else None
        known_here = [stream for stream in going_on if self.contexts.known(stream.context, sequence.ids)]
        if len({stream.context for stream in known_here}) == 1:
            return known_here[0]
        # A batch keeps its order from step to step.
        same = len({stream.context for stream in going_on}) == 1
        return going_on[0] if same or len(going_on) == wanted else None

    def _piece(self, sequence: TokenSequence, stream: _Stream | None) -> _Piece:
        if stream is None:
            return _Piece(None)
        context, contexts = stream.context, []
        for token in sequence.ids:
            context = self.contexts.after(context, token)
            contexts.append(context)
        stream.context, stream.length = context, stream.length + len(contexts)
        stream.steps += 1
        return _Piece(stream, sequence.rows, contexts)


def _part(sequence: TokenSequence, begin: int, end: int) -> TokenSequence:
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
