"""Result of one block of a pair, whichever kernel summed it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .sides import SideSums
from .slices import BlockSlices
from .totals import BlockSums


@dataclass(slots=True)
class BlockResult:
    """The block from the flat position `start`.

    A side is `None` where nothing of it was finite, `compared` where nothing was on both. `identical` is
    whether both sides have the same bytes. `counts` are those of `NonFinite` that are not 0,
    `first_disagreeing` is the place in the block of the first non-finite value that the other side does not
    have, -1 without one. `slices` are there where rows and channels are measured.
    """

    start: int
    sides: tuple[SideSums | None, SideSums | None]
    compared: BlockSums | None
    identical: bool
    counts: dict[str, int] = field(default_factory=dict)
    first_disagreeing: int = -1
    slices: BlockSlices | None = None
