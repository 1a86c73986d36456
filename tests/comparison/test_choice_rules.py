"""The rule of a choice is found from golden's choices alone, against routers written a second time."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from acc_pytest.comparison.choices import Rule, rule_of

LOGITS = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))


def grouped(logits: torch.Tensor, groups: int, kept: int, count: int, *, by_two: bool) -> torch.Tensor:
    """DeepSeek's router, token by token."""
    found = []
    for row in logits.sigmoid() if by_two else logits.softmax(-1):
        parts = row.reshape(groups, -1)
        counts = parts.topk(2).values.sum(-1) if by_two else parts.max(-1).values
        best = set(counts.topk(kept).indices.tolist())
        masked = torch.cat([part if i in best else part * 0 - 9 for i, part in enumerate(parts)])
        found.append(masked.topk(count).indices)
    return torch.stack(found)


def test_the_largest_and_the_smallest_are_told_and_whether_they_are_in_order() -> None:
    assert rule_of(LOGITS, LOGITS.topk(3).indices) == Rule()
    assert rule_of(LOGITS, LOGITS.topk(3).indices.flip(1)) == Rule(ordered=False)
    assert rule_of(LOGITS, LOGITS.argsort(-1)) == Rule(largest=False)


@pytest.mark.parametrize("by_two", [True, False])
@pytest.mark.parametrize(("groups", "kept"), [(4, 2), (8, 3), (2, 1)])
def test_groups_of_experts_are_told(groups: int, kept: int, by_two: bool) -> None:
    chosen = grouped(LOGITS, groups, kept, 4, by_two=by_two)
    rule = rule_of(LOGITS, chosen)
    assert rule is not None
    assert (rule.groups, rule.eligible) == (groups, kept)
    assert rule.holds(LOGITS, chosen).all()
    other = chosen.clone()
    other[3, 0] = LOGITS[3].argmin()
    assert rule.holds(LOGITS, other).sum() == 39


def test_what_follows_no_rule_has_none() -> None:
    assert rule_of(LOGITS, LOGITS.roll(1, 1).topk(2).indices) is None
    assert rule_of(LOGITS, torch.full((40, 2), 16)) is None


@pytest.mark.parametrize("by_two", [True, False])
def test_as_few_groups_are_kept_as_the_choices_need(by_two: bool) -> None:
    """By trying each number of them, in this order, as a definition has it."""
    for seed in range(20):
        logits = torch.randn(3, 24, generator=torch.Generator().manual_seed(seed))
        chosen = grouped(logits, 8, 5, 3, by_two=by_two)
        tried = (
            Rule(True, ordered, groups, kept, two)
            for groups in (2, 3, 4, 6, 8, 12)
            for kept in range(1, groups)
            for two in (False, True)
            for ordered in (True, False)
        )
        plain = (Rule(largest, ordered) for ordered in (True, False) for largest in (True, False))
        first = next(rule for rule in (*plain, *tried) if bool(rule.holds(logits, chosen).all()))
        assert rule_of(logits, chosen) == first


def test_a_token_that_was_sampled_is_looked_at_by_no_rule_of_groups() -> None:
    """327,552 rules for this vocabulary, each over all of it, were minutes of a red run."""
    logits = torch.randn(1, 49_152, generator=torch.Generator().manual_seed(2))
    with mock.patch.object(Rule, "holds", autospec=True, side_effect=Rule.holds) as held:
        assert rule_of(logits, torch.tensor([[77]]), of_experts=False) is None
        assert held.call_count == 4
        assert rule_of(logits, torch.tensor([[77]])) is None
        assert held.call_count <= 4 + 4 + 4 * 30  # 49,152 = 3 * 2**14 has 32 divisors
