"""Which rows of two dumps are the same tokens."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from acc_pytest.diagnosis.run import run
from acc_pytest.errors import Incomparable
from acc_pytest.mapping.pair import Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.mapping.shapes import Shape
from acc_pytest.mapping.token_order import (
    BATCH,
    ENDS,
    FLAT,
    HEADS_FIRST,
    by_form,
    context_rows,
    forms_of,
    pick_tokens,
    token_order,
)
from acc_pytest.mapping.token_sequences import Contexts, TokenStreams, counts_anew
from acc_pytest.mapping.views import Stretch, TokenLayout, TokenPick
from acc_pytest.reporting.summary import Tally, summary_lines
from acc_pytest.tensors.ref import TensorRef
from tests.slow import slow

from .passes import Pass, after, batched, engine_in, hugging_face_in, in_chunks, token_by_token
from .served import Fault, Spec, hugging_face

PADDED = [[7, 8, 9, 0], [5, 6, 0, 0]]


class Files:
    """Whole numbers, saved."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def __call__(self, values: object) -> TensorRef:
        path = self._home / f"{len(list(self._home.iterdir()))}.pth"
        torch.save(torch.tensor(values), path)
        return TensorRef(str(path))


def rows_of(golden: TokenLayout, mine: TokenLayout) -> tuple[list[int], list[int]] | None:
    order = token_order(golden, mine)
    return None if order is None else (order.rows["golden"].tolist(), order.rows["mine"].tolist())


def flat(file: Files, ids: Sequence[int], lengths: Sequence[int]) -> TokenLayout:
    return TokenLayout((len(ids),), file(list(ids)), lengths=file(list(lengths)))


def test_padding_on_either_side_is_left_out_by_the_mask(tmp_path: Path) -> None:
    file = Files(tmp_path)
    mine = flat(file, [7, 8, 9, 5, 6], [3, 2])
    right = TokenLayout((2, 4), file(PADDED), file([[1, 1, 1, 0], [1, 1, 0, 0]]))
    left = TokenLayout((2, 4), file([[0, 7, 8, 9], [0, 0, 5, 6]]), file([[0, 1, 1, 1], [0, 0, 1, 1]]))
    assert rows_of(right, mine) == ([0, 1, 2, 4, 5], [0, 1, 2, 3, 4])
    assert rows_of(left, mine) == ([1, 2, 3, 6, 7], [0, 1, 2, 3, 4])


def test_without_a_mask_the_ids_tell(tmp_path: Path) -> None:
    file = Files(tmp_path)
    golden = TokenLayout((2, 4), file(PADDED))
    assert rows_of(golden, flat(file, [7, 8, 9, 5, 6], [3, 2])) == ([0, 1, 2, 4, 5], [0, 1, 2, 3, 4])


def test_a_mask_that_is_added_to_scores_tells_too(tmp_path: Path) -> None:
    file = Files(tmp_path)
    seen = torch.zeros(2, 1, 4, 4).masked_fill(~torch.ones(4, 4).tril().bool(), -1e9)
    seen[0, :, :, 3:] = -1e9
    seen[1, :, :, 2:] = -1e9
    path = tmp_path / "mask.pth"
    torch.save(seen, path)
    golden = TokenLayout((2, 4), None, TensorRef(str(path)))
    mine = TokenLayout((5,), None, lengths=file([3, 2]))
    assert rows_of(golden, mine) == ([0, 1, 2, 4, 5], [0, 1, 2, 3, 4])


def test_sequences_of_another_order_meet_by_their_ids(tmp_path: Path) -> None:
    file = Files(tmp_path)
    golden = TokenLayout((2, 4), file(PADDED))
    assert rows_of(golden, flat(file, [5, 6, 7, 8, 9], [2, 3])) == ([4, 5, 0, 1, 2], [0, 1, 2, 3, 4])


