"""Rows of tensors as tokens, by their shapes, and how far each token is off, against plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from acc_pytest.comparison.tokens import Sequences, levels, routed_rows, strangers, token_rows
from acc_pytest.judging.tolerance import tolerance
from acc_pytest.mapping.pair import Operand, Pair
from acc_pytest.metrics.kernel import measure
from acc_pytest.tensors.source import PickedRows, TensorSource

SIDE = Operand("n", "n", "Linear", "output[0]", ())
PAIR = Pair("p", 0, None, "op", "layers.0", 1, 0, "name", "", SIDE, SIDE)
TWO_OF_THREE = Sequences(2, 3)


@pytest.mark.parametrize(
    ("shape", "tokens", "row"),
    [
        ((2, 3, 8), [0, 1, 2, 3, 4, 5], (8,)),
        ((6, 8), [0, 1, 2, 3, 4, 5], (8,)),
        ((3, 2, 8), [0, 3, 1, 4, 2, 5], (8,)),
        ((2, 3, 4, 8), [0, 1, 2, 3, 4, 5], (4, 8)),
        ((2, 2, 3, 8), [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5], (8,)),
        ((2, 1, 8), [2, 5], (8,)),
        ((6,), [0, 1, 2, 3, 4, 5], ()),
    ],
)
def test_tokens_are_found_where_layouts_put_them(
    shape: tuple[int, ...], tokens: list[int], row: tuple[int, ...]
) -> None:
    rows = token_rows(shape, TWO_OF_THREE)
    assert rows is not None
    assert (rows.tokens.tolist(), rows.shape) == (tokens, row)
    assert rows.golden.tolist() == rows.mine.tolist() == list(range(len(tokens)))


@pytest.mark.parametrize("shape", [(5, 7), (2, 0, 8), (7,), ()])
def test_a_tensor_without_tokens_has_none(shape: tuple[int, ...]) -> None:
    assert token_rows(shape, TWO_OF_THREE) is None


def test_of_a_single_token_everything_is_a_row() -> None:
    rows = token_rows((2, 34, 8), Sequences(1, 1))
    assert rows is not None
    assert (rows.tokens.tolist(), rows.shape) == ([0], (2, 34, 8))


def test_what_is_left_keeps_its_place_in_golden() -> None:
    rows = token_rows((2, 2, 3, 8), TWO_OF_THREE)
    assert rows is not None
    left = rows.without(torch.tensor([True, False, False, False, True, False]))
    assert left.tokens.tolist() == [1, 2, 1, 2, 3, 5, 3, 5]
    assert left.index((4, 7)) == (1, 0, 0, 7)


def test_what_was_measured_of_the_rest_is_placed_in_golden() -> None:
    golden = torch.randn(1, 2, 12, 8)
    mine = golden.clone()
    mine[0, 1, 9, 3] += 5
    rows = token_rows(tuple(golden.shape), Sequences(1, 12))
    assert rows is not None
    rows = rows.without(torch.arange(12) < 7)
    measured = rows.placed(measure(*rows.of(TensorSource(golden), TensorSource(mine))))
    assert measured.worst is not None
    assert (measured.worst.index, measured.slices.worst_row) == ((0, 1, 9, 3), "[0, 1, 9, :]")


@pytest.mark.parametrize("bounds", [(0, 40), (3, 17), (16, 24), (39, 40), (8, 8)])
def test_picked_rows_read_as_plain_indexing(bounds: tuple[int, int]) -> None:
    tensor = torch.randn(9, 2, 4)
    picked = torch.tensor([7, 8, 0, 3, 4])
    source = PickedRows(TensorSource(tensor), picked, (2, 4))
    assert source.shape == (5, 2, 4)
    assert source.read(*bounds).equal(tensor[picked].reshape(-1)[slice(*bounds)])


def test_levels_are_the_errors_of_tokens_as_shares_of_their_bounds() -> None:
    golden = torch.randn(2, 3, 4, 64)
    mine = golden + torch.randn_like(golden) * torch.linspace(0, 0.01, 3)[:, None, None]
    rows = token_rows((2, 3, 4, 64), TWO_OF_THREE)
    assert rows is not None
    found = levels(PAIR, TensorSource(golden), TensorSource(mine.half()), rows, 6)
    error, golden_norm = ((mine.half().double() - golden.double()), golden.double())
    bound = tolerance("float32", "float16", 1, 256, elements=256).value
    by_norm = error.flatten(2).norm(dim=-1) / golden_norm.flatten(2).norm(dim=-1) / bound
    rms, peak = golden_norm.square().mean().sqrt(), golden_norm.abs().max()
    of_one = tolerance("float32", "float16", 1, 256).value * torch.maximum(8 * rms, peak)
    by_element = error.abs().flatten(2).amax(-1) / of_one
    assert torch.allclose(found, torch.maximum(by_norm, by_element).reshape(-1))


def test_a_value_that_is_none_is_off_without_limit_and_equal_ones_are_not() -> None:
    golden = torch.ones(2, 3, 8)
    golden[0, 0, 0] = torch.inf
    mine = golden.clone()
    mine[1, 1, 1] = torch.nan
    rows = token_rows((2, 3, 8), TWO_OF_THREE)
    assert rows is not None
    found = levels(PAIR, TensorSource(golden), TensorSource(mine), rows, 6)
    assert found.tolist() == [0, 0, 0, 0, torch.inf, 0]


@pytest.mark.parametrize("stable", [True, False, None])
def test_rows_of_choices_are_brought_together_whichever_way_they_are_sorted(stable: bool | None) -> None:
    generator = torch.Generator().manual_seed(3)
    golden = torch.stack([torch.randperm(8, generator=generator)[:2] for _ in range(50)])
    mine = golden.clone()
    mine[7, 1] = next(expert for expert in range(8) if expert not in mine[7])
    made = torch.randn(50, 8, 16, generator=generator)
    sources = []
    for chosen in (golden, mine):
        rows = made.gather(1, chosen[..., None].expand(-1, -1, 16)).reshape(100, 16)
        order = torch.arange(100) if stable is None else chosen.reshape(-1).sort(stable=stable).indices
        sources.append(TensorSource(rows[order]))
    ours, theirs = sources
    possible = routed_rows((100, 16), golden, mine)
    best = min(possible, key=lambda rows: strangers(ours, theirs, rows))
    assert strangers(ours, theirs, best) == 0
    assert sorted(set(best.tokens.tolist())) == [token for token in range(50) if token != 7]
    assert not levels(PAIR, ours, theirs, best, 50).any()
    assert strangers(ours, theirs, replace(best, mine=best.mine.flip(0))) > 0.25


def test_a_tensor_of_other_sizes_is_not_one_of_choices() -> None:
    assert routed_rows((33, 16), torch.zeros(50, 2), torch.zeros(50, 2)) == []
