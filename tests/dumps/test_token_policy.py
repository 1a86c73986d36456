"""token_policy: what each policy says, what `auto` concludes from what evidence, and how it says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.dumps.base import StepLabel
from acc_pytest.dumps.evidence import TokenEvidence
from acc_pytest.dumps.token_policy import DECODE, PREFILL, WHOLE, Decision, Facts, decide
from acc_pytest.errors import DumpError, SettingsError
from acc_pytest.vocabulary import TOKEN_POLICIES

BOTH = frozenset({PREFILL, DECODE})
ONLY_PREFILL = frozenset({PREFILL})
ONLY_DECODE = frozenset({DECODE})
PROMPT = (5, 6, 7)


def ids(*values: int) -> TokenEvidence:
    return TokenEvidence(values, len(values))


def length(count: int) -> TokenEvidence:
    return TokenEvidence(None, count)


def steps(decision: Decision) -> list[tuple[StepLabel, int, int | None]]:
    return [(step.label, step.directory, step.model) for step in decision.steps]


GOLDEN: dict[StepLabel, TokenEvidence] = {0: ids(*PROMPT), 1: ids(30), 2: ids(31), 3: ids(32)}
WARMED = {0: BOTH, 1: BOTH, 2: ONLY_DECODE}


@pytest.mark.parametrize(
    ("policy", "present", "expected"),
    [
        ("warmup", WARMED, [("warmup", 0, WHOLE), (0, 1, PREFILL), (1, 1, DECODE), (2, 2, DECODE)]),
        ("no-warmup", {0: BOTH, 1: ONLY_DECODE}, [(0, 0, PREFILL), (1, 0, DECODE), (2, 1, DECODE)]),
        ("torch-like", {0: ONLY_PREFILL, 1: ONLY_DECODE}, [(0, 0, PREFILL), (1, 1, DECODE)]),
        ("raw", WARMED, [(0, 0, WHOLE), (1, 1, WHOLE), (2, 2, WHOLE)]),
    ],
)
def test_each_policy_reads_the_directories_as_its_column_says(policy, present, expected):
    assert steps(decide(policy, Facts(2, present))) == expected


@pytest.mark.parametrize("policy", ["raw", "no-warmup", "torch-like"])
def test_with_one_model_a_directory_is_its_step(policy):
    decision = decide(policy, Facts(1, {0: ONLY_PREFILL, 3: ONLY_PREFILL}))
    assert [(label, directory) for label, directory, _ in steps(decision)] == [(0, 0), (3, 3)]


def test_an_unknown_policy_lists_the_known_ones():
    with pytest.raises(SettingsError, match="auto, raw, no-warmup, warmup, torch-like"):
        decide("tokens", Facts(1, {0: ONLY_PREFILL}))


def test_torch_like_is_refused_where_one_directory_holds_both_models():
    with pytest.raises(DumpError, match="--acc-token-policy auto"):
        decide("torch-like", Facts(2, {0: BOTH}))


def test_a_policy_under_which_nothing_is_a_step_is_refused():
    with pytest.raises(DumpError, match=r"none of the dumped directories \(1\)"):
        decide("no-warmup", Facts(2, {1: ONLY_PREFILL}))


def test_warmup_of_one_model_needs_more_than_directory_0():
    with pytest.raises(DumpError, match="-er 0,2"):
        decide("warmup", Facts(1, {0: ONLY_PREFILL}))


def test_nothing_dumped_gives_no_steps():
    assert decide("auto", Facts(2, {})).steps == ()


def test_auto_finds_a_full_warmup_by_the_prompt():
    mine = {(0, PREFILL): ids(1, 1, 1), (0, DECODE): ids(1), (1, PREFILL): ids(*PROMPT), (1, DECODE): ids(30)}
    decision = decide("auto", Facts(2, WARMED, mine, GOLDEN))
    assert decision.policy == "warmup"
    assert decision.notes == (
        "token policy warmup: directory 0 is a warm-up run, 1 holds prefill and decode 1, k decode k "
        "(the token ids of its prompt are the golden's)",
    )


def test_auto_finds_a_warmup_of_the_prefill_only_by_the_first_decode():
    mine = {
        (0, PREFILL): ids(1, 1, 1),
        (0, DECODE): ids(30),
        (1, PREFILL): ids(*PROMPT),
        (1, DECODE): ids(31),
    }
    decision = decide("auto", Facts(2, WARMED, mine, GOLDEN))
    assert decision.policy == "prefill-warmup"
    assert steps(decision) == [
        ("warmup", 0, PREFILL),
        (0, 1, PREFILL),
        (1, 0, DECODE),
        (2, 1, DECODE),
        (3, 2, DECODE),
    ]


def test_auto_finds_that_there_was_no_warmup_even_if_a_second_prompt_followed():
    mine = {
        (0, PREFILL): ids(*PROMPT),
        (0, DECODE): ids(30),
        (1, PREFILL): ids(9, 9, 8),
        (1, DECODE): ids(31),
    }
    decision = decide("auto", Facts(2, WARMED, mine, GOLDEN))
    assert decision.policy == "no-warmup"
    assert "prefill in directory 1" in decision.notes[1]


def test_auto_finds_torch_like_numbering_in_decodes():
    present = {0: ONLY_PREFILL, 1: ONLY_DECODE, 2: ONLY_DECODE}
    mine = {(0, PREFILL): ids(*PROMPT), (1, DECODE): ids(30), (2, DECODE): ids(31)}
    assert decide("auto", Facts(2, present, mine, GOLDEN)).policy == "torch-like"


def test_auto_keeps_the_warmup_when_decoding_of_mine_left_the_golden():
    mine = {(1, PREFILL): ids(*PROMPT), (1, DECODE): ids(80), (2, DECODE): ids(81)}
    present = {1: BOTH, 2: ONLY_DECODE}
    golden = {key: GOLDEN[key] for key in (0, 1, 2)}
    assert decide("auto", Facts(2, present, mine, golden)).policy == "warmup"


def test_auto_reads_decodes_by_their_ids_when_the_prefill_was_not_dumped():
    mine = {(1, DECODE): ids(31), (2, DECODE): ids(32)}
    decision = decide("auto", Facts(2, {1: ONLY_DECODE, 2: ONLY_DECODE}, mine, GOLDEN))
    assert [label for label, _, _ in steps(decision)] == [2, 3]
    assert "token ids of 2 decode steps are the golden's" in decision.notes[0]


def test_auto_asks_about_the_inputs_when_no_reading_has_the_goldens_prompt():
    decision = decide("auto", Facts(1, {0: ONLY_PREFILL}, {(0, PREFILL): ids(9, 8)}, GOLDEN))
    assert decision.policy == "no-warmup"
    assert "are these the same inputs?" in decision.notes[0]


def test_auto_avoids_a_prompt_that_is_not_the_goldens():
    mine = {(0, PREFILL): ids(9, 8, 7), (0, DECODE): ids(70)}
    decision = decide("auto", Facts(2, {0: BOTH, 1: BOTH}, mine, {0: ids(*PROMPT)}))
    assert decision.policy == "warmup"
    assert "the prefill model ran again in directory 1" in decision.notes[0]


def test_auto_does_not_win_by_leaving_out_the_prompt_that_contradicts_it():
    mine = {(1, PREFILL): ids(9, 8, 7), (1, DECODE): ids(70)}
    decision = decide("auto", Facts(2, {1: BOTH}, mine, GOLDEN))
    assert decision.policy == "warmup"
    assert "are these the same inputs?" in decision.notes[0]


def test_auto_is_not_misled_by_one_token_that_is_equal_by_chance():
    mine = {
        (0, PREFILL): ids(1, 1, 1),
        (1, PREFILL): ids(9, 8, 7),
        (0, DECODE): ids(71),
        (1, DECODE): ids(80),
    }
    golden: dict[StepLabel, TokenEvidence] = {0: ids(*PROMPT), 1: ids(71)}
    assert decide("auto", Facts(2, {0: BOTH, 1: BOTH}, mine, golden)).policy == "warmup"


def test_auto_takes_the_least_contradiction_and_says_so():
    mine = {(1, DECODE): ids(70), (3, DECODE): ids(71)}
    decision = decide("auto", Facts(2, {1: ONLY_DECODE, 3: ONLY_DECODE}, mine, GOLDEN))
    assert decision.policy == "no-warmup"
    assert "contradicts the golden's tokens least" in decision.notes[0]


def test_auto_lets_lengths_decide_where_no_ids_were_dumped():
    mine = {(0, PREFILL): length(9), (1, PREFILL): length(3), (0, DECODE): length(1), (1, DECODE): length(1)}
    golden: dict[StepLabel, TokenEvidence] = {0: length(9), 1: length(1), 2: length(1)}
    assert decide("auto", Facts(2, {0: BOTH, 1: BOTH}, mine, golden)).policy == "no-warmup"


@pytest.mark.parametrize(
    ("present", "mine", "policy", "reason"),
    [
        (WARMED, {}, "warmup", "ran again in directory 1"),
        ({0: BOTH, 1: ONLY_DECODE}, {}, "no-warmup", "in directory 0 only"),
        ({0: ONLY_PREFILL, 1: ONLY_DECODE}, {}, "torch-like", "later ones only decode"),
        ({2: ONLY_DECODE, 3: ONLY_DECODE}, {}, "warmup", "only decode operations"),
        ({0: BOTH}, {}, "no-warmup", "only directory 0 was dumped"),
        ({0: BOTH}, {(0, PREFILL): ids(1, 1, 1)}, "warmup", "repeats one token"),
    ],
)
def test_auto_without_a_golden_goes_by_the_directories(present, mine, policy, reason):
    decision = decide("auto", Facts(2, present, mine))
    assert decision.policy == policy
    assert reason in decision.notes[0]


ONE = dict.fromkeys(range(4), ONLY_PREFILL)


@pytest.mark.parametrize(
    ("mine", "golden", "labels"),
    [
        ({}, {}, [0, 1, 2, 3]),
        ({0: ids(1, 1), 1: ids(*PROMPT), 2: ids(30)}, GOLDEN, ["warmup", 0, 1, 2]),
        ({0: ids(1, 1), 1: ids(1), 2: ids(*PROMPT), 3: ids(30)}, GOLDEN, ["warmup", 0, 1]),
        ({0: ids(*PROMPT), 1: ids(30), 2: ids(31), 3: ids(32)}, GOLDEN, [0, 1, 2, 3]),
        ({0: ids(1, 1), 1: ids(1), 2: ids(*PROMPT), 3: ids(30)}, {}, ["warmup", 0, 1]),
        ({0: length(3), 1: length(3), 2: length(1), 3: length(1)}, {}, ["warmup", 0, 1, 2]),
    ],
)
def test_auto_finds_the_warmup_executions_of_a_single_model(mine, golden, labels):
    evidence = {(number, PREFILL): found for number, found in mine.items()}
    decision = decide("auto", Facts(1, ONE, evidence, golden))
    assert [label for label, _, _ in steps(decision)] == labels


def test_warmup_asked_for_with_one_model_counts_the_executions_by_the_golden():
    mine = {(2, PREFILL): ids(*PROMPT), (3, PREFILL): ids(30)}
    decision = decide("warmup", Facts(1, ONE, mine, GOLDEN))
    assert [(label, directory) for label, directory, _ in steps(decision)] == [("warmup", 0), (0, 2), (1, 3)]
    assert "model in directory 1" in decision.notes[1]


@given(
    st.sampled_from([policy for policy in TOKEN_POLICIES if policy != "torch-like"]),
    st.dictionaries(st.integers(0, 6), st.sampled_from([BOTH, ONLY_PREFILL, ONLY_DECODE]), min_size=1),
)
def test_labels_never_repeat_and_no_directory_is_lost_silently(policy, present):
    try:
        decision = decide(policy, Facts(2, present))
    except DumpError:
        return
    labels = [step.label for step in decision.steps]
    assert len(labels) == len(set(labels))
    told = " ".join(decision.notes[1:])
    used = {step.directory for step in decision.steps}
    assert all(number in used or f"directory {number}" in told for number in present)
