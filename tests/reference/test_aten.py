"""Operators of aten called again: arguments told by the schema, results by torch, and what is not known."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.errors import OperatorError
from acc_pytest.mapping.planner import plan
from acc_pytest.reference.aten import Results, function_results, results
from acc_pytest.reference.golden_model.replay import refusing_mixtures
from acc_pytest.reference.modules import TorchRecomputer, function_of
from acc_pytest.reference.recomputation import LOOKING

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
        ("aten.native_layer_norm.default", [X, [4], None, None, 1e-5], None),
        ("aten.layer_norm.default", [X, [4], None, None, 1e-5], [F.layer_norm(X, [4])]),
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


# Functions of torch by the names of dumps, against torch itself.


INPUT = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
WEIGHT = torch.linspace(-1, 1, 20).reshape(5, 4)
IDS = torch.tensor([[0, 3], [4, 1]])
HEADS = torch.linspace(-1, 1, 96).reshape(1, 2, 6, 8)
WIDE = HEADS.double()
SIZES = INPUT.abs() + 1
BIAS = WEIGHT[:, 0]

CALLS: list[tuple[str, list[Any], dict[str, Any], Callable[[], torch.Tensor]]] = [
    ("Functional.linear", [INPUT, WEIGHT, None], {},
     lambda: F.linear(INPUT.double(), WEIGHT.double())),
    ("Functional.linear", [INPUT, WEIGHT], {"bias": BIAS},
     lambda: F.linear(INPUT.double(), WEIGHT.double(), BIAS.double())),
    ("Functional.softmax", [INPUT], {"dim": -1, "_stacklevel": 3}, lambda: INPUT.double().softmax(-1)),
    ("Functional.softmax", [INPUT], {"dim": -1, "dtype": torch.float32}, lambda: INPUT.double().softmax(-1)),
    ("Functional.silu", [INPUT], {"inplace": False}, lambda: F.silu(INPUT.double())),
    ("Functional.gelu", [INPUT], {"approximate": "tanh"}, lambda: F.gelu(INPUT.double(), approximate="tanh")),
    ("Functional.embedding", [IDS, WEIGHT, 0, None, 2.0, False, False], {}, lambda: WEIGHT[IDS].double()),
    ("Functional.dropout", [INPUT], {"p": 0.5, "training": False}, lambda: INPUT.double()),
    ("Functional.layer_norm", [INPUT, [4]], {"eps": 1e-3},
     lambda: F.layer_norm(INPUT.double(), [4], eps=1e-3)),
    (
        "Functional.scaled_dot_product_attention", [HEADS, HEADS, HEADS], {"is_causal": True, "scale": 0.3},
        lambda: F.scaled_dot_product_attention(WIDE, WIDE, WIDE, is_causal=True, scale=0.3),
    ),
    ("Torch.matmul", [INPUT, WEIGHT.T.contiguous()], {}, lambda: INPUT.double() @ WEIGHT.double().T),
    ("Torch.cat", [[INPUT, INPUT]], {"dim": -1}, lambda: torch.cat([INPUT, INPUT], -1).double()),
    ("Torch.where", [INPUT > 0, INPUT, 0.5], {}, lambda: torch.where(INPUT > 0, INPUT, 0.5).double()),
    ("Torch.diff", [IDS], {"prepend": IDS[:, :1], "dim": -1}, lambda: IDS.diff(prepend=IDS[:, :1])),
    ("Torch.einsum", ["bij,kj->bik", INPUT, WEIGHT], {},
     lambda: torch.einsum("bij,kj->bik", INPUT.double(), WEIGHT.double())),
    ("Torch.einsum", ["bij,kj->bik", [INPUT, WEIGHT]], {},
     lambda: torch.einsum("bij,kj->bik", INPUT.double(), WEIGHT.double())),
    ("Torch.rsqrt", [SIZES], {}, lambda: SIZES.double().rsqrt()),
    ("Tensor.__add__", [INPUT, 3], {}, lambda: INPUT.double() + 3),
    ("Tensor.__iadd__", [INPUT, INPUT], {}, lambda: INPUT.double() * 2),
    ("Tensor.add_", [INPUT], {"other": INPUT, "alpha": 2}, lambda: INPUT.double() * 3),
    ("Tensor.__rsub__", [INPUT, 1.5], {}, lambda: 1.5 - INPUT.double()),
    ("Tensor.__le__", [IDS, 2], {}, lambda: IDS <= 2),
    ("Tensor.pow", [INPUT, 2], {}, lambda: INPUT.double() ** 2),
    ("Tensor.mean", [INPUT, -1], {"keepdim": True}, lambda: INPUT.double().mean(-1, keepdim=True)),
    ("Tensor.reshape", [INPUT, 4, 6], {}, lambda: INPUT.reshape(4, 6).double()),
    ("Tensor.reshape", [INPUT, -1], {}, lambda: INPUT.reshape(-1).double()),
    ("Tensor.view", [INPUT, [6, 4]], {}, lambda: INPUT.view(6, 4).double()),
    ("Tensor.permute", [INPUT, [2, 0, 1]], {}, lambda: INPUT.permute(2, 0, 1).double()),
    ("Tensor.float", [INPUT.bfloat16()], {}, lambda: INPUT.bfloat16().double()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs", "exact"), CALLS, ids=[call[0] for call in CALLS])
def test_a_function_makes_what_torch_makes_in_float64(
    name: str, args: list[Any], kwargs: dict[str, Any], exact: Callable[[], torch.Tensor]
) -> None:
    prefix, _, function = name.partition(".")
    expected = exact()
    results = function_results(prefix, function, args, kwargs, [tuple(expected.shape)])
    torch.testing.assert_close(results.output(0).value.to(expected.dtype), expected, rtol=1e-12, atol=1e-12)


def test_several_results_are_told_apart() -> None:
    values, places = INPUT.topk(2)
    results = function_results("Tensor", "topk", [INPUT, 2], {}, [tuple(values.shape)] * 2)
    assert torch.equal(results.output(0).value.float(), values)
    assert torch.equal(results.output(1).value, places)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "said"),
    [
        ("Functional.dropout", [INPUT], {"p": 0.5}, "a dropout that drops"),
        ("Functional.embedding", [IDS, WEIGHT], {"max_norm": 1.0}, "renormalises"),
        ("Functional.scaled_dot_product_attention", [HEADS] * 3, {"dropout_p": 0.1}, "at random"),
        ("Distributed.all_reduce", [INPUT], {}, "not a function of torch"),
        ("Torch.bernoulli", [INPUT.abs() / 3], {}, "bernoulli"),
        ("Torch.nothing_of_the_kind", [INPUT], {}, "no operator of aten"),
        ("Torch.__class__", [INPUT], {}, "no operator of aten"),
        ("Functional.silu", [INPUT], {"sharpness": 2}, "takes no argument sharpness"),
        ("Functional.linear", [INPUT, WEIGHT.T.contiguous()], {}, "cannot be called"),
        ("Functional.silu", [INPUT[:1]], {}, "other shapes"),
    ],
)
def test_what_is_not_determined_is_refused(
    name: str, args: list[Any], kwargs: dict[str, Any], said: str
) -> None:
    prefix, _, function = name.partition(".")
    with pytest.raises(OperatorError, match=said):
        function_results(prefix, function, args, kwargs, [tuple(INPUT.shape)])


# without_values: what torch makes of a tensor of the meta device is no result.


REAL = torch.ones(3, 3)
META = torch.empty(3, 3, device="meta")


@pytest.mark.parametrize(
    "mixed", [lambda: REAL @ META, lambda: REAL.clone().add_(META), lambda: REAL.T.mm(META)]
)
def test_values_made_of_none_are_refused(mixed: Callable[[], torch.Tensor]) -> None:
    with refusing_mixtures(nn.Linear(3, 3, device="meta")), pytest.raises(OperatorError, match="not there"):
        mixed()


def test_what_has_no_values_itself_and_what_has_all_are_made() -> None:
    with refusing_mixtures(nn.Linear(3, 3, device="meta")):
        assert (META @ REAL).is_meta
        assert torch.equal(REAL @ REAL, torch.full((3, 3), 3.0))


def test_a_module_with_all_its_weights_is_computed_as_ever() -> None:
    assert isinstance(refusing_mixtures(nn.Linear(3, 3)), contextlib.nullcontext)


# What a function of a dump of modules chose, held against what it was given.


Choose = Callable[[torch.Tensor], Any]


class Chooses(nn.Module):
    """Hands on what it chose."""

    def __init__(self, choose: Choose) -> None:
        super().__init__()
        self.choose = choose
        self.last = nn.Identity()

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.choose(x))


def outcomes(
    path: Path, choose: Choose, device: contextlib.AbstractContextManager[Any] | None = None
) -> dict[str, tuple[str, str]]:
    """Outcome and reason of all that the choosing function gave, by slot."""
    model = Chooses(choose)
    given = torch.randn(6, 5, generator=torch.Generator().manual_seed(2))
    for side in ("golden", "mine"):
        run = (device if side == "mine" else None) or contextlib.nullcontext()
        with torch.no_grad(), run, register_hook(model, DumpConfig(path / side, run_name="r")):
            model(given)
    made = plan(open_dump(str(path / "golden")), open_dump(str(path / "mine")))
    computer = TorchRecomputer(open_dump(made.mine_root), made.pairs, nn.Module(), LOOKING)
    found = {}
    for number, pair in enumerate(made.pairs):
        if function_of(pair.mine.node) and pair.mine.slot.startswith("output"):
            outcome = computer.of_pair(number)
            found[pair.mine.slot] = outcome.outcome, outcome.why
    return found


@pytest.mark.parametrize(
    ("choose", "slots"),
    [
        (lambda x: torch.topk(x, 2).values, {"output[0]", "output[1]"}),
        (lambda x: x.topk(5, dim=0).indices, {"output[0]", "output[1]"}),
        (lambda x: x.argmax(-1), {"output[0]"}),
        (lambda x: x.max(-1).values, {"output[0]", "output[1]"}),
        (lambda x: torch.max(x, 0, keepdim=True)[0], {"output[0]", "output[1]"}),
        (lambda x: x.masked_fill(x < 0.5, -torch.inf).topk(2)[0], {"output[0]", "output[1]"}),
        (lambda x: torch.argmax(x, dim=-1, keepdim=True), {"output[0]"}),
    ],
)
def test_the_best_places_and_their_values_are_right(tmp_path: Path, choose: Choose, slots: set[str]) -> None:
    assert outcomes(tmp_path, choose) == dict.fromkeys(slots, ("right", ""))


def test_of_the_smallest_nothing_is_said(tmp_path: Path) -> None:
    """Whether they were asked for is in no dump."""
    found = outcomes(tmp_path, lambda x: x.topk(2, largest=False).values)
    assert [outcome for outcome, _ in found.values()] == ["", ""]
    assert all("chose the smallest" in why for _, why in found.values())


class Spoiled(torch.overrides.TorchFunctionMode):
    """A device whose `topk` is wrong."""

    def __init__(self, spoil: Callable[[Any], Any]) -> None:
        super().__init__()
        self._spoil = spoil

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return self._spoil(result) if func.__name__ == "topk" else result


@pytest.mark.parametrize(
    ("spoil", "slots", "said"),
    [
        (lambda made: (made[0], made[1].flip(0)), {"output[0]", "output[1]"}, "are not the best"),
        (lambda made: (made[0] + 1, made[1]), {"output[0]"}, "not those at the places"),
        (lambda made: (made[0], made[1] + 5), {"output[0]", "output[1]"}, "places that there are not"),
    ],
)
def test_other_places_and_values_are_wrong(
    tmp_path: Path, spoil: Callable[[Any], Any], slots: set[str], said: str
) -> None:
    found = outcomes(tmp_path, lambda x: x.topk(2)[0], Spoiled(spoil))
    assert {slot for slot, (outcome, _) in found.items() if outcome == "wrong"} >= slots, found
    assert any(said in why for _, why in found.values()), found


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("root.mlp.topk", "topk"),
        ("root.mlp.topk.2", "topk"),
        ("root.argmax.11", "argmax"),
        ("root.mlp.gate", ""),
        ("root.topk.gate", ""),
        ("root.layers.2", ""),
    ],
)
def test_calls_are_known_by_their_paths(path: str, function: str) -> None:
    assert function_of(path) == function
