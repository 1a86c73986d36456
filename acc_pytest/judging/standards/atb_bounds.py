"""ATB's own table: how far one element of an operator's output may be off, by class, type and length of sums.

An element passes when |error| <= bound * max(1, |golden|). The classes are those of `atb_classes.py`. The
table is that of ATB's test suite (its "new standard"), for one operator that both sides give equal inputs.
"""

from __future__ import annotations

EXACT = frozenset({"MOVE", "CAST", "COMPUTE_INTEGER"})
"""Classes whose results are equal or wrong."""

STEPPED = ("float8_e5m2", "float8_e4m3fn", "hifloat8")
"""Types whose values may be one step off."""

LENGTHS = (2048, 16384)
"""Numbers of addends at which a row's bounds change: below the first, below the second, and beyond."""

_BOUNDS = {
    ("COMPUTE_FLOAT", "float16"): (2.0**-8, 2.0**-7, 2.0**-7),
    ("COMPUTE_FLOAT", "bfloat16"): (2.0**-7, 2.0**-6, 2.0**-6),
    ("COMPUTE_FLOAT", "float32"): (2.0**-11, 2.0**-10, 2.0**-9),
    ("VECTOR_FUSION", "float16"): (2.0**-9,) * 3,
    ("VECTOR_FUSION", "bfloat16"): (2.0**-7,) * 3,
    ("VECTOR_FUSION", "float32"): (2.0**-12,) * 3,
}


def element_bound(kind: str, dtype: str, length: int | None = None) -> float:
    """The bound of the class `kind` for float outputs of `dtype`, whose elements sum `length` addends.

    COMPUTE_QUANT has the bounds of COMPUTE_FLOAT, types that are not in the table those of float32, and an
    unknown length those of short sums, as ATB does it.
    """
    row = "COMPUTE_FLOAT" if kind == "COMPUTE_QUANT" else kind
    bounds = _BOUNDS.get((row, dtype), _BOUNDS[(row, "float32")])
    return bounds[sum((length or 0) >= limit for limit in LENGTHS)]