def test_positions_tell_borders_and_what_was_cached_before(tmp_path: Path) -> None:
    file = Files(tmp_path)
    golden = TokenLayout((2, 4), file([[7, 8, 7, 8], [5, 6, 1, 2]]))
    mine = TokenLayout((6,), file([7, 8, 5, 6, 1, 2]), positions=file([2, 3, 0, 1, 2, 3]))
    assert rows_of(golden, mine) == ([2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([0, 1, 2, 0, 1], True),
        ([0, 1, 2, 3, 4], False),  # slots of a cache, too
        ([0, 0, 0, 0, 0], False),
        ([0, 0, 1, 1, 1], False),
        ([0, 1, 0, 1, 0], False),
        ([3, 4, 0, 1, 2], False),
        ([0, 1, 5, 0, 1], False),
    ],
)
def test_numbers_that_count_anew_are_positions(tmp_path: Path, numbers: list[int], expected: bool) -> None:
    assert counts_anew(Files(tmp_path)(numbers)) == expected


def test_rows_behind_all_sequences_are_no_tokens(tmp_path: Path) -> None:
    file = Files(tmp_path)
    golden = TokenLayout((2, 1), file([[7], [5]]))
    mine = TokenLayout((4,), file([7, 5, 0, 0]), lengths=file([9, 4, 1, 1]))
    assert rows_of(golden, mine) == ([0, 1], [0, 1])


def test_a_decode_step_keeps_the_order_of_the_prefill(tmp_path: Path) -> None:
    file = Files(tmp_path)
    before = TokenLayout((2, 4), file(PADDED)), flat(file, [5, 6, 7, 8, 9], [2, 3])
    golden = TokenLayout((2, 1), file([[3], [3]]), before=before[0])
    mine = TokenLayout((2,), file([3, 3]), lengths=file([3, 4]), before=before[1])
    assert rows_of(golden, mine) == ([1, 0], [0, 1])


def test_other_prompts_have_no_order(tmp_path: Path) -> None:
    file = Files(tmp_path)
    golden = TokenLayout((2, 4), file(PADDED))
    assert rows_of(golden, flat(file, [7, 8, 9, 5, 1], [3, 2])) is None
    assert rows_of(golden, flat(file, [7, 8, 9], [3])) is None


def test_rows_of_a_tensor_are_picked_and_others_left_alone(tmp_path: Path) -> None:
    file = Files(tmp_path)
    layouts = TokenLayout((2, 4), file(PADDED)), flat(file, [5, 6, 7, 8, 9], [2, 3])
    hidden = torch.arange(16).reshape(2, 4, 2)
    picked = pick_tokens(hidden, TokenPick(*layouts, "golden"))
    assert picked.tolist() == hidden.reshape(8, 2)[[4, 5, 0, 1, 2]].tolist()
    heads = torch.arange(10 * 3).reshape(10, 3)  # two heads of every token, one below the other
    assert pick_tokens(heads, TokenPick(*layouts, "mine")).shape == (5, 6)
    tables = torch.zeros(1, 4, 3)
    assert pick_tokens(tables, TokenPick(*layouts, "golden")) is tables


def test_the_last_token_of_each_sequence_is_picked(tmp_path: Path) -> None:
    file = Files(tmp_path)
    layouts = TokenLayout((2, 4), file(PADDED)), flat(file, [5, 6, 7, 8, 9], [2, 3])
    logits = torch.arange(8).reshape(2, 4, 1)
    assert pick_tokens(logits, TokenPick(*layouts, "golden", last=True)).tolist() == [[5], [2]]
    already = torch.tensor([[1.0], [2.0]])
    assert pick_tokens(already, TokenPick(*layouts, "mine", last=True)).tolist() == [[1.0], [2.0]]
    one_each = torch.tensor([[[1.0]], [[2.0]]])
    assert pick_tokens(one_each, TokenPick(*layouts, "golden", last=True)).flatten().tolist() == [2.0, 1.0]


def test_files_that_cannot_be_read_tell_nothing(tmp_path: Path) -> None:
    missing = TensorRef(str(tmp_path / "missing.pth"))
    golden = TokenLayout((2, 4), missing, missing)
    assert token_order(golden, TokenLayout((5,), missing)) is None


def test_a_sequence_of_one_token_is_no_piece_of_another_where_it_is_there_itself(tmp_path: Path) -> None:
    file = Files(tmp_path)
    golden = TokenLayout((2, 3), file([[5, 6, 7], [7, 0, 0]]), file([[1, 1, 1], [1, 0, 0]]))
    assert rows_of(golden, flat(file, [7, 5, 6, 7], [1, 3])) == ([3, 0, 1, 2], [0, 1, 2, 3])


