"""The table of the open Ascend operator standard: mean relative error below T, largest below 10 T, by type.

The relative error of an element is |error| / (|golden| + 1e-7), for one operator given equal inputs.
"""

from __future__ import annotations

MEAN = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-13,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
"""T by the output's type; a type that is not here has no bound."""

LARGEST = 10
"""How many T the largest relative error may reach."""
