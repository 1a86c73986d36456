"""Rates with what their sample says of them: the interval of Wilson (1927) at 95 %.

The true rate of p = k / n is between (p + z^2 / 2n +- z * sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),
z = 1.96. It says something of 0 in n and of n in n too: 60 runs without a false alarm say: below 6 %.

    python benchmarks/rates.py 0 60
"""

from __future__ import annotations

import math
import sys

NORMAL = 1.959964
"""Standard deviations that a normal value is within 19 times in 20."""


def interval(part: int, whole: int) -> tuple[float, float]:
    """The 95 % interval of `part` in `whole`; all from 0 to 1 where there is none."""
    if not whole:
        return 0.0, 1.0
    share, z = part / whole, NORMAL**2 / whole
    middle = share + z / 2
    reach = math.sqrt(share * (1 - share) * z + z * z / 4)
    return max(0.0, (middle - reach) / (1 + z)), min(1.0, (middle + reach) / (1 + z))


def share(part: int, whole: int) -> str:
    """`99.4 % (313 of 315; 97.7-99.8 %)`."""
    return f"{part / whole if whole else math.nan:.1%} ({counted(part, whole)})"


def counted(part: int, whole: int) -> str:
    """`313 of 315; 97.7-99.8 %`."""
    low, high = interval(part, whole)
    return f"{part} of {whole}; {100 * low:.1f}-{high:.1%}"


if __name__ == "__main__":
    print(share(*map(int, sys.argv[1:])))
