"""Which rows of two dumps are the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from acc_pytest.mapping.token_order import pick_tokens, token_order
from acc_pytest.mapping.views import TokenLayout, TokenPick
from acc_pytest.tensors.ref import TensorRef

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
