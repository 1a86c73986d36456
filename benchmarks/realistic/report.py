"""The tables: clean runs by style, faults by their size and by their kind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from detecting.tables import Cells

from .outcome import Outcome, between

ILL_CONDITIONED = "ill-conditioned: right rounding moves the logits by more than 5 %"
EDGES = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
"""Of the buckets of size over noise."""


def clean_table(outcomes: Sequence[Outcome], ways: Sequence[str]) -> list[Cells]:
    """A line for each style: runs, red ones and failing pairs in each way; ill-conditioned ones apart."""
    heads = [f"{what}, {way}" for way in ways for what in ("red runs", "failing pairs")]
    table = [["weights", "runs", *heads, "pairs"]]
    groups: dict[str, list[Outcome]] = {one.weights: [] for one in outcomes if not one.ill}
    for outcome in outcomes:
        groups.setdefault(ILL_CONDITIONED if outcome.ill else outcome.weights, []).append(outcome)
    for name, these in groups.items():
        cells = [name, str(len(these))]
        for way in ways:
            verdicts = [one.by(way) for one in these]
            cells += [str(sum(one.red for one in verdicts)), str(sum(one.failing for one in verdicts))]
        table.append([*cells, str(sum(one.verdicts[0].pairs for one in these))])
    return table


def size_table(outcomes: Sequence[Outcome], ways: Sequence[str]) -> list[Cells]:
    """The sensitivity curve, a column for each bucket: caught of all, and right first roots of the caught."""
    edges = (0.0, *EDGES, float("inf"))
    heads = [f"< {EDGES[0]:g}", *(f"{a:g}-{b:g}" for a, b in itertools.pairwise(EDGES)), f"> {EDGES[-1]:g}"]
    table = [["size / noise", *heads]]
    dtypes = list(dict.fromkeys(one.dtype for one in outcomes))
    for way in ways:
        for dtype in sorted(dtypes):
            these = [one for one in outcomes if one.dtype == dtype]
            caught, named = [f"{dtype}, {way}: caught"], [f"{dtype}, {way}: first root right"]
            for least, below in itertools.pairwise(edges):
                red = [one for one in between(these, least, below) if one.by(way).caught]
                caught.append(f"{len(red)}/{len(between(these, least, below))}")
                named.append(f"{sum(one.by(way).hit for one in red)}/{len(red)}")
            table += [caught, named]
    return table


def kind_table(outcomes: Sequence[Outcome], ways: Sequence[str]) -> list[Cells]:
    """A line for each kind and amount: caught and named in each way, and the median size."""
    heads = [f"{what}, {way}" for way in ways for what in ("caught", "named")]
    table = [["fault", "median size / noise", "runs", *heads]]
    groups: dict[str, list[Outcome]] = {name: [] for name in sorted(one.fault for one in outcomes)}
    for outcome in outcomes:
        groups[outcome.fault].append(outcome)
    for name, these in groups.items():
        sizes = sorted(one.size for one in these)
        cells = [name, f"{sizes[len(sizes) // 2]:.1f}", str(len(these))]
        for way in ways:
            red = [one.by(way) for one in these if one.by(way).caught]
            cells += [str(len(red)), str(sum(one.hit for one in red))]
        table.append(cells)
    return table