# Where tensors of two steps have their tokens: told by both shapes together.


def layout(*shape: int, sequences: int = 1, known: int = -1, turned: bool = False) -> TokenLayout:
    """A layout of `sequences` of equal length, `known` tokens of which are known (all of them by default)."""
    count = torch.Size(shape).numel() if known < 0 else known
    each = count // sequences
    return TokenLayout(
        shape,
        contexts=tuple((Stretch(n * each, n * each, each),) for n in range(sequences)),
        turned=turned,
    )


WHOLE, DECODE = layout(2, 9, sequences=2), layout(2, 1, sequences=2)
FLAT_DECODE, CHUNK = layout(2, sequences=2), layout(5)


@pytest.mark.parametrize(
    ("shapes", "layouts", "forms"),
    [
        (((2, 9, 32), (2, 1, 32)), (WHOLE, DECODE), (BATCH, BATCH)),
        (((18, 32), (2, 32)), (WHOLE, DECODE), (FLAT, FLAT)),
        (((2, 4, 9, 8), (2, 4, 1, 8)), (WHOLE, DECODE), (HEADS_FIRST, HEADS_FIRST)),
        (((2, 9, 4, 8), (2, 1, 4, 8)), (WHOLE, DECODE), (BATCH, BATCH)),
        (((2, 9, 32), (2, 32)), (WHOLE, FLAT_DECODE), (BATCH, FLAT)),
        (((2, 9, 4, 8), (8, 8)), (WHOLE, FLAT_DECODE), (BATCH, FLAT)),
        (((1, 9, 8), (1, 1, 8)), (WHOLE, DECODE), (BATCH, BATCH)),
        (((2, 9, 60), (1, 60)), (WHOLE, CHUNK), (BATCH, ENDS)),
        (((2, 1, 60), (2, 1, 60)), (WHOLE, DECODE), (ENDS, ENDS)),
        (((1, 60), (1, 60)), (CHUNK, layout(4)), (ENDS, ENDS)),
        (((9, 2, 8), (2, 9, 8)), (layout(9, 2, turned=True), WHOLE), (BATCH, BATCH)),
        (((2, 9), (2, 1)), (layout(9, 2, turned=True), DECODE), (BATCH, BATCH)),
    ],
)
def test_both_shapes_tell(
    shapes: tuple[Shape, Shape], layouts: tuple[TokenLayout, TokenLayout], forms: tuple[str, str]
) -> None:
    assert forms_of(shapes, layouts) == forms


@pytest.mark.parametrize(
    ("shapes", "layouts", "why"),
    [
        (((4,), (4,)), (WHOLE, DECODE), "do not have a row for each"),
        (((2, 2, 9, 8), (2, 2, 10, 8)), (WHOLE, DECODE), "do not have a row for each"),
        (((2, 9), (2, 10)), (WHOLE, DECODE), "do not have a row for each"),
        (((2, 9, 60), (1, 61)), (WHOLE, CHUNK), "do not have a row for each"),
        (
            ((1, 4, 4, 8), (1, 4, 4, 8)),
            (layout(1, 4), layout(1, 4)),
            "may have their tokens in two dimensions",
        ),
        (((2, 4, 9, 9), (2, 4, 1, 9)), (layout(2, 9, known=16), DECODE), "some of which are padding"),
    ],
)
def test_shapes_that_do_not_are_refused(
    shapes: tuple[Shape, Shape], layouts: tuple[TokenLayout, TokenLayout], why: str
) -> None:
    with pytest.raises(Incomparable, match=why):
        forms_of(shapes, layouts)


def test_logits_may_be_wider_on_one_side() -> None:
    assert forms_of(((2, 9, 60), (1, 64)), (WHOLE, CHUNK), logits=True) == (BATCH, ENDS)


def test_scores_without_padding_are_compared() -> None:
    assert forms_of(((2, 4, 9, 9), (2, 4, 1, 9)), (WHOLE, DECODE)) == (HEADS_FIRST, HEADS_FIRST)


