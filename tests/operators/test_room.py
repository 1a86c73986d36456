"""`Room`: what torch is about to make is known before it is made, and held against what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from acc_pytest.errors import OperatorError
from acc_pytest.operators import room
from acc_pytest.operators.room import CALLS, COPIES, FREE, PER_CALL, Room

X = torch.arange(6.0).reshape(2, 3)
ROWS = torch.tensor([0, 1, 1, 0, 1])


class Spy(Room):
    """Notes what was foreseen beside what was made."""

    def __init__(self) -> None:
        super().__init__("it", [torch.zeros(100)])
        self.found: list[tuple[int, int]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if not room._is_alias(func):
            foreseen = room._largest(func, args, kwargs or {})
            self.found.append((foreseen, max(one.numel() for one in room.tensors_in([made]))))
        return made


GROWING: Mapping[str, Callable[[], object]] = {
    "zeros": lambda: torch.zeros(3, 4),
    "full": lambda: torch.full((3, 4), 7.0),
    "empty": lambda: torch.empty(5),
    "new_full": lambda: X.new_full((4, 5), 1.0),
    "new_zeros": lambda: X.new_zeros(4, 5),
    "arange of one number": lambda: torch.arange(7),
    "arange of two": lambda: torch.arange(2, 7),
    "arange of three": lambda: torch.arange(0, 1, 0.3),
    "arange downwards": lambda: torch.arange(9, 1, -3),
    "eye": lambda: torch.eye(4),
    "repeat": lambda: X.repeat(3, 2, 2),
    "repeat_interleave": lambda: X.repeat_interleave(3, 1),
    "repeat_interleave by counts": lambda: X.repeat_interleave(torch.tensor([3, 2]), 0),
    "pad": lambda: torch.nn.functional.pad(X, (1, 2, 3, 0)),
    "a copy of a spread view": lambda: X[None].expand(5, 2, 3).contiguous(),
    "a sum after spreading": lambda: X[:, None, :] + X[None, :, :],
    "where": lambda: torch.where(X > 1, X, torch.zeros(4, 1, 1)),
    "matrices": lambda: X @ X.T,
    "a row of matrices": lambda: X.expand(4, 2, 3) @ X.T,
    "rows by number": lambda: X[ROWS],
    "elements by numbers": lambda: X[ROWS[:, None], torch.tensor([0, 2, 1])],
    "index_select": lambda: X.index_select(0, ROWS),
    "bincount": lambda: torch.bincount(ROWS, minlength=9),
    "cat": lambda: torch.cat([X, X, X]),
    "stack": lambda: torch.stack([X, X]),
    "einsum": lambda: torch.einsum("ij,kj->ik", X, X),
    "places": lambda: (X + 1).nonzero(),
    "what a mask chooses": lambda: X[X >= 0],
    "a mask and rows": lambda: X[X[:, 0] >= 0, torch.tensor([[0], [1], [2]])],
    "convolution": lambda: torch.nn.functional.conv1d(X[None], torch.ones(4, 2, 2)),
    "interpolate": lambda: torch.nn.functional.interpolate(X[None], 7),
    "topk": lambda: X.topk(2),
    "linspace": lambda: torch.linspace(0, 1, 9),
    "one_hot": lambda: torch.nn.functional.one_hot(ROWS, 8),
}


@pytest.mark.parametrize("call", GROWING.values(), ids=GROWING.keys())
def test_what_is_made_is_foreseen(call: Callable[[], object]) -> None:
    with Spy() as spy:
        call()
    assert spy.found
    for foreseen, made in spy.found:
        assert made <= foreseen <= 2 * made + X.numel()


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.zeros(2**40),
        lambda: torch.arange(2**40),
        lambda: X.repeat(2**20, 2**20),
        lambda: X.expand(2**40, 2, 3).contiguous(),
        lambda: X.expand(2**40, 2, 3) + 1,
        lambda: torch.nn.functional.pad(X, (0, 2**40)),
        lambda: torch.bincount(torch.tensor([2**40])),
        lambda: torch.arange(2**9)[:, None] * torch.arange(2**9),
        lambda: torch.linspace(0, 1, 2**40),
        lambda: torch.nn.functional.interpolate(X[None], 2**40),
    ],
)
def test_what_is_out_of_proportion_is_refused_before_it_is_made(call: Callable[[], object]) -> None:
    with pytest.raises(OperatorError, match="its inputs and outputs have 6 elements"), Room("it", [X, None]):
        call()


def test_pairs_of_tokens_have_more_room() -> None:
    x = torch.zeros(FREE)
    most = FREE + COPIES * FREE
    with Room("it", [x], pairs=True):
        torch.zeros(2 * most)
    with pytest.raises(OperatorError, match=f"a tensor of {2 * most} elements"), Room("it", [x]):
        torch.zeros(2 * most)


def test_a_loop_without_end_is_ended() -> None:
    turns = []

    def loop() -> None:
        while True:
            turns.append(torch.zeros(1))

    with pytest.raises(OperatorError, match="more work"), Room("it", []):
        loop()
    assert len(turns) <= CALLS * FREE // PER_CALL


def test_no_numbers_are_drawn() -> None:
    with pytest.raises(OperatorError, match="draws numbers at random"), Room("it", [X]):
        torch.nn.functional.dropout(X, 0.5)


def test_nothing_is_moved_to_a_device() -> None:
    with pytest.raises(OperatorError, match="would move a tensor to vulkan"), Room("it", [X]):
        torch.empty_like(X, device="vulkan")
    with Room("it", [X]):
        assert torch.empty_like(X, device="meta").is_meta


def test_no_compiler_is_imported_for_it() -> None:
    """Torch wraps the method to keep its compiler out of it, and would import the compiler for that."""
    assert not hasattr(Room.__torch_dispatch__, "__wrapped__")
