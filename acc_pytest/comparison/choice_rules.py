"""By which rule indices were chosen among values: found by trying which one golden's own choices follow.

Routers of mixtures of experts choose the largest of all, or first some groups of experts and then the largest
in these (DeepSeek): a group counts by its largest value, or by the sum of the two largest after a sigmoid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product

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
        counts = self._counts(values)
        best = counts.topk(self.kept, -1).indices
        kept = torch.zeros_like(counts, dtype=torch.bool).scatter_(-1, best, value=True)
        grouped = values.reshape(*counts.shape, -1)
        return grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).reshape(values.shape)

    def _counts(self, values: torch.Tensor) -> torch.Tensor:
        """By what the groups count, `[rows, groups]`."""
        grouped = values.reshape(len(values), self.groups, -1)
        if self.by_two:
            return grouped.float().sigmoid().topk(2, -1).values.sum(-1)
        return grouped.amax(-1)

    def fewest(self, values: torch.Tensor, chosen: torch.Tensor) -> Rule:
        """The rule with as few groups kept as these choices need: those that count more than the least one
        chosen from, and it.

        Where choices follow the rule with more, they follow it with these too, for all of them lie in these.
        """
        counts = self._counts(values.double())
        size = values.shape[-1]
        least = counts.gather(-1, chosen.clamp(0, size - 1) // (size // self.groups)).amin(-1, keepdim=True)
        return replace(self, kept=int((counts > least).sum(-1).max()) + 1)


def rule_of(values: torch.Tensor, chosen: torch.Tensor, *, of_experts: bool = True) -> Rule | None:
    """The first rule that all rows of golden's choices follow; `None` without any.

    Only experts have groups: n of them can be grouped in as many ways as n has divisors, each with four
    rules. How many groups are kept is what these choices need, and all rows are looked at where the first one
    agrees.
    """
    plain = (Rule(largest, ordered) for ordered in (True, False) for largest in (True, False))
    rules = chain(plain, _of_groups(values, chosen) if of_experts else ())
    return next((rule for rule in rules if bool(rule.holds(values, chosen).all())), None)


def _of_groups(values: torch.Tensor, chosen: torch.Tensor) -> Iterator[Rule]:
    """The rules of groups that the first row follows, each with as few groups kept as all rows need."""
    size, first = values.shape[-1], (values[:1], chosen[:1])
    for groups in (count for count in range(2, size // 2 + 1) if size % count == 0):
        ways = product((False, True), (True, False))
        rules = (Rule(True, ordered, groups, by_two=by_two) for by_two, ordered in ways)
        agreeing = (rule for rule in rules if bool(rule.fewest(*first).holds(*first).all()))
        yield from sorted((rule.fewest(values, chosen) for rule in agreeing), key=lambda rule: rule.kept)
