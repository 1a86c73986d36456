"""Another choice than golden's is a tie where its values are closer than they may be off, else a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from acc_pytest.comparison import compare_pair
from acc_pytest.comparison.choices import Rule, rule_of
from acc_pytest.gate.rejudge import rejudge
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.rules import rule_from_table
from acc_pytest.mapping.pair import Operand, Pair
from acc_pytest.reporting.row import Row
from acc_pytest.tensors.ref import TensorRef

Compare = Callable[..., Row]
VALUES = torch.tensor([[4.0, 1.0, 3.0, 2.0], [1.0, 2.0, 2.0001, -5.0]])
"""The second and third value of the second row are nearer than one part in ten thousand."""


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Compare what golden and mine chose among the same values; `of` are golden's."""

    def operand(name: str, chosen: torch.Tensor, of: torch.Tensor | None) -> Operand:
        refs = []
        for what, tensor in (("chosen", chosen), ("of", of)):
            if tensor is not None:
                torch.save(tensor, tmp_path / f"{name}.{what}.pth")
                refs.append(TensorRef(str(tmp_path / f"{name}.{what}.pth")))
        return Operand(name, name, "TopK", "output[1]", tuple(refs[:1]), chosen_from=tuple(refs[1:]))

    def row(
        golden: torch.Tensor,
        mine: torch.Tensor,
        of: torch.Tensor | None = VALUES,
        mine_of: torch.Tensor | None = None,
        fed: str = "",
    ) -> Row:
        other = (None if of is None else of.half()) if mine_of is None else mine_of
        ends = operand("golden", golden, of), operand("mine", mine, other)
        pair = Pair("TopK_0", 0, None, "op", "model", 0, 0, "name", "same name", *ends, fed=fed)
        return compare_pair(pair, Judge, "t", 0)

    return row


def best(count: int = 2, values: torch.Tensor = VALUES, axis: int = -1) -> torch.Tensor:
    return values.topk(count, axis).indices


def swapped(chosen: torch.Tensor) -> torch.Tensor:
    """The same choice with the second row in the other order."""
    found = chosen.clone()
    found[1] = chosen[1].flip(0)
    return found


def test_an_order_of_equals_is_a_tie_and_says_how_near_they_are(compare: Compare) -> None:
    row = compare(best(), swapped(best()))
    assert row.verdict == "tie"
    assert row.sentence == "2 of 4 choices differ, each among values at most 9.99e-05 apart (allowed 0.0111)"
    assert not row.red
    assert not row.excused
    assert row.reasons == ()
    assert [(check.metric, check.bound, check.passed) for check in row.checks] == [
        ("mismatches", "<= 2", True),
        ("choice_gap", "<= 0.0110513", True),
    ]
    assert 0 < row.checks[1].excess < 1


def test_another_one_of_two_equals_is_a_tie_too(compare: Compare) -> None:
    other = best(1)
    other[1] = 1
    assert compare(best(1), other).verdict == "tie"


def test_equal_values_may_come_in_any_order_at_any_bound(compare: Compare) -> None:
    values = torch.tensor([[2.0, 2.0, 1.0]])
    row = compare(torch.tensor([[0, 1]]), torch.tensor([[1, 0]]), values)
    assert (row.verdict, "each among equal values" in row.sentence) == ("tie", True)


def test_a_choice_among_values_that_differ_fails_and_says_by_how_much(compare: Compare) -> None:
    row = compare(best(), torch.tensor([[0, 3], [2, 1]]))
    assert row.verdict == "fail"
    assert row.notes[-1] == "1 of 4 choices differ, among values up to 1 apart (of a tie at most 0.0111)"


def test_only_experts_have_groups(compare: Compare) -> None:
    """The third value is the best of the group whose two best are more, and no argmax: it was sampled."""
    values = torch.tensor([[3.0, -5.0, 2.5, 2.499]])
    chosen = torch.tensor([[2]]), torch.tensor([[3]])
    assert compare(*chosen, values).verdict == "tie"
    assert compare(*chosen, values, fed="token ids").verdict == "fail"


def test_one_far_choice_among_many_ties_fails(compare: Compare) -> None:
    mine = swapped(best())
    mine[0, 1] = 3
    assert compare(best(), mine).verdict == "fail"


@pytest.mark.parametrize("wrong", [4, -1])
def test_an_index_that_is_none_fails(compare: Compare, wrong: int) -> None:
    mine = swapped(best())
    mine[0, 0] = wrong
    assert compare(best(), mine).verdict == "fail"


def test_one_chosen_twice_fails_however_near(compare: Compare) -> None:
    assert compare(best(), torch.tensor([[0, 2], [2, 2]])).verdict == "fail"


def test_without_the_values_nothing_is_excused(compare: Compare) -> None:
    assert compare(best(), swapped(best()), None).verdict == "fail"


def test_values_of_which_golden_s_choice_is_not_the_best_are_not_those_chosen_from(compare: Compare) -> None:
    assert compare(best(), swapped(best()), VALUES.roll(1, -1)).verdict == "fail"


def test_along_another_dimension_smallest_first_and_of_one_without_it(compare: Compare) -> None:
    turned = VALUES.T.contiguous()
    assert compare(best(2, turned, 0), swapped(best()).T.contiguous(), turned).verdict == "tie"
    smallest = torch.tensor([[1.0, 1.00001, 5.0, 9.0]])
    chosen = smallest.topk(2, largest=False).indices
    assert compare(chosen, chosen.flip(1), smallest).verdict == "tie"
    assert compare(VALUES.argmax(-1), torch.tensor([0, 1])).verdict == "tie"
    assert compare(VALUES.argsort(-1), VALUES.argsort(-1)[:, [1, 0, 2, 3]]).verdict == "fail"


def test_masked_values_are_no_error(compare: Compare) -> None:
    masked = VALUES.clone()
    masked[0, 1] = masked[0, 3] = -torch.inf
    row = compare(masked.argsort(-1, descending=True), torch.tensor([[0, 2, 3, 1], [1, 2, 0, 3]]), masked)
    assert row.verdict == "tie"


def test_the_coarser_of_both_types_says_what_is_equal(compare: Compare) -> None:
    assert compare(best(), swapped(best()), VALUES, VALUES).verdict == "fail"
    assert compare(best(), swapped(best()), VALUES, VALUES.bfloat16()).verdict == "tie"


def test_whole_numbers_chosen_from_have_no_rounding(compare: Compare) -> None:
    whole = torch.tensor([[3, 2, 1]])
    assert compare(torch.tensor([[0, 1]]), torch.tensor([[1, 0]]), whole, whole).verdict == "fail"


def test_rows_judged_again_stay_ties_and_a_bound_by_hand_makes_them_passes(compare: Compare) -> None:
    row = compare(best(), swapped(best()))
    again = rejudge(row, Judge)
    assert (again.verdict, again.sentence, again.checks) == (row.verdict, row.sentence, row.checks)
    looser = Judge((rule_from_table({"mismatches": 2.0}, "a rule"),))
    assert rejudge(row, lambda: looser).verdict == "pass"
    forged = replace(row, context={**row.context, "choice_gap": 1.0})
    assert rejudge(forged, Judge).verdict == "fail"


# The rule of a choice is found from golden's choices alone, against routers written a second time.


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