def test_rows_come_one_below_the_other() -> None:
    numbers = torch.arange(2 * 3 * 9 * 4).reshape(2, 3, 9, 4)
    assert torch.equal(by_form(numbers, WHOLE, HEADS_FIRST)[10], numbers[1, :, 1])
    assert torch.equal(by_form(numbers.transpose(1, 2), WHOLE, BATCH)[10], numbers[1, :, 1])
    turned = layout(9, 2, turned=True)
    assert torch.equal(by_form(numbers[:, 0].transpose(0, 1), turned, BATCH)[3], numbers[1, 0, 1])
    ids = torch.arange(18).reshape(2, 9)
    assert by_form(ids, turned, BATCH)[:4].tolist() == [0, 9, 1, 10]
    shared = torch.arange(18).reshape(1, 9, 2)
    assert by_form(shared, WHOLE, BATCH)[9].tolist() == [0, 1]
    with pytest.raises(Incomparable, match="has no row for each of the tokens"):
        by_form(numbers, FLAT_DECODE, BATCH)


# Which tokens of later steps go on with which sequences, and when that is not sure.


StreamFiles = Callable[[object], TensorRef]
Contained = tuple[tuple[Stretch, ...], ...]


@pytest.fixture
def file(tmp_path: Path) -> StreamFiles:
    def write(values: object) -> TensorRef:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pth"
        torch.save(torch.tensor(values), path)
        return TensorRef(str(path))

    return write


def rows(
    file: StreamFiles, ids: Sequence[int], positions: Sequence[int], lengths: Sequence[int] = ()
) -> TokenLayout:
    """A step of an engine."""
    told = file(list(lengths)) if lengths else None
    return TokenLayout((len(ids),), file(list(ids)), positions=file(list(positions)), lengths=told)


def batch(file: StreamFiles, ids: Sequence[Sequence[int]], before: int = 0) -> TokenLayout:
    """A step of Hugging Face without padding, `before` tokens of which are in its cache."""
    shape = len(ids), len(ids[0])
    mask = file([[1] * (shape[1] + before)] * shape[0])
    return TokenLayout(shape, file([list(each) for each in ids]), mask)


def steps(contexts: Contexts, layouts: Sequence[TokenLayout]) -> list[TokenLayout | None]:
    streams = TokenStreams(contexts)
    streams.run(layouts, None)
    return [streams.of_step(number, layout) for number, layout in enumerate(layouts)]


def met(golden: TokenLayout | None, mine: TokenLayout | None) -> tuple[list[int], list[int]]:
    """The rows that meet."""
    if golden is None or mine is None:
        return [], []
    both = context_rows(golden, mine)
    return both["golden"].tolist(), both["mine"].tolist()


def test_a_token_meets_the_one_with_the_same_tokens_before_it(file: StreamFiles) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[7, 8, 7, 9], [7, 8, 8, 9]])])
    chunks = [rows(file, [7, 8, 8], [0, 1, 2]), rows(file, [9, 7, 8], [3, 0, 1]), rows(file, [7, 9], [2, 3])]
    first, second, third = steps(contexts, chunks)
    assert met(whole, first) == ([0, 1, 6], [0, 1, 2])
    assert met(whole, second) == ([7, 0, 1], [0, 1, 2])
    assert met(whole, third) == ([2, 3], [0, 1])


def test_a_cache_goes_on_where_the_mask_says(file: StreamFiles) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[4, 4, 4, 4]])])
    prompt, decode = steps(contexts, [batch(file, [[4, 4, 4]]), batch(file, [[4]], before=3)])
    assert met(whole, prompt) == ([0, 1, 2], [0, 1, 2])
    assert met(whole, decode) == ([3], [0])


def test_a_batch_of_one_token_each_keeps_its_order(file: StreamFiles) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[7, 8, 5], [9, 8, 5]])])
    prompts = rows(file, [9, 8, 7, 8], [0, 1, 0, 1], [2, 2])
    _, decode = steps(contexts, [prompts, rows(file, [5, 5], [2, 2], [1, 1])])
    assert met(whole, decode) == ([5, 2], [0, 1])


def test_what_the_other_dump_goes_on_with_counts_more_than_the_order(file: StreamFiles) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[7, 8, 5], [9, 8, 6]])])
    _, decode = steps(contexts, [rows(file, [7, 8, 9, 8], [0, 1, 0, 1], [2, 2]), rows(file, [6, 5], [2, 2])])
    assert met(whole, decode) == ([5, 2], [0, 1])


