"""Weights by what two torch dumps say of them: no value is there, and none is read.

Two weights of one dtype are the same or are not. Of other dtypes each may be the other one rounded; beyond
that they are different weights. Thresholds of a standard and of rules are for results, and do not count here.
"""

from __future__ import annotations

import math
from pathlib import Path

from ..dumps.torch_weights import FOREIGN, WEIGHTS_FILE, weights_of
from ..errors import FormatError, NoPayload
from ..judging.threshold import Threshold
from ..judging.verdict import Check, Judgement, verdict_of
from ..mapping.pair import Operand, Pair
from ..mapping.weights import POLICY
from ..reporting.row import Row
from ..tensors.digest import WeightDigest, digest
from .rows import judged

METRIC = "relative_euclidean_distance"


def has_digest(pair: Pair) -> bool:
    """Whether the pair is one of weights of which a side has a digest and not the values."""
    if pair.policy != POLICY:
        return False
    return any(Path(ref.path).name == WEIGHTS_FILE for side in (pair.golden, pair.mine) for ref in side.refs)


def compare_weights(pair: Pair, row: Row) -> Row:
    """The row of a weight that a dump has a digest of; the other one's is made of the values, where it has
    these.

    Raises `NoPayload` where one has none, and for shapes or units that differ; `FormatError` for the digests
    of another capture.
    """
    golden, mine = _digest(pair.golden), _digest(pair.mine)
    if golden.shape != mine.shape:
        raise NoPayload(f"shapes differ: golden {list(golden.shape)}, mine {list(mine.shape)}")
    try:
        distance = golden.distance(mine) if golden.differs(mine) else 0.0
    except ValueError as error:
        raise NoPayload(str(error)) from error
    note = _agreement(golden, mine) if distance else ""
    if note:
        distance = 0.0
    judgement = _judged(golden, mine, distance)
    return judged(
        row,
        judgement,
        metrics={METRIC: distance},
        counts={"elements": math.prod(golden.shape)},
        notes=(*((note,) if note else ()), "by digests: the weights were not dumped"),
    )


def _judged(golden: WeightDigest, mine: WeightDigest, distance: float) -> Judgement:
    allowed = 0.0 if golden.dtype == mine.dtype else golden.rounding(mine)
    why = "one dtype" if golden.dtype == mine.dtype else f"rounding of {golden.dtype} to {mine.dtype}"
    return verdict_of(
        [Check.of(Threshold(METRIC, allowed, False, f"weights: {why}"), distance)], math.prod(golden.shape)
    )


def _agreement(golden: WeightDigest, mine: WeightDigest) -> str:
    """A note that both are equal once they are rounded to a narrower dtype; empty where they are not."""
    for name, crc32 in golden.rounded.items():
        if mine.rounded.get(name) == crc32:
            return f"equal once both are rounded to {name}"
    return ""


def _digest(operand: Operand) -> WeightDigest:
    (ref,) = operand.refs
    if not ref.member:
        return digest(ref.open())
    saved = weights_of(Path(ref.path).parent).get(ref.member)
    if saved is not None and saved.reason == FOREIGN:
        raise FormatError(f"{FOREIGN}: {ref.path}")
    if saved is None or saved.digest is None:
        raise NoPayload(f"{ref}: no digest: {saved.reason if saved is not None else 'it is not listed'}")
    return saved.digest
