"""Operators of aten called again: arguments told by the schema, results by torch, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acc_pytest.diagnosis.aten import Results, results
from acc_pytest.errors import OperatorError

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
W = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))
T = torch.tensor


def stored(args: list[Any]) -> dict[tuple[int | str, ...], torch.Tensor | None]:
    """Arguments as files hold them: numbers and lists of numbers as arrays, lists of tensors one by one."""
    held: dict[tuple[int | str, ...], torch.Tensor | None] = {}
    for place, value in enumerate(args):
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            held |= {(place, item): tensor for item, tensor in enumerate(value)}
        else:
            held[place,] = value if value is None or isinstance(value, torch.Tensor) else T(value)
    return held


def called(
    target: str, args: list[Any], *right: torch.Tensor, keywords: bool = True, **named: Any
) -> Results:
    held = stored(args) | {(name,): None if value is None else T(value) for name, value in named.items()}
    return results(target, held, [tuple(tensor.shape) for tensor in right], keywords=keywords)


@pytest.mark.parametrize(
    ("target", "args", "right"),
    [
        ("aten.cat.default", [[X, 2 * X], 1], [torch.cat([X, 2 * X], 1)]),
        ("aten.stack.default", [[X, 2 * X]], [torch.stack([X, 2 * X])]),
        ("aten.split.Tensor", [X, 3, 1], list(X.split(3, 1))),
        ("aten.split_with_sizes.default", [X, [1, 3], 1], list(X.split([1, 3], 1))),
        ("aten.permute.default", [X, [1, 0]], [X.T]),
        ("aten.index_select.default", [X, 0, T([2, 0])], [X[[2, 0]]]),
        ("aten.where.self", [X > 0, X, 2 * X], [torch.where(X > 0, X, 2 * X)]),
        ("aten.mul.Scalar", [X, 0.5], [X * 0.5]),
        ("aten.pow.Tensor_Scalar", [X, 2], [X**2]),
        ("aten.mean.dim", [X, [1], True], [X.mean(1, keepdim=True)]),
        ("aten.clamp.default", [X, -0.5, 0.5], [X.clamp(-0.5, 0.5)]),
        ("aten.clamp.default", [X, None, 0.5], [X.clamp(max=0.5)]),
        ("aten.any.dim", [X > 0, 1, True], [(X > 0).any(1, keepdim=True)]),
        ("aten.native_layer_norm.default", [X, [4], torch.ones(4), torch.zeros(4), 1e-5], None),
        ("aten.topk.default", [X, 2, 1, True, True], list(X.topk(2, 1))),
        ("aten.sort.default", [X, 1, True], list(X.sort(1, True))),
    ],
)
def test_every_result_is_that_of_the_call(
    target: str, args: list[Any], right: list[torch.Tensor] | None
) -> None:
    right = list(torch.native_layer_norm(*args)) if right is None else right
    call = called(target, args, *right)
    for index, tensor in enumerate(right):
        made = call.output(index)
        if made.image is None:
            torch.testing.assert_close(made.value.to(tensor.dtype), tensor)
        else:
            assert bool((made.image(made.value) == made.image(tensor)).all())
    assert call.certain


def test_a_result_that_the_call_has_not_is_an_error() -> None:
    with pytest.raises(OperatorError, match=r"has 1 results, 2 were dumped"):
        called("aten.neg.default", [X], X).output(1)


def test_arithmetic_is_done_in_float64_but_what_is_moved_stays_as_it_is() -> None:
    product = called("aten.mm.default", [X, W], X @ W).output(0)
    assert torch.equal(product.value, X.double() @ W.double())
    assert not product.moved
    for target, args, right in (
        ("aten.t.default", [X], X.T),
        ("aten.clone.default", [X], X),
        ("aten.cat.default", [[X, X], 0], torch.cat([X, X])),
        ("aten.flip.default", [X, [0]], X.flip(0)),
        ("aten.tril.default", [X], X.tril()),
        ("aten.repeat.default", [X, [2, 1]], X.repeat(2, 1)),
        ("aten.gather.default", [X, 1, T([[0], [1], [2]])], X[range(3), range(3)][:, None]),
    ):
        made = called(target, args, right).output(0)
        assert (made.value.dtype, made.moved) == (torch.float32, True), target
    softmax = called("aten._softmax.default", [X.half(), 1, True], X.softmax(1)).output(0)
    assert softmax.value.dtype == torch.float64


def test_sums_know_their_length_and_the_sizes_of_what_they_add() -> None:
    product = called("aten.mm.default", [X, W], X @ W).output(0)
    assert product.terms == 5, "the longest last dimension"
    assert product.magnitude is not None
    torch.testing.assert_close(product.magnitude(), X.double().abs() @ W.double().abs())
    assert called("aten.exp.default", [X], X).output(0).magnitude is None
    assert called("aten.neg.default", [T(1.0)], T(1.0)).output(0).terms == 1
    for target in (
        "aten.add.Tensor",
        "aten.mul.Tensor",
        "aten.sub.Tensor",
        "aten.div.Tensor",
        "aten.maximum.default",
    ):
        assert called(target, [X, X], X).output(0).singly, target
    assert not product.singly


def test_a_keyword_that_was_not_dumped_may_have_any_of_its_few_values() -> None:
    gelu = called("aten.gelu.default", [X], X, keywords=False)
    assert gelu.certain
    [other] = gelu.output(0).others
    torch.testing.assert_close(other.float(), torch.nn.functional.gelu(X, approximate="tanh"))
    assert called("aten.gelu.default", [X], X).output(0).others == ()
    rounded = called("aten.div.Tensor_mode", [X, W[0, 0]], X, keywords=False)
    made = rounded.output(0)
    quotient = X.double() / W[0, 0].double()
    assert torch.equal(made.value, quotient)
    trunc, floor = made.others
    assert torch.equal(trunc, quotient.trunc())
    assert torch.equal(floor, quotient.floor())
    assert not made.singly
    assert not called("aten.add.Tensor", [X, X], X, keywords=False).certain, "alpha may be any number"
    cast = called("aten._to_copy.default", [X], X, keywords=False)
    assert cast.certain, "how a result is stored is not what it is"


def test_keywords_are_given_but_for_how_a_result_is_stored() -> None:
    added = called("aten.add.Tensor", [X, X], X, alpha=2)
    torch.testing.assert_close(added.output(0).value.float(), 3 * X)
    name, args, given = added.description
    assert (name, args, given) == ("aten.add.Tensor", [None, None], {"alpha": 2})
    stored_as = called("aten.clone.default", [X], X, memory_format=None)
    assert stored_as.description[2] == {}


def test_a_call_is_told_by_everything_beside_its_tensors() -> None:
    assert called("aten.cat.default", [[X, X], 1], torch.cat([X, X], 1)).description == (
        "aten.cat.default", [[None, None], 1], {},
    )  # fmt: skip
    assert called("aten.permute.default", [X, [1, 0]], X.T).description[1] == [None, [1, 0]]


@pytest.mark.parametrize(
    ("target", "held", "said"),
    [
        ("aten.mm.default", {(0,): X}, "cannot be called: aten::mm.. is missing value for argument 'mat2'"),
        ("aten.mm.default", {(1,): W}, "argument self was not dumped"),
        ("aten.cat.default", {(1,): T(1)}, "argument tensors was not dumped"),
        ("aten.mm.default", {(0,): X, (1, 0): W}, "argument mat2 was not dumped"),
        ("aten.mm.default", {(0,): X, (1,): W, (2,): W}, "takes 2 arguments, 3 were dumped"),
        ("aten.mm.default", {(0,): X, (1,): None}, "its file does not hold argument mat2 of type Tensor"),
        ("aten.permute.default", {(0,): X, (1,): X}, "argument dims of type List"),
        ("aten.permute.default", {(0,): X, (1,): None}, "argument dims of type List"),
        ("aten.argmax.default", {(0,): X, (1,): T([1])}, r"argument dim of type Optional\[int\]"),
        ("aten.mm.default", {(0,): X, (1,): X}, "cannot be called"),
        ("aten.full.default", {(0,): T([2, 2]), (1,): T(1.0)}, "other shapes than were dumped"),
        ("aten.equal.default", {(0,): X, (1,): X}, "cannot be called|makes no tensors"),
    ],
)
def test_what_a_file_does_not_hold_for_certain_is_an_error(
    target: str, held: dict[Any, Any], said: str
) -> None:
    with pytest.raises(OperatorError, match=said):
        results(target, held, [(3, 5)], keywords=True)


def test_items_of_a_list_are_in_their_order() -> None:
    many = [X * number for number in range(11)]
    held = dict(reversed(stored([many]).items()))
    made = results("aten.stack.default", held, [(11, 3, 4)], keywords=True).output(0)
    assert torch.equal(made.value, torch.stack(many))
