"""The tables of clean runs."""

from __future__ import annotations

from collections.abc import Sequence

from detecting.tables import Cells

from .runs import Outcome

ILL_CONDITIONED = "ill-conditioned"


def clean_table(outcomes: Sequence[Outcome], ways: Sequence[str]) -> list[Cells]:
    """A line for each style: runs, red ones and failing pairs in each way; ill-conditioned ones apart."""
    heads = [f"{what}, {way}" for way in ways for what in ("red runs", "failing pairs")]
    table = [["weights", "runs", *heads, "pairs"]]
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.setting.weights.what, [])
    for outcome in outcomes:
        groups.setdefault(ILL_CONDITIONED if outcome.ill else outcome.setting.weights.what, []).append(
            outcome
        )
    for name, these in groups.items():
        cells = [name, str(len(these))]
        for way in ways:
            verdicts = [one.by(way) for one in these]
            cells += [str(sum(one.red for one in verdicts)), str(sum(one.failing for one in verdicts))]
        table.append([*cells, str(sum(one.verdicts[0].pairs for one in these))])
    return table
