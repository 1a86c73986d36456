"""One word that says whether two runs came to the same verdicts: shards, `-n`, orders and reruns compared."""

from __future__ import annotations

import hashlib

from .row import Row

LENGTH = 16


class VerdictHash:
    """A hash of all rows that does not depend on their order: the sum of each row's own.

    A row counts by its test, its place, its verdict and where its error starts. Measured values are left
    out: sums over several threads may differ in their last bits.
    """

    def __init__(self) -> None:
        self._sum = 0

    def add(self, row: Row) -> None:
        """Take one row into account."""
        root = row.cause.root_name if row.cause is not None else ""
        place = (
            row.golden.node,
            row.golden.slot,
            row.mine.node,
            row.mine.slot,
            str(row.step),
            row.rank,
            row.graph,
        )
        text = "\0".join((row.test_id, *place, row.verdict, root))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        self._sum = (self._sum + int.from_bytes(digest, "big")) % 2**256

    def __str__(self) -> str:
        return hashlib.sha256(self._sum.to_bytes(32, "big")).hexdigest()[:LENGTH]
