"""The precision that mine was computed in, where most failing tensors of a run tell it alike, in one line.

Rounding to p bits behind the point leaves 2^-p / sqrt(12) / sqrt(E m^2) = 0.196 * 2^-p (relative L2; E m^2 =
3 / (2 ln 2) of a mantissa spread evenly in its logarithm), and sqrt(2) times that in a product of two such
factors. Whole numbers of b bits are off by largest / (2^(b-1) - 1) / sqrt(12); the largest of 32 to 8,192
values is 1.7 (evenly spread) to 4 times (normal) their root mean square. `_KINDS` has borders between these:

    TF32, float16 (p = 10)    2.7e-4 of a product, twice that where a device cuts off instead of rounding
    bfloat16 (7)              2.2e-3 of a product
    int8                      0.004 to 0.009
    float8 (3, 2 bits)        0.025, 0.049 of a weight, 0.035, 0.069 of a product
    int4                      0.07 to 0.17

Linear layers are of one kind where nine of ten fail by replay, the ninth decile of their errors is at most
twice the first (so far apart are the largest values), and no common factor makes them; weights where nine of
ten fail of those called like one that fails, in whatever layer. Nothing of this changes a verdict.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from ..base.reason import Reason
from ..base.vocabulary import PRECISIONS
from .row import FITS, REPLAY, Row

FEWEST, SHARE = 8, 0.9
"""Tensors that say what is usual, and the part of them that is."""
_LEVELS = ((2.0**-13, "f16"), (2.0**-9.5, "bf16"), (2.0**-7, "int8 or q8_0, q4_1, ..."), (2.0**-4, ""))
"""The least error at which float32 tensors look as if they were computed in a type."""
_KINDS = (
    (2.0**-13, "products whose factors were rounded to 10 bits of mantissa (TF32, float16)"),
    (2.0**-10.5, "products whose factors were rounded to 7 bits of mantissa (bfloat16)"),
    (2.0**-8.25, "weights quantised to int8"),
    (2.0**-6, "weights quantised to float8"),
    (2.0**-4.2, "weights quantised to int4"),
    (2.0**-2, ""),
)
"""The least error of linear layers on their own inputs, and what leaves it; of weights from int8 on."""
_NUMBER = re.compile(r"\d+")


class Precision:
    """Takes the rows of a run in any order."""

    def __init__(self) -> None:
        self._errors: list[tuple[float, bool]] = []
        self._fits: Counter[str] = Counter()
        self._layers: list[tuple[float, bool]] = []
        self._weights: dict[str, list[float]] = defaultdict(list)

    def add(self, row: Row) -> None:
        """Take a row into account."""
        fails = row.verdict in ("fail", "inherited")
        error = row.metrics.get("relative_euclidean_distance")
        if isinstance(error, float) and error and row.mine.dtype == row.golden.dtype == "torch.float32":
            self._errors.append((error, fails))
        if row.fed == "weight":
            self._weights[_NUMBER.sub("*", row.golden.name)].append(float(error or 0.0) * fails)
        elif fails and not row.fed:
            self._fits[str(row.context.get(FITS, ""))] += 1
        again, bias = (row.context.get(REPLAY + name) for name in ("error", "bias"))
        is_layer = "Linear" in row.golden.op_type and row.golden.slot.startswith("output")
        if is_layer and isinstance(again, float):
            leans = isinstance(bias, float) and abs(bias) > again / 4  # rounding has hardly any
            self._layers.append((again, not leans and row.context.get(f"{REPLAY}outcome") == "wrong"))

    def line(self, of_names: bool) -> str:
        """The line; empty where nothing is alike. `of_names` says that mine are tensors with names alone."""
        name, count = max(self._fits.items(), key=lambda entry: bool(entry[0]) * entry[1], default=("", 0))
        failing = sum(self._fits.values())
        if name and count >= max(FEWEST, failing / 2):
            option = next(key for key, dtype in PRECISIONS.items() if dtype == name)
            return Reason(
                "precision: the values of mine fit {} in {} of {} failing tensors, stored as float32: if "
                "mine was computed in it, state it with --acc-mine-dtype {}",
                *(name, count, failing, option),
            )
        weights = [error for errors in self._weights.values() if any(errors) for error in errors]
        layers = [error * wrong for error, wrong in self._layers]
        for what, every, kinds in (
            ("weights are off", weights, _KINDS[2:]),
            ("linear layers are off on their own inputs", layers, _KINDS),
        ):
            errors = sorted(error for error in every if error)
            if len(errors) < max(FEWEST, SHARE * len(every)):
                continue
            low, middle, high = (errors[int(part * (len(errors) - 1))] for part in (0.1, 0.5, 0.9))
            kind = next((kind for least, kind in reversed(kinds) if middle >= least), "")
            if kind and high <= 2 * low:
                counts = len(errors), len(every), what
                return Reason("precision: {} of {} {}, by {:.2g} alike, as {} are", *counts, middle, kind)
        return self._of_float32() if of_names else ""

    def _of_float32(self) -> str:
        """The line on float32 tensors that fail alike, nine of ten, by no more than rounding to a type is."""
        errors = sorted(error for error, _ in self._errors)
        failing = sum(fails for _, fails in self._errors)
        if failing < max(FEWEST, SHARE * len(errors)):
            return ""
        middle, most = errors[len(errors) // 2], errors[int(SHARE * (len(errors) - 1))]
        name = next((name for least, name in reversed(_LEVELS) if middle >= least), "")
        if not name or most >= _LEVELS[-1][0]:
            return ""
        return Reason(
            "precision: {} of {} float32 tensors fail alike, by {:.2g}, as those computed in {} do: if mine "
            "was, state it with --acc-mine-dtype",
            *(failing, len(errors), middle, name),
        )
