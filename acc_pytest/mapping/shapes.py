"""Shapes that hold the same numbers in the same order. Pure arithmetic, no tensors.

The comparison is row-major, so two shapes agree when one only groups neighbouring dimensions of the
other: `[1, 7, 32]`, `[7, 32]` and `[7, 4, 8]` agree, `[4, 64]` and its transpose `[64, 4]` do not,
although both have 256 elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..base.reason import Reason

Shape = tuple[int, ...]


def same_order(first: Shape, second: Shape) -> bool:
    """True when one shape is a grouping of neighbouring dimensions of the other.

    Sizes of 1 say nothing and are ignored. Written with trailing products: `[7, 4, 8]` has
    {8, 32, 224}, `[7, 32]` has {32, 224}, and a grouping's products are a subset.
    """
    if math.prod(first) != math.prod(second):
        return False
    if 0 in first:
        return True
    products = _trailing_products(first), _trailing_products(second)
    return products[0] <= products[1] or products[1] <= products[0]


def _trailing_products(shape: Shape) -> set[int]:
    products, product = set(), 1
    for size in reversed(shape):
        product *= size
        products.add(product)
    products.discard(1)
    return products


def rows_and_width(shape: Shape) -> tuple[int, int]:
    """A shape as a matrix: the last dimension is the width, everything before it rows."""
    if not shape:
        return 1, 1
    return math.prod(shape[:-1]), shape[-1]


def has_token_rows(shape: Shape, tokens: Shape) -> bool:
    """Whether a tensor has a row for each token of a step that lays them out as `tokens`."""
    count = math.prod(tokens)
    leading = {math.prod(shape[:dims]) for dims in range(1, len(shape))}
    return len(shape) > 1 and (shape[: len(tokens)] == tokens or count in leading)


@dataclass(frozen=True, slots=True)
class Merge:
    """The rule by which the rank shards of one side become one tensor.

    `how` is `single` (one shard), `replicated` (every shard is the whole), `columns` (shards side by
    side along the width), `rows` (one below the other). `replicas` counts equal neighbours: with 4
    ranks and 2 key-value heads, ranks 0 and 1 hold the same head, so `replicas` is 2. `sum` adds the
    partial results of a row-parallel operator. `rows` is the height of the columns where the whole keeps
    its heads apart, 0 where it is all but the last dimension.
    """

    how: str
    replicas: int = 1
    rows: int = 0

    def describe(self, count: int) -> str:
        """The rule in words, for headers, rows and failure texts; empty when there is nothing to say."""
        if self.how == "single":
            return ""
        if self.how == "replicated":
            return Reason("replicated on {} ranks, every replica compared", count)
        if self.how == "sum":
            return Reason("partial results of {} ranks summed", count)
        along = "the last dimension" if self.how == "columns" else "the first dimension"
        copies = Reason(", each shard held by {} ranks", self.replicas) if self.replicas > 1 else ""
        return Reason("{} shards concatenated along {}{}", count // self.replicas, along, copies)


def merge_rule(shard: Shape, count: int, merged: Shape) -> Merge | None:
    """The only rule by which `count` shards of shape `shard` make up `merged`, `None` if there is none.

    A shard may have its heads apart (`[tokens, heads, size]` for a width of `heads*size`) and leading
    dimensions of 1 more or less than the whole: a 2-D shard of a 3-D golden is the normal case.
    """
    if count == 1:
        return Merge("single") if same_order(shard, merged) else None
    if same_order(shard, merged):
        return Merge("replicated")
    if apart := _heads_apart(shard, count, merged):
        return apart
    numel, rows, width = math.prod(shard), *rows_and_width(merged)
    full_rows = bool(shard) and shard[-1] == width
    for replicas in _divisors(count):
        if numel * (count // replicas) != rows * width:
            continue
        columns = rows and not full_rows and same_order(shard, (rows, numel // rows))
        if columns or (width and same_order(shard, (numel // width, width))):
            return Merge("columns" if columns else "rows", replicas)
    return None


def uneven_rows(shards: Sequence[Shape], merged: Shape) -> Merge | None:
    """The rule for shards of several shapes: one below the other, if all rows of that width are there."""
    rows, width = rows_and_width(merged)
    wide = all(shard[-1:] == (width,) for shard in shards)
    return Merge("rows") if wide and sum(rows_and_width(shard)[0] for shard in shards) == rows else None


def _heads_apart(shard: Shape, count: int, merged: Shape) -> Merge | None:
    """Shards of a whole of three or more dimensions, cut along one that is not the first.

    `[7, 4, 8]` of two ranks is `[7, 2, 8]` on each: the tokens are all there, so the heads are split, and the
    shards are columns of `[7, 32]`, not rows of `[28, 8]`.
    """
    sizes = tuple(size for size in merged if size != 1)
    first = next((size for size in shard if size != 1), 1)
    if len(sizes) < 3 or first != sizes[0]:
        return None
    for replicas in _divisors(count):
        for axis in range(1, len(sizes)):
            extent, remainder = divmod(sizes[axis] * replicas, count)
            if extent and not remainder and same_order(shard, (*sizes[:axis], extent, *sizes[axis + 1 :])):
                return Merge("columns", replicas, math.prod(sizes[:axis]))
    return None


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number) if number % candidate == 0]
