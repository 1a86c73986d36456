"""Which tokens of later steps go on with which sequences, and when that is not sure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from acc_pytest.mapping.token_order import context_rows
from acc_pytest.mapping.token_sequences import Contexts, TokenStreams
from acc_pytest.mapping.views import Stretch, TokenLayout
from acc_pytest.tensors.ref import TensorRef

Files = Callable[[object], TensorRef]
Contained = tuple[tuple[Stretch, ...], ...]


@pytest.fixture
def file(tmp_path: Path) -> Files:
    def write(values: object) -> TensorRef:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pth"
        torch.save(torch.tensor(values), path)
        return TensorRef(str(path))

    return write


def rows(
    file: Files, ids: Sequence[int], positions: Sequence[int], lengths: Sequence[int] = ()
) -> TokenLayout:
    """A step of an engine."""
    told = file(list(lengths)) if lengths else None
    return TokenLayout((len(ids),), file(list(ids)), positions=file(list(positions)), lengths=told)


def batch(file: Files, ids: Sequence[Sequence[int]], before: int = 0) -> TokenLayout:
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


def test_a_token_meets_the_one_with_the_same_tokens_before_it(file: Files) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[7, 8, 7, 9], [7, 8, 8, 9]])])
    chunks = [rows(file, [7, 8, 8], [0, 1, 2]), rows(file, [9, 7, 8], [3, 0, 1]), rows(file, [7, 9], [2, 3])]
    first, second, third = steps(contexts, chunks)
    assert met(whole, first) == ([0, 1, 6], [0, 1, 2])
    assert met(whole, second) == ([7, 0, 1], [0, 1, 2])
    assert met(whole, third) == ([2, 3], [0, 1])


def test_a_cache_goes_on_where_the_mask_says(file: Files) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[4, 4, 4, 4]])])
    prompt, decode = steps(contexts, [batch(file, [[4, 4, 4]]), batch(file, [[4]], before=3)])
    assert met(whole, prompt) == ([0, 1, 2], [0, 1, 2])
    assert met(whole, decode) == ([3], [0])


def test_a_batch_of_one_token_each_keeps_its_order(file: Files) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[7, 8, 5], [9, 8, 5]])])
    prompts = rows(file, [9, 8, 7, 8], [0, 1, 0, 1], [2, 2])
    _, decode = steps(contexts, [prompts, rows(file, [5, 5], [2, 2], [1, 1])])
    assert met(whole, decode) == ([5, 2], [0, 1])


def test_what_the_other_dump_goes_on_with_counts_more_than_the_order(file: Files) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[7, 8, 5], [9, 8, 6]])])
    _, decode = steps(contexts, [rows(file, [7, 8, 9, 8], [0, 1, 0, 1], [2, 2]), rows(file, [6, 5], [2, 2])])
    assert met(whole, decode) == ([5, 2], [0, 1])


def test_two_that_may_go_on_alike_and_never_ran_together_are_left_alone(file: Files) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[7, 8, 5, 1], [9, 8, 5, 2]])])
    apart = [rows(file, [7, 8], [0, 1]), rows(file, [9, 8], [0, 1])]
    *_, decode, later = steps(contexts, [*apart, rows(file, [5, 5], [2, 2]), rows(file, [1, 2], [3, 3])])
    assert met(whole, decode) == met(whole, later) == ([], [])


def test_neighbours_whose_positions_go_on_are_told_apart_by_the_other_dump(file: Files) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 3]])])
    first = rows(file, [1, 2, 6, 7, 8], [0, 1, 0, 1, 2])
    _, both = steps(contexts, [first, rows(file, [3, 9], [2, 3])])
    assert met(whole, both) == ([2, 8], [0, 1])


def test_lengths_of_whole_sequences_do_not_say_where_those_of_a_step_end(file: Files) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 3]])])
    first = rows(file, [1, 2, 6, 7, 8], [0, 1, 0, 1, 2], [2, 3])
    _, both = steps(contexts, [first, rows(file, [3, 9, 3], [2, 3, 4], [3, 5])])
    assert met(whole, both) == ([2, 8, 9], [0, 1, 2])


def test_neighbours_that_either_may_go_on_with_are_left_alone(file: Files) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[1, 2, 3, 9, 5], [6, 7, 8, 9, 3]])])
    first = rows(file, [1, 2, 6, 7, 8], [0, 1, 0, 1, 2])
    _, both = steps(contexts, [first, rows(file, [3, 9], [2, 3])])
    assert both is None
    assert whole is not None


def test_a_step_whose_beginning_was_not_dumped_is_found_where_only_one_can_be_meant(file: Files) -> None:
    contexts = Contexts()
    [whole] = steps(contexts, [batch(file, [[1, 2, 3, 4], [1, 2, 4, 4]])])
    [third] = steps(contexts, [rows(file, [4, 3], [2, 2], [1, 1])])
    assert met(whole, third) == ([6, 2], [0, 1])
    [fourth] = steps(contexts, [rows(file, [4], [3])])
    assert fourth is None


def test_rows_that_fill_a_batch_are_no_tokens(file: Files) -> None:
    contexts = Contexts()
    _, decode = steps(contexts, [rows(file, [1, 2], [0, 1]), rows(file, [3, 0, 0], [2, 0, 0])])
    assert decode is not None
    assert [len(each) for each in decode.contexts or ()] == [1, 0, 0]


def test_borders_of_sequences_may_be_told_as_sums(file: Files) -> None:
    sums = rows(file, [1, 2, 3, 4, 5], [3, 4, 5, 0, 1], [0, 1, 3, 5])
    [layout] = steps(Contexts(), [sums])
    assert layout is not None
    assert [len(each) for each in layout.contexts or ()] == [0, 0, 1]
