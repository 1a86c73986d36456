"""token_policy: what each policy says, what `auto` concludes from what evidence, and how it says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.base.vocabulary import TOKEN_POLICIES
from acc_pytest.dumps.base import Slot, StepLabel
from acc_pytest.dumps.token_policy import (
    ALL_MODELS,
    DECODE,
    MAX_IDS,
    PREFILL,
    Decision,
    Facts,
    TokenEvidence,
    decide,
    gather,
)
from acc_pytest.errors import AccError, DumpError, SettingsError
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.topology.tree import Node, Tree

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


def reason(decision: Decision) -> str:
    """What the first note says in brackets, at its end."""
    return decision.notes[0].rpartition(" (")[2].removesuffix(")")


@pytest.mark.parametrize(
    ("policy", "present", "expected", "words"),
    [
        (
            "warmup",
            WARMED,
            [("warmup", 0, ALL_MODELS), (0, 1, PREFILL), (1, 1, DECODE), (2, 2, DECODE)],
            "directory 0 is a warm-up run, 1 holds prefill and decode 1, k decode k",
        ),
        (
            "no-warmup",
            {0: BOTH, 1: ONLY_DECODE},
            [(0, 0, PREFILL), (1, 0, DECODE), (2, 1, DECODE)],
            "no warm-up, directory 0 holds prefill and decode 1, k decode k+1",
        ),
        (
            "torch-like",
            {0: ONLY_PREFILL, 1: ONLY_DECODE},
            [(0, 0, PREFILL), (1, 1, DECODE)],
            "numbered by the probe like torch, directory 0 is prefill, k decode k",
        ),
        (
            "raw",
            WARMED,
            [(0, 0, ALL_MODELS), (1, 1, ALL_MODELS), (2, 2, ALL_MODELS)],
            "directory numbers are steps",
        ),
    ],
)
def test_each_policy_reads_the_directories_as_its_column_says(
    policy: str, present: Mapping[int, frozenset[int]], expected: list[tuple[Any, ...]], words: str
) -> None:
    decision = decide(policy, Facts(2, present))
    assert steps(decision) == expected
    assert (decision.policy, decision.notes) == (policy, (f"token policy {policy}: {words} (as asked for)",))


@pytest.mark.parametrize(
    ("policy", "model"), [("raw", ALL_MODELS), ("no-warmup", PREFILL), ("torch-like", PREFILL)]
)
def test_with_one_model_a_directory_is_its_step(policy: str, model: int | None) -> None:
    decision = decide(policy, Facts(1, {0: ONLY_PREFILL, 3: ONLY_PREFILL}))
    assert steps(decision) == [(0, 0, model), (3, 3, model)]


def test_a_warmup_that_was_not_dumped_is_no_step() -> None:
    assert steps(decide("warmup", Facts(2, {1: BOTH}))) == [(0, 1, PREFILL), (1, 1, DECODE)]
    assert steps(decide("warmup", Facts(2, {0: BOTH}))) == [("warmup", 0, ALL_MODELS)]
    assert steps(decide("warmup", Facts(1, {1: ONLY_PREFILL}))) == [(0, 1, PREFILL)]


@pytest.mark.parametrize(
    ("policy", "facts", "error", "message"),
    [
        (
            "tokens",
            Facts(1, {0: ONLY_PREFILL}),
            SettingsError,
            "--acc-token-policy must be one of auto, raw, no-warmup, warmup, torch-like, got 'tokens'",
        ),
        (
            "torch-like",
            Facts(2, {0: BOTH}),
            DumpError,
            "token policy torch-like: one directory holds both prefill and decode operations, which this "
            "numbering never has; use --acc-token-policy auto, warmup or no-warmup",
        ),
        (
            "no-warmup",
            Facts(2, {1: ONLY_PREFILL, 2: ONLY_PREFILL}),
            DumpError,
            "token policy no-warmup: none of the dumped directories (1, 2) is a step; "
            "use --acc-token-policy auto or raw",
        ),
        (
            "warmup",
            Facts(1, {0: ONLY_PREFILL}),
            DumpError,
            "token policy warmup: only directory 0 was dumped, which would be the warm-up itself; "
            "dump later executions too (-er 0,2) or use --acc-token-policy no-warmup",
        ),
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused_with_the_fix(
    policy: str, facts: Facts, error: type[AccError], message: str
) -> None:
    with pytest.raises(error) as caught:
        decide(policy, facts)
    assert str(caught.value) == message


def test_nothing_dumped_gives_no_steps() -> None:
    assert decide("auto", Facts(2, {})) == Decision((), (), "auto")


@pytest.mark.parametrize(
    ("policy", "present", "lost"),
    [
        ("no-warmup", {0: BOTH, 1: ONLY_PREFILL, 2: BOTH}, "prefill in directory 1, prefill in directory 2"),
        ("torch-like", {0: ONLY_DECODE, 1: ONLY_DECODE}, "decode in directory 0"),
    ],
)
def test_what_no_step_takes_is_told(policy: str, present: Mapping[int, frozenset[int]], lost: str) -> None:
    assert decide(policy, Facts(2, present)).notes[1] == f"not part of any step: {lost}"


def test_auto_finds_a_full_warmup_by_the_prompt() -> None:
    mine = {(0, PREFILL): ids(1, 1, 1), (0, DECODE): ids(1), (1, PREFILL): ids(*PROMPT), (1, DECODE): ids(30)}
    decision = decide("auto", Facts(2, WARMED, mine, GOLDEN))
    assert decision.policy == "warmup"
    assert decision.notes == (
        "token policy warmup: directory 0 is a warm-up run, 1 holds prefill and decode 1, k decode k "
        "(the token ids of its prompt are the golden's)",
    )


def test_auto_finds_a_warmup_of_the_prefill_only_by_the_first_decode() -> None:
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
    assert decision.notes == (
        "token policy prefill-warmup: only the prefill was warmed up, directory 1 holds prefill and "
        "decode 2, k decode k+1 (the token ids of its prompt are the golden's)",
    )


def test_a_prefill_warmup_that_was_not_dumped_is_no_step() -> None:
    mine = {(0, DECODE): ids(30), (1, PREFILL): ids(*PROMPT), (1, DECODE): ids(31)}
    decision = decide("auto", Facts(2, {0: ONLY_DECODE, 1: BOTH}, mine, GOLDEN))
    assert steps(decision) == [(0, 1, PREFILL), (1, 0, DECODE), (2, 1, DECODE)]


def test_auto_finds_that_there_was_no_warmup_even_if_a_second_prompt_followed() -> None:
    mine = {
        (0, PREFILL): ids(*PROMPT),
        (0, DECODE): ids(30),
        (1, PREFILL): ids(9, 9, 8),
        (1, DECODE): ids(31),
    }
    decision = decide("auto", Facts(2, WARMED, mine, GOLDEN))
    assert decision.policy == "no-warmup"
    assert "prefill in directory 1" in decision.notes[1]


def test_auto_finds_torch_like_numbering_in_decodes() -> None:
    present = {0: ONLY_PREFILL, 1: ONLY_DECODE, 2: ONLY_DECODE}
    mine = {(0, PREFILL): ids(*PROMPT), (1, DECODE): ids(30), (2, DECODE): ids(31)}
    assert decide("auto", Facts(2, present, mine, GOLDEN)).policy == "torch-like"


def test_auto_never_finds_torch_like_numbering_where_one_directory_holds_both_models() -> None:
    mine = {(0, PREFILL): ids(*PROMPT), (0, DECODE): ids(99), (1, DECODE): ids(30)}
    assert decide("auto", Facts(2, {0: BOTH, 1: ONLY_DECODE}, mine, GOLDEN)).policy == "no-warmup"


def test_auto_keeps_the_warmup_when_decoding_of_mine_left_the_golden() -> None:
    mine = {(1, PREFILL): ids(*PROMPT), (1, DECODE): ids(80), (2, DECODE): ids(81)}
    present = {1: BOTH, 2: ONLY_DECODE}
    golden: dict[StepLabel, TokenEvidence] = {key: GOLDEN[key] for key in (0, 1, 2)}
    assert decide("auto", Facts(2, present, mine, golden)).policy == "warmup"


def test_auto_reads_decodes_by_their_ids_when_the_prefill_was_not_dumped() -> None:
    mine = {(1, DECODE): ids(31), (2, DECODE): ids(32)}
    decision = decide("auto", Facts(2, {1: ONLY_DECODE, 2: ONLY_DECODE}, mine, GOLDEN))
    assert [label for label, _, _ in steps(decision)] == [2, 3]
    assert reason(decision) == "token ids of 2 decode steps are the golden's"
    alone = decide("auto", Facts(2, {2: ONLY_DECODE}, {(2, DECODE): ids(32)}, GOLDEN))
    assert [label for label, _, _ in steps(alone)] == [3]
    assert reason(alone) == "token ids of 1 decode step are the golden's"


def test_auto_goes_on_after_a_step_of_which_nothing_is_known() -> None:
    golden = GOLDEN | {4: ids(33)}
    decision = decide("auto", Facts(2, {2: ONLY_DECODE, 3: ONLY_DECODE}, {(3, DECODE): ids(33)}, golden))
    assert [label for label, _, _ in steps(decision)] == [3, 4]


@pytest.mark.parametrize("prompt", [ids(*PROMPT), length(3)])
def test_a_golden_that_every_reading_agrees_with_is_no_reason(prompt: TokenEvidence) -> None:
    decision = decide("auto", Facts(1, {0: ONLY_PREFILL}, {(0, PREFILL): prompt}, GOLDEN))
    assert decision.notes == (
        "token policy no-warmup: one model, directory d is step d "
        "(nothing in it says that there was a warm-up)",
    )


def test_auto_asks_about_the_inputs_when_no_reading_has_the_goldens_prompt() -> None:
    decision = decide("auto", Facts(1, {0: ONLY_PREFILL}, {(0, PREFILL): ids(9, 8)}, GOLDEN))
    assert decision.policy == "no-warmup"
    assert reason(decision) == (
        "nothing in it says that there was a warm-up; "
        "the token ids of its prompt are not the golden's: are these the same inputs?"
    )


def test_auto_avoids_a_prompt_that_is_not_the_goldens() -> None:
    mine = {(0, PREFILL): ids(9, 8, 7), (0, DECODE): ids(70)}
    decision = decide("auto", Facts(2, {0: BOTH, 1: BOTH}, mine, {0: ids(*PROMPT)}))
    assert decision.policy == "warmup"
    assert "the prefill model ran again in directory 1" in decision.notes[0]


def test_auto_does_not_win_by_leaving_out_the_prompt_that_contradicts_it() -> None:
    mine = {(1, PREFILL): ids(9, 8, 7), (1, DECODE): ids(70)}
    decision = decide("auto", Facts(2, {1: BOTH}, mine, GOLDEN))
    assert decision.policy == "warmup"
    assert "are these the same inputs?" in decision.notes[0]


def test_auto_is_not_misled_by_one_token_that_is_equal_by_chance() -> None:
    mine = {
        (0, PREFILL): ids(1, 1, 1),
        (1, PREFILL): ids(9, 8, 7),
        (0, DECODE): ids(71),
        (1, DECODE): ids(80),
    }
    golden: dict[StepLabel, TokenEvidence] = {0: ids(*PROMPT), 1: ids(71)}
    assert decide("auto", Facts(2, {0: BOTH, 1: BOTH}, mine, golden)).policy == "warmup"


def test_auto_takes_the_least_contradiction_and_says_so() -> None:
    mine = {(1, DECODE): ids(70), (3, DECODE): ids(71)}
    decision = decide("auto", Facts(2, {1: ONLY_DECODE, 3: ONLY_DECODE}, mine, GOLDEN))
    assert decision.policy == "no-warmup"
    assert reason(decision) == "it contradicts the golden's tokens least"


def test_auto_lets_lengths_decide_where_no_ids_were_dumped() -> None:
    mine = {(0, PREFILL): length(9), (1, PREFILL): length(3), (0, DECODE): length(1), (1, DECODE): length(1)}
    golden: dict[StepLabel, TokenEvidence] = {0: length(9), 1: length(1), 2: length(1)}
    assert decide("auto", Facts(2, {0: BOTH, 1: BOTH}, mine, golden)).policy == "no-warmup"


def test_a_prompt_of_the_goldens_length_proves_more_than_a_decode_of_it() -> None:
    mine = {(0, PREFILL): length(9), (1, DECODE): length(1)}
    golden: dict[StepLabel, TokenEvidence] = {0: length(9), 1: length(1)}
    assert decide("auto", Facts(2, {0: BOTH, 1: BOTH}, mine, golden)).policy == "no-warmup"


def test_every_length_that_differs_counts() -> None:
    mine = {(2, DECODE): length(4), (3, DECODE): length(4)}
    golden: dict[StepLabel, TokenEvidence] = {2: length(1), 3: length(4), 4: length(4)}
    decision = decide("auto", Facts(2, {2: ONLY_DECODE, 3: ONLY_DECODE}, mine, golden))
    assert decision.policy == "no-warmup"
    assert reason(decision) == "every other reading contradicts the golden's tokens"


def test_tokens_of_which_nothing_is_known_contradict_nothing() -> None:
    facts = Facts(2, {0: BOTH, 1: ONLY_DECODE}, {(0, PREFILL): TokenEvidence()}, GOLDEN)
    assert reason(decide("auto", facts)) == "the prefill model ran in directory 0 only"


@pytest.mark.parametrize(
    ("present", "mine", "policy", "why"),
    [
        (WARMED, {}, "warmup", "the prefill model ran again in directory 1"),
        ({0: BOTH, 1: ONLY_DECODE}, {}, "no-warmup", "the prefill model ran in directory 0 only"),
        (
            {0: ONLY_PREFILL, 1: ONLY_DECODE},
            {},
            "torch-like",
            "directory 0 holds only prefill operations and later ones only decode",
        ),
        (
            {2: ONLY_DECODE, 3: ONLY_DECODE},
            {},
            "warmup",
            "only decode operations were dumped; warming up both models is usual",
        ),
        (
            {0: BOTH},
            {},
            "no-warmup",
            "only directory 0 was dumped and nothing in it says that it is a warm-up",
        ),
        ({0: BOTH}, {(0, PREFILL): ids(1, 1, 1)}, "warmup", "the prompt in directory 0 repeats one token"),
    ],
)
def test_auto_without_a_golden_goes_by_the_directories(
    present: Mapping[int, frozenset[int]],
    mine: Mapping[tuple[int, int], TokenEvidence],
    policy: str,
    why: str,
) -> None:
    decision = decide("auto", Facts(2, present, mine))
    assert (decision.policy, reason(decision)) == (policy, why)


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
        ({0: length(2), 1: length(2)}, {}, ["warmup", 0, 1, 2]),
        ({0: length(1), 1: length(3)}, {}, [0, 1, 2, 3]),
        ({0: length(3), 1: length(1)}, {}, [0, 1, 2, 3]),
        ({0: ids(*PROMPT), 1: ids(8, 9)}, {}, [0, 1, 2, 3]),
    ],
)
def test_auto_finds_the_warmup_executions_of_a_single_model(
    mine: Mapping[int, TokenEvidence],
    golden: Mapping[StepLabel, TokenEvidence],
    labels: list[int] | list[str | int],
) -> None:
    evidence = {(number, PREFILL): tokens for number, tokens in mine.items()}
    decision = decide("auto", Facts(1, ONE, evidence, golden))
    assert [label for label, _, _ in steps(decision)] == labels
    assert decision.policy == ("warmup" if "warmup" in labels else "no-warmup")


REPEATS = "the prompt in directory 0 repeats one token and another follows"


@pytest.mark.parametrize(
    ("mine", "labels", "words", "why"),
    [
        (
            {0: ids(1, 1), 1: ids(5, 6)},
            ["warmup", 0],
            "1 warm-up execution, directory d is step d-1",
            REPEATS,
        ),
        (
            {0: ids(1, 1), 2: ids(5, 6)},
            ["warmup", 0],
            "2 warm-up executions, directory d is step d-2",
            REPEATS,
        ),
        (
            {0: length(3), 1: length(3)},
            ["warmup", 0],
            "1 warm-up execution, directory d is step d-1",
            "directories 0 and 1 both hold prompts",
        ),
    ],
)
def test_auto_says_how_often_a_single_model_was_warmed_up(
    mine: Mapping[int, TokenEvidence], labels: list[str | int], words: str, why: str
) -> None:
    evidence = {(number, PREFILL): tokens for number, tokens in mine.items()}
    decision = decide("auto", Facts(1, dict.fromkeys(mine, ONLY_PREFILL), evidence))
    assert steps(decision) == list(zip(labels, sorted(mine), [PREFILL, PREFILL]))
    assert decision.notes[0] == f"token policy warmup: one model with {words} ({why})"


@pytest.mark.parametrize("present", [(1, 2), (0, 2)])
def test_a_single_model_may_have_been_dumped_in_parts(present: tuple[int, int]) -> None:
    decision = decide("auto", Facts(1, dict.fromkeys(present, ONLY_PREFILL), {(0, PREFILL): length(3)}))
    assert [label for label, _, _ in steps(decision)] == list(present)


def test_warmup_asked_for_with_one_model_counts_the_executions_by_the_golden() -> None:
    mine = {(2, PREFILL): ids(*PROMPT), (3, PREFILL): ids(30)}
    decision = decide("warmup", Facts(1, ONE, mine, GOLDEN))
    assert [(label, directory) for label, directory, _ in steps(decision)] == [("warmup", 0), (0, 2), (1, 3)]
    assert decision.notes[1] == "not part of any step: model in directory 1"
    once = decide("warmup", Facts(1, ONE, {(1, PREFILL): ids(*PROMPT)}, GOLDEN))
    assert [label for label, _, _ in steps(once)] == ["warmup", 0, 1, 2]


@given(
    st.sampled_from([policy for policy in TOKEN_POLICIES if policy != "torch-like"]),
    st.dictionaries(st.integers(0, 6), st.sampled_from([BOTH, ONLY_PREFILL, ONLY_DECODE]), min_size=1),
)
def test_labels_never_repeat_and_no_directory_is_lost_silently(
    policy: str, present: Mapping[int, frozenset[int]]
) -> None:
    try:
        decision = decide(policy, Facts(2, present))
    except DumpError:
        return
    labels = [step.label for step in decision.steps]
    assert len(labels) == len(set(labels))
    told = " ".join(decision.notes[1:])
    used = {step.directory for step in decision.steps}
    assert all(number in used or f"directory {number}" in told for number in present)


# evidence: what the first operations of a step say of its tokens.


Tensors = dict[str, dict[Slot, torch.Tensor]]


def model() -> Tree:
    root = Node("m", "Model", "")
    embed = root.add(Node("embed", "Embedding", "embed"))
    embed.add(Node("gather", "Gather", "embed/gather"))
    root.add(Node("layer", "Layer", "layer"))
    root.add(Node("head", "Head", "head"))
    return Tree(root, "m")


def evidence(tmp_path: Path, tensors: Tensors, tree: Tree | None = None) -> TokenEvidence:
    refs: dict[str, dict[Slot, TensorRef]] = {}
    for path, slots in tensors.items():
        for slot, tensor in slots.items():
            file = tmp_path / f"{path.replace('/', '.')}.{slot}.bin"
            atb_bin.write(file, tensor)
            refs.setdefault(path, {})[slot] = TensorRef(str(file))
    return gather(tree or model(), lambda node: refs.get(node.path, {}))


IDS, FLOATS = Slot("input", (1,)), Slot("input", (0,))
OUT = Slot("output")


@pytest.mark.parametrize("path", ["embed", "embed/gather"])
def test_the_integer_input_of_the_embedding_or_inside_it(tmp_path: Path, path: str) -> None:
    found = evidence(tmp_path, {path: {FLOATS: torch.zeros(2, 2), IDS: torch.tensor([[3, 1], [4, 1]])}})
    assert found == TokenEvidence((3, 1, 4, 1), 4)


def test_integers_of_later_operations_are_no_token_ids(tmp_path: Path) -> None:
    assert evidence(tmp_path, {"layer": {IDS: torch.tensor([7])}}) == TokenEvidence()


def test_among_keyword_arguments_only_one_named_as_ids_is_taken_for_them(tmp_path: Path) -> None:
    positions, mask = Slot("input", ("cache_position",)), Slot("input", ("attention_mask",))
    given = {mask: torch.ones(3).long(), positions: torch.arange(3)}
    assert evidence(tmp_path, {"embed": given}) == TokenEvidence()
    named = given | {Slot("input", ("input_ids",)): torch.tensor([[8, 9, 7]])}
    assert evidence(tmp_path, {"embed": named}) == TokenEvidence((8, 9, 7), 3)


def test_too_many_ids_are_counted_not_read(tmp_path: Path) -> None:
    found = evidence(tmp_path, {"embed": {IDS: torch.zeros(MAX_IDS + 1, dtype=torch.int32)}})
    assert found == TokenEvidence(None, MAX_IDS + 1)


def test_without_ids_the_rows_of_the_first_output_count(tmp_path: Path) -> None:
    assert evidence(tmp_path, {"layer": {OUT: torch.zeros(2, 3, 8)}}).length == 6


def test_the_last_operation_keeps_one_row_and_says_nothing(tmp_path: Path) -> None:
    assert evidence(tmp_path, {"head": {OUT: torch.zeros(1, 8)}}) == TokenEvidence()


def test_a_wrapper_around_everything_is_looked_through(tmp_path: Path) -> None:
    inner = model()
    root = Node("root", "Causal", "")
    root.add(inner.root)
    inner.root.path = "model"
    found = evidence(tmp_path, {"layer": {OUT: torch.zeros(5, 8)}}, Tree(root, "root"))
    assert found.length == 5


def test_broken_files_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "cut.bin").write_bytes(b"$Version=1.0\n")
    refs = {IDS: TensorRef(str(tmp_path / "cut.bin")), OUT: TensorRef(str(tmp_path / "missing.bin"))}
    assert gather(model(), lambda node: refs) == TokenEvidence()


def test_an_alias_that_leads_nowhere_still_has_a_length(tmp_path: Path) -> None:
    atb_bin.write_description(tmp_path / "a.bin", torch.int64, (4,), extra={"data": "9_intensor0.bin"})
    ref = TensorRef(str(tmp_path / "a.bin"), root=str(tmp_path))
    assert gather(model(), lambda node: {IDS: ref}) == TokenEvidence(None, 4)


@pytest.mark.parametrize(
    ("ids", "constant"), [((1, 1, 1), True), ((1, 2), False), ((1,), False), (None, False)]
)
def test_a_constant_prompt_is_one_that_repeats_a_token(ids: tuple[int, ...] | None, constant: bool) -> None:
    assert TokenEvidence(ids).constant is constant