def test_two_that_may_go_on_alike_and_never_ran_together_are_left_alone(file: StreamFiles) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[7, 8, 5, 1], [9, 8, 5, 2]])])
    apart = [rows(file, [7, 8], [0, 1]), rows(file, [9, 8], [0, 1])]
    *_, decode, later = steps(contexts, [*apart, rows(file, [5, 5], [2, 2]), rows(file, [1, 2], [3, 3])])
    assert met(whole, decode) == met(whole, later) == ([], [])


def test_neighbours_whose_positions_go_on_are_told_apart_by_the_other_dump(file: StreamFiles) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 3]])])
    first = rows(file, [1, 2, 6, 7, 8], [0, 1, 0, 1, 2])
    _, both = steps(contexts, [first, rows(file, [3, 9], [2, 3])])
    assert met(whole, both) == ([2, 8], [0, 1])


def test_lengths_of_whole_sequences_do_not_say_where_those_of_a_step_end(file: StreamFiles) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 3]])])
    first = rows(file, [1, 2, 6, 7, 8], [0, 1, 0, 1, 2], [2, 3])
    _, both = steps(contexts, [first, rows(file, [3, 9, 3], [2, 3, 4], [3, 5])])
    assert met(whole, both) == ([2, 8, 9], [0, 1, 2])


def test_neighbours_that_either_may_go_on_with_are_left_alone(file: StreamFiles) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[1, 2, 3, 9, 5], [6, 7, 8, 9, 3]])])
    first = rows(file, [1, 2, 6, 7, 8], [0, 1, 0, 1, 2])
    _, both = steps(contexts, [first, rows(file, [3, 9], [2, 3])])
    assert both is None
    assert whole is not None


def test_a_step_whose_beginning_was_not_dumped_is_found_where_only_one_can_be_meant(
    file: StreamFiles,
) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[1, 2, 3, 4], [1, 2, 4, 4]])])
    [third] = steps(contexts, [rows(file, [4, 3], [2, 2], [1, 1])])
    assert met(whole, third) == ([6, 2], [0, 1])
    [fourth] = steps(contexts, [rows(file, [4], [3])])
    assert fourth is None


def test_rows_that_fill_a_batch_are_no_tokens(file: StreamFiles) -> None:
    contexts = Contexts()
    _, decode = steps(contexts, [rows(file, [1, 2], [0, 1]), rows(file, [3, 0, 0], [2, 0, 0])])
    assert decode is not None
    assert [len(each) for each in decode.contexts or ()] == [1, 0, 0]


def test_borders_of_sequences_may_be_told_as_sums(file: StreamFiles) -> None:
    sums = rows(file, [1, 2, 3, 4, 5], [3, 4, 5, 0, 1], [0, 1, 3, 5])
    [layout] = steps(Contexts(), [sums])
    assert layout is not None
    assert [len(each) for each in layout.contexts or ()] == [0, 0, 1]


# Two runs that hold the same tokens in other steps: which steps meet, what is compared, what is found.


LENGTHS = (9, 7)
SPEC = Spec(lengths=LENGTHS, layers=1)
MIXED = batched(LENGTHS, 5, 2)
"""Five passes, the third of which answers the first prompt and goes on with the second."""


def verdicts(made: Plan) -> Counter[str]:
    return Counter(row.verdict for row in run(made)[0])


def ids_of(made: Plan) -> dict[object, list[int]]:
    """The token ids that are compared in each step."""
    found: dict[object, list[int]] = {}
    for pair in made.pairs:
        if pair.fed == "token ids" and pair.mine.node == "root.model.embed_tokens":
            opened = open_pair(pair)
            ids = [side.read(0, math.prod(side.shape)).tolist() for side in (opened.golden, opened.mine)]
            assert ids[0] == ids[1]
            found[pair.step] = ids[1]
    return found


def one(made: Plan, step: object, node: str, slot: str = "output[0]") -> Pair:
    [pair] = [
        p for p in made.pairs if p.step == step and (p.mine.node, p.mine.slot) == (f"root.{node}", slot)
    ]
    return pair


