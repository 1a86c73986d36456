"""Where in a packed tensor a piece lies, on every rank: by the widths of the pieces and the numbers of ranks.

`qkv` of H query and K key heads of D elements on P ranks is `H/P*D | max(1, K/P)*D | max(1, K/P)*D` wide on
each: with fewer key heads than ranks, neighbours hold the same one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from .engine_views import ColumnRange


def range_by_pieces(
    index: int, packed: int, ranks: int, pieces: Sequence[int], piece_ranks: int
) -> ColumnRange | None:
    """Piece `index` of a tensor that is `packed` wide on each of `ranks`, by the widths of the `pieces` of
    the other side on each of its `piece_ranks`; `None` where these make up no such tensor."""
    for copies, other_copies in itertools.product(
        _copies(ranks, len(pieces)), _copies(piece_ranks, len(pieces))
    ):
        whole = [width * piece_ranks // held for width, held in zip(pieces, other_copies)]
        widths = [width * held // ranks for width, held in zip(whole, copies)]
        exact = all(width * held % ranks == 0 for width, held in zip(whole, copies))
        if exact and sum(widths) == packed:
            start = sum(widths[:index])
            return ColumnRange(start, start + widths[index])
    return None


def range_by_own(index: int, packed: int, first: int | None) -> ColumnRange | None:
    """Piece `index` of two equal ones, or, behind a `first` one that is so wide, of the other two."""
    if first is None:
        half, odd = divmod(packed, 2)
        return None if odd else ColumnRange(index * half, (index + 1) * half)
    half, odd = divmod(packed - first, 2)
    if odd or half <= 0:
        return None
    borders = (0, first, first + half, packed)
    return ColumnRange(borders[index], borders[index + 1])


def _copies(ranks: int, pieces: int) -> Iterator[tuple[int, ...]]:
    """How many ranks hold each piece: one; or several hold all but the first of three; or all hold all."""
    yield (1,) * pieces
    divisors = [number for number in range(2, ranks + 1) if ranks % number == 0]
    if pieces == 3:
        yield from ((1, number, number) for number in divisors)
    if ranks > 1:
        yield (ranks,) * pieces
