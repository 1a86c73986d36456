"""Answer of a node for the pairs of a batch, as bytes, and its reading on the controller.

Rows stay packed until a test asks for one: those of 100,000 pairs are some 40 MB so, and a gigabyte as
objects.
"""

from __future__ import annotations

import functools
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..reporting.row import Row

_UNPACKED = 16
"""Batches whose rows are kept as objects: tests run in about the order of the batches."""


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """Answer of a node for one pair: its row, or the `error` that nobody foresaw.

    `incomplete`: a file that was asked for is not on that node.
    """

    number: int
    row: Row | None
    incomplete: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """Answer for one pair on the controller: the row is at `place` in `pack`."""

    number: int
    pack: bytes
    place: int
    incomplete: bool = False
    error: str = ""

    @property
    def row(self) -> Row | None:
        """The row; `None` where there is an error instead."""
        return _rows(self.pack)[self.place]


def packed(answers: Sequence[PairAnswer]) -> bytes:
    """The answer of a batch as bytes."""
    rows = zlib.compress(pickle.dumps([answer.row for answer in answers], pickle.HIGHEST_PROTOCOL), 1)
    return pickle.dumps(([(answer.number, answer.incomplete, answer.error) for answer in answers], rows))


def unpacked(answer: bytes) -> list[Measured]:
    """The answer of a batch, rows still packed."""
    entries, rows = pickle.loads(answer)  # noqa: S301 - our own bytes from our own node, never a file
    return [
        Measured(number, rows, place, incomplete, error)
        for place, (number, incomplete, error) in enumerate(entries)
    ]


@functools.lru_cache(maxsize=_UNPACKED)
def _rows(pack: bytes) -> list[Row | None]:
    rows: list[Row | None] = pickle.loads(zlib.decompress(pack))  # noqa: S301 - as above
    return rows