def case(
    prompts: list[int], answers: int, size: int, mixed: bool, ranks: int, pad: str, seed: int
) -> tuple[Spec, list[Pass]]:
    lengths = tuple(prompt + answers for prompt in prompts)
    passes = (batched if mixed else in_chunks)(lengths, size, answers)
    spec = Spec(lengths=lengths, layers=1, ranks=ranks, pad=pad, seed=seed, head_norms=seed % 2 == 0)
    return replace(spec, says_lengths=seed % 3 > 0), passes


CASES = st.builds(
    case,
    prompts=st.lists(st.integers(2, 7), min_size=1, max_size=3),
    answers=st.integers(0, 3),
    size=st.integers(3, 6),
    mixed=st.booleans(),
    ranks=st.sampled_from((1, 2)),
    pad=st.sampled_from(("left", "right")),
    seed=st.integers(0, 7),
)


@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@given(drawn=CASES)
def test_every_token_of_every_pass_meets_its_row_of_the_one_full_pass(drawn: tuple[Spec, list[Pass]]) -> None:
    spec, passes = drawn
    with tempfile.TemporaryDirectory() as home:
        golden = hugging_face(spec, Path(home) / "golden")
        made = plan(golden, engine_in(passes, spec, Path(home) / "mine"))
        assert verdicts(made) == {"pass": len(made.pairs)}
        counts = [sum(end - start for _, start, end in each) for each in passes]
        assert [len(ids) for ids in ids_of(made).values()] == counts
        assert len(set(Counter(pair.step for pair in made.pairs).values())) == 1


def test_the_other_way_round_the_engine_is_golden(tmp_path: Path) -> None:
    made = plan(engine_in(MIXED, SPEC, tmp_path / "golden"), hugging_face(SPEC, tmp_path / "mine"))
    assert verdicts(made) == {"pass": len(made.pairs)}
    assert {pair.step for pair in made.pairs} == set(range(len(MIXED)))
    said = "5 of the 5 tokens of step 1 of golden are among the 16 of step 0 of mine"
    assert said in one(made, 1, "model.norm").reason


@pytest.mark.parametrize("kind", ["norm", slow("reduce")])
def test_a_fault_in_one_pass_is_found_there(kind: str, tmp_path: Path) -> None:
    spec = replace(SPEC, ranks=2)
    golden = hugging_face(SPEC, tmp_path / "golden")
    mine = engine_in(MIXED, spec, tmp_path / "mine", {3: Fault(kind, layer=0)})
    rows, diagnosis = run(plan(golden, mine))
    assert {row.step for row in rows if row.red} == {3}
    at = {"norm": "post_attention_layernorm", "reduce": "mlp.down_proj"}[kind]
    assert diagnosis.roots[0].row.mine.node == f"root.model.layers.0.{at}"


@pytest.mark.parametrize(("turned", "pad"), [(False, "left"), (True, "right")])
def test_two_runs_of_one_model_meet_when_one_has_a_cache(turned: bool, pad: str, tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8) if pad == "right" else (8, 6), pad=pad, layers=1)
    whole, cached = hugging_face(spec, tmp_path / "a"), hugging_face_in((4, 6, 7), spec, tmp_path / "b")
    made = plan(*((cached, whole) if turned else (whole, cached)))
    assert verdicts(made) == {"pass": len(made.pairs)}
    assert {pair.step for pair in made.pairs} == {0, 1, 2, 3}
    assert {pair.policy for pair in made.pairs} == {"name"}
    down = one(made, 2, "model.layers.0.mlp.down_proj")
    assert tuple(open_pair(down).golden.shape) == tuple(open_pair(down).mine.shape) == (2, spec.hidden)
    refused = {(gap.step, gap.node) for gap in made.unmapped}
    assert {(step, "root") for step in (1, 2)} <= refused
    assert {node for _, node in refused} <= {"root", "root.model"}


def test_logits_of_the_last_token_alone_meet_the_pass_that_has_it(tmp_path: Path) -> None:
    golden = hugging_face(SPEC, tmp_path / "golden")
    made = plan(golden, engine_in(in_chunks(LENGTHS, 4, 1), SPEC, tmp_path / "mine"))
    for step, rows in ((0, 1), (1, 1), (4, 2)):
        assert tuple(open_pair(one(made, step, "logits_processor")).golden.shape) == (rows, SPEC.vocabulary)


