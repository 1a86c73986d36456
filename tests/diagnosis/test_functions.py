"""Functions of torch by the names of dumps, against torch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from acc_pytest.diagnosis.aten import function_results
from acc_pytest.errors import OperatorError

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
W = torch.linspace(-1, 1, 20).reshape(5, 4)
IDS = torch.tensor([[0, 3], [4, 1]])
HEADS = torch.linspace(-1, 1, 96).reshape(1, 2, 6, 8)
WIDE = HEADS.double()
SIZES = X.abs() + 1
BIAS = W[:, 0]

CALLS: list[tuple[str, list[Any], dict[str, Any], Callable[[], torch.Tensor]]] = [
    ("Functional.linear", [X, W, None], {}, lambda: F.linear(X.double(), W.double())),
    ("Functional.linear", [X, W], {"bias": BIAS}, lambda: F.linear(X.double(), W.double(), BIAS.double())),
    ("Functional.softmax", [X], {"dim": -1, "_stacklevel": 3}, lambda: X.double().softmax(-1)),
    ("Functional.softmax", [X], {"dim": -1, "dtype": torch.float32}, lambda: X.double().softmax(-1)),
    ("Functional.silu", [X], {"inplace": False}, lambda: F.silu(X.double())),
    ("Functional.gelu", [X], {"approximate": "tanh"}, lambda: F.gelu(X.double(), approximate="tanh")),
    ("Functional.embedding", [IDS, W, 0, None, 2.0, False, False], {}, lambda: W[IDS].double()),
    ("Functional.dropout", [X], {"p": 0.5, "training": False}, lambda: X.double()),
    ("Functional.layer_norm", [X, [4]], {"eps": 1e-3}, lambda: F.layer_norm(X.double(), [4], eps=1e-3)),
    (
        "Functional.scaled_dot_product_attention", [HEADS, HEADS, HEADS], {"is_causal": True, "scale": 0.3},
        lambda: F.scaled_dot_product_attention(WIDE, WIDE, WIDE, is_causal=True, scale=0.3),
    ),
    ("Torch.matmul", [X, W.T.contiguous()], {}, lambda: X.double() @ W.double().T),
    ("Torch.cat", [[X, X]], {"dim": -1}, lambda: torch.cat([X, X], -1).double()),
    ("Torch.where", [X > 0, X, 0.5], {}, lambda: torch.where(X > 0, X, 0.5).double()),
    ("Torch.diff", [IDS], {"prepend": IDS[:, :1], "dim": -1}, lambda: IDS.diff(prepend=IDS[:, :1])),
    ("Torch.einsum", ["bij,kj->bik", X, W], {}, lambda: torch.einsum("bij,kj->bik", X.double(), W.double())),
    ("Torch.rsqrt", [SIZES], {}, lambda: SIZES.double().rsqrt()),
    ("Tensor.__add__", [X, 3], {}, lambda: X.double() + 3),
    ("Tensor.__iadd__", [X, X], {}, lambda: X.double() * 2),
    ("Tensor.add_", [X], {"other": X, "alpha": 2}, lambda: X.double() * 3),
    ("Tensor.__rsub__", [X, 1.5], {}, lambda: 1.5 - X.double()),
    ("Tensor.__le__", [IDS, 2], {}, lambda: IDS <= 2),
    ("Tensor.pow", [X, 2], {}, lambda: X.double() ** 2),
    ("Tensor.mean", [X, -1], {"keepdim": True}, lambda: X.double().mean(-1, keepdim=True)),
    ("Tensor.reshape", [X, 4, 6], {}, lambda: X.reshape(4, 6).double()),
    ("Tensor.reshape", [X, -1], {}, lambda: X.reshape(-1).double()),
    ("Tensor.view", [X, [6, 4]], {}, lambda: X.view(6, 4).double()),
    ("Tensor.permute", [X, [2, 0, 1]], {}, lambda: X.permute(2, 0, 1).double()),
    ("Tensor.float", [X.bfloat16()], {}, lambda: X.bfloat16().double()),
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
    values, places = X.topk(2)
    results = function_results("Tensor", "topk", [X, 2], {}, [tuple(values.shape)] * 2)
    assert torch.equal(results.output(0).value.float(), values)
    assert torch.equal(results.output(1).value, places)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "said"),
    [
        ("Functional.dropout", [X], {"p": 0.5}, "a dropout that drops"),
        ("Functional.embedding", [IDS, W], {"max_norm": 1.0}, "renormalises"),
        ("Functional.scaled_dot_product_attention", [HEADS] * 3, {"dropout_p": 0.1}, "at random"),
        ("Distributed.all_reduce", [X], {}, "not a function of torch"),
        ("Torch.bernoulli", [X.abs() / 3], {}, "bernoulli"),
        ("Torch.nothing_of_the_kind", [X], {}, "no operator of aten"),
        ("Torch.__class__", [X], {}, "no operator of aten"),
        ("Functional.silu", [X], {"sharpness": 2}, "takes no argument sharpness"),
        ("Functional.linear", [X, W.T.contiguous()], {}, "cannot be called"),
        ("Functional.silu", [X[:1]], {}, "other shapes"),
    ],
)
def test_what_is_not_determined_is_refused(
    name: str, args: list[Any], kwargs: dict[str, Any], said: str
) -> None:
    prefix, _, function = name.partition(".")
    with pytest.raises(OperatorError, match=said):
        function_results(prefix, function, args, kwargs, [tuple(X.shape)])
