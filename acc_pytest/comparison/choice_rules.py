"""By which rule indices were chosen among values: found by trying which one golden's own choices follow.

Routers of mixtures of experts choose the largest of all, or first some groups of experts and then the largest
in these (DeepSeek): a group counts by its largest value, or by the sum of the two largest after a sigmoid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ..lazy_torch import torch


@dataclass(frozen=True, slots=True)
class Rule:
    """The `largest` values, or the smallest, the best first where they are `ordered`; of the best `kept` of
    so many `groups`, which count by the sum of their two largest values (`by_two`) or by their largest."""

    largest: bool = True
    ordered: bool = True
    groups: int = 1
    kept: int = 1
    by_two: bool = False

    def holds(self, values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Of which rows these choices are those of the rule."""
        inside = ((chosen >= 0) & (chosen < values.shape[-1])).all(-1)
        wide = self._limited(values.double())
        picked = wide.gather(-1, chosen.clamp(0, values.shape[-1] - 1))
        if not self.ordered:
            picked = picked.sort(-1, descending=self.largest).values
        return inside & (picked == wide.topk(chosen.shape[-1], -1, self.largest).values).all(-1)

    def _limited(self, values: torch.Tensor) -> torch.Tensor:
        """The values with those of groups that are not kept out of reach."""
        if self.groups == 1:
            return values
        grouped = values.reshape(len(values), self.groups, -1)
        counts = grouped.amax(-1)
        if self.by_two:
            counts = grouped.float().sigmoid().topk(2, -1).values.sum(-1)
        best = counts.topk(self.kept, -1).indices
        kept = torch.zeros_like(counts, dtype=torch.bool).scatter_(-1, best, value=True)
        return grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).reshape(values.shape)


def rule_of(values: torch.Tensor, chosen: torch.Tensor) -> Rule | None:
    """The first rule that all rows of golden's choices follow; `None` without any."""
    return next((rule for rule in _rules(values.shape[-1]) if bool(rule.holds(values, chosen).all())), None)


def _rules(size: int) -> Iterator[Rule]:
    for ordered in (True, False):
        yield from (Rule(largest, ordered) for largest in (True, False))
    for groups in (count for count in range(2, size // 2 + 1) if size % count == 0):
        for kept, by_two, ordered in product(range(1, groups), (False, True), (True, False)):
            yield Rule(True, ordered, groups, kept, by_two)
