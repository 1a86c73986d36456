"""What is not finite in a block: which kinds it is of, and where the sides disagree first."""

from __future__ import annotations

import numpy as np

from .values import Wide


def nonfinite_counts(golden: Wide, mine: Wide) -> tuple[dict[str, int], int]:
    """The fields of `NonFinite` of values of which at least one side is not finite.

    And the place of the first that the other side does not have, -1 without one.
    """
    g_finite, m_finite = np.isfinite(golden), np.isfinite(mine)
    g_nan, m_nan = np.isnan(golden), np.isnan(mine)
    common_nan, common_inf = g_nan & m_nan, ~g_finite & (golden == mine)
    new, lost = g_finite & ~m_finite, ~g_finite & m_finite
    changed = ~g_finite & ~m_finite & ~common_nan & ~common_inf
    flags = {
        "golden_nan": g_nan,
        "golden_inf": ~g_finite & ~g_nan,
        "mine_nan": m_nan,
        "mine_inf": ~m_finite & ~m_nan,
        "common_nan": common_nan,
        "common_inf": common_inf,
        "new": new,
        "lost": lost,
        "changed": changed,
    }
    disagreeing = new | lost | changed
    first = int(disagreeing.argmax()) if disagreeing.any() else -1
    return {name: int(np.count_nonzero(flagged)) for name, flagged in flags.items()}, first
