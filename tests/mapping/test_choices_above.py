"""Which choices lie above a pair, and whether a tie there reaches one token, later ones, or later steps."""

from __future__ import annotations

import pytest

from acc_pytest.mapping.choices import ChoicesAbove, ReachingChoices
from acc_pytest.mapping.pair import Gap, Operand, Pair, Plan
from acc_pytest.tensors.ref import TensorRef


def pair(
    node: str,
    op_type: str,
    *,
    slot: str = "output[0]",
    step: int = 0,
    golden: tuple[str, str] = ("", "output[0]"),
) -> Pair:
    chosen = (TensorRef("values"),) if op_type == "TopK" else ()
    mine = Operand(node, node, op_type, slot, (), chosen_from=chosen)
    other = Operand(node, node, golden[0] or op_type, golden[1], (), chosen_from=chosen)
    return Pair(node, step, None, "op", "model", 0, 0, "name", "", other, mine)


def above(
    *pairs: Pair, parents: tuple[tuple[int, ...], ...] = (), gaps: dict[int, Gap] | None = None
) -> list[ReachingChoices]:
    """What is above each of these; by default each is computed from the one before."""
    chain = parents or ((), *((number,) for number in range(len(pairs) - 1)))
    plan = Plan("", "", "torch", "torch", "", pairs, (), (), 0, 0, 0, 0, parents=chain, gaps=gaps or {})
    found = ChoicesAbove(plan)
    return [found.of(number) for number in range(len(pairs))]


def test_a_tie_stays_with_its_token_until_attention() -> None:
    same = ReachingChoices(same=(0,))
    later = ReachingChoices(later=(0,))
    found = above(
        pair("l0.gate", "TopK"),
        pair("l0.experts", "Qwen3MoeExperts"),
        pair("l0.mlp", "Qwen3MoeSparseMoeBlock"),
        pair("l1.input_layernorm", "Qwen3MoeRMSNorm"),
        pair("l1.self_attn.c_attn", "Conv1D"),
        pair("l1.self_attn.o_proj", "Linear", slot="input[0]"),
        pair("l1.self_attn.o_proj", "Linear"),
        pair("l1.mlp.down_proj", "Linear"),
        gaps={5: Gap("l1.self_attn", ("q_proj",), "o_proj")},
    )
    assert found == [ReachingChoices(), same, same, same, same, later, later, later]


def test_the_layer_of_the_router_gives_its_own_token_and_the_layer_before_all_later_ones() -> None:
    pairs = (pair("l.0.mlp.gate", "TopK"), pair("l.0", "MoeDecoderLayer"), pair("l.1", "MoeDecoderLayer"))
    assert above(*pairs) == [ReachingChoices(), ReachingChoices(same=(0,)), ReachingChoices(later=(0,))]


@pytest.mark.parametrize(
    "op_type", ["SelfAttentionOperation", "PagedAttentionOperation", "BatchMatMul", "Unheard"]
)
def test_what_mine_computes_decides_and_not_what_reads_it_in_golden(op_type: str) -> None:
    attention = pair("2_Layer/4_x", op_type, golden=("Linear", "input[0]"))
    assert above(pair("2_Layer/1_TopK", "TopK"), attention)[1] == ReachingChoices(later=(0,))


def test_later_steps_are_reached_as_a_whole_and_a_choice_hides_what_is_above_it() -> None:
    found = above(
        pair("gate", "TopK"),
        pair("k_proj", "Linear"),
        pair("self_attn", "Attention", step=1),
        pair("other_gate", "TopK", step=1),
        pair("experts", "Experts", step=1),
    )
    assert found[2:] == [ReachingChoices(every=(0,)), ReachingChoices(every=(0,)), ReachingChoices(same=(3,))]


def test_a_plan_without_choices_has_nothing_above() -> None:
    assert above(pair("a", "Linear"), pair("b", "Attention")) == [ReachingChoices(), ReachingChoices()]