def test_passes_before_the_first_real_one_are_left_out_and_said(tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8), layers=1)
    golden = hugging_face_in((7,), spec, tmp_path / "golden")
    warm_up = [
        engine_in([[(0, 0, n)]], Spec(lengths=(n,), dummy=1, layers=1), tmp_path / str(n)) for n in (5, 16)
    ]
    real = engine_in([[(0, 0, 7), (1, 0, 7)], *token_by_token((7, 7), 1)], spec, tmp_path / "mine")
    made = plan(golden, after(warm_up, real))
    assert verdicts(made) == {"pass": len(made.pairs)}
    assert {pair.step for pair in made.pairs} == {0, 1}
    assert "steps meet by their tokens (golden = mine): 0 = 2, 1 = 3" in made.notes
    assert any(
        note.startswith("mine: no token of step 0, 1 is one of the other side's") for note in made.notes
    )


def test_a_prompt_that_was_run_to_warm_up_is_followed_by_the_one_that_goes_on(tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8), layers=1)
    prompt: Pass = [(0, 0, 7), (1, 0, 7)]
    mine = engine_in([prompt, prompt, *token_by_token((7, 7), 1)], spec, tmp_path / "mine")
    made = plan(hugging_face_in((7,), spec, tmp_path / "golden"), mine)
    assert "steps meet by their tokens (golden = mine): 0 = 1, 1 = 2" in made.notes


def test_rows_that_fill_up_a_batch_are_no_tokens(tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8, 1), dummy=1, layers=1)
    passes: list[Pass] = [[(0, 0, 7), (1, 0, 7)], [(0, 7, 8), (1, 7, 8), (2, 0, 1)]]
    golden = hugging_face(replace(spec, lengths=(8, 8), dummy=0), tmp_path / "golden")
    made = plan(golden, engine_in(passes, spec, tmp_path / "mine"))
    assert [len(ids) for ids in ids_of(made).values()] == [14, 2]
    assert verdicts(made) == {"pass": len(made.pairs)}


@pytest.mark.parametrize(
    ("value", "words"),
    [(math.nan, "NaN"), slow(-math.inf, "Inf"), slow(1e20, "values beyond 1.8e+19"), (1e6, "")],
)
def test_what_rows_hold_that_fill_up_a_batch_is_said_with_the_place(
    value: float, words: str, tmp_path: Path
) -> None:
    spec = Spec(lengths=(8, 8, 1), dummy=1)
    passes: list[Pass] = [[(0, 0, 7), (1, 0, 7)], [(0, 7, 8), (1, 7, 8), (2, 0, 1)]]
    golden = hugging_face(replace(spec, lengths=(8, 8), dummy=0), tmp_path / "golden")
    made = plan(golden, engine_in(passes, spec, tmp_path / "mine"))
    for ref in one(made, 1, "model.layers.1.self_attn.o_proj").mine.refs:
        tensor = torch.load(ref.path)
        tensor[2] = value
        torch.save(tensor, ref.path)
    tally = Tally()
    for row in run(made)[0]:
        tally.add(row)
    assert tally.counts == {"pass": len(made.pairs)}
    place = "1 tensor, first in root.model.layers.1.self_attn.o_proj"
    lines = [f"{words} in rows that are not judged of {place}"] * bool(words)
    assert [line for line in summary_lines(tally, made, 0.5) if "not judged" in line] == lines


def test_steps_of_the_same_tokens_meet_by_their_numbers_as_ever(tmp_path: Path) -> None:
    spec = Spec(lengths=(8, 8), layers=1)
    golden, mine = (hugging_face_in((7,), spec, tmp_path / name) for name in ("golden", "mine"))
    made = plan(golden, mine)
    assert not [note for note in made.notes if "tokens" in note]
    assert {pair.reason for pair in made.pairs} == {"equal names"}


def test_another_prompt_is_not_looked_for_in_other_steps(tmp_path: Path) -> None:
    golden = hugging_face(SPEC, tmp_path / "golden")
    mine = engine_in(MIXED, replace(SPEC, seed=1), tmp_path / "mine")
    made = plan(golden, mine)
    assert not [note for note in made.notes if "tokens" in note]
    rows, _ = run(made)
    assert any(row.red and row.fed == "token ids" for row in rows)
