"""What a file may name: overloads of aten that compute, and nothing else, whatever the name is."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.base.named_operators import draws, is_random, operator_named, operator_of, overloads
from acc_pytest.diagnosis.aten import function_results
from acc_pytest.diagnosis.golden_model.traced import call_function
from acc_pytest.errors import OperatorError, calling

X = torch.linspace(-1, 1, 6).reshape(2, 3)
NAMES = sorted(
    {*dir(torch.ops.aten), *dir(torch.Tensor), *dir(object), *dir(type), *dir(builtins), "", "zzz"}
)


def test_of_every_name_only_overloads_that_compute_may_be_called() -> None:
    """Held against the text of the schema, where `!` stands for what is written to."""
    wrong = []
    for name in NAMES:
        try:
            found = overloads(name)
        except OperatorError:
            continue
        for one in found:
            schema, random = str(one._schema), torch.Tag.nondeterministic_seeded in one.tags
            gives = schema.rpartition("->")[2]
            computes = "Tensor" in gives or gives.strip() in ("bool", "Scalar")
            words = "Storage" in schema or "Generator" in schema or "!" in schema
            if not isinstance(one, torch._ops.OpOverload) or words or not computes:
                wrong.append(schema)
            if random and "dropout" not in schema:
                wrong.append(schema)
    assert wrong == []
    assert len([name for name in ("add", "matmul", "softmax", "where", "layer_norm") if overloads(name)]) == 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("save", "is no operator of aten"),
        ("manual_seed", "is no operator of aten"),
        ("backward", "is no operator of aten"),
        ("__class__", "is no operator of aten"),
        ("__getattribute__", "is no operator of aten"),
        ("from_file", "does more than compute"),
        ("set_", "writes to its arguments"),
        ("add_", "writes to its arguments"),
        ("bernoulli", "may give other values each time"),
        ("uniform", "may give other values each time"),
        ("resize", "may give other values each time"),
        ("new_empty", "may give other values each time"),
        ("as_strided", "may give other values each time"),
        ("_embedding_bag", "is not a public aten operator"),
    ],
)
def test_why_an_operator_may_not_be_called(name: str, said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        overloads(name)


@pytest.mark.parametrize(
    "target",
    [
        "prims.mul.default",
        "os.system",
        "torch.load",
        "aten",
        "aten.mm",
        "aten..",
        "aten.add.__class__",
        "aten.add.out",
    ],
)
def test_a_target_is_a_whole_name_of_an_overload(target: str) -> None:
    with pytest.raises(OperatorError, match=r"is not an aten operator|writes to"):
        operator_named(target)
    assert operator_named("aten.add.Tensor") is torch.ops.aten.add.Tensor


@pytest.mark.filterwarnings("ignore")
def test_no_name_of_a_trace_is_an_attribute() -> None:
    """Every name there is, with arguments as texts, tensors and numbers: it computes, or it is refused."""
    spaces = (
        "aten",
        "torch",
        "torch.Tensor",
        "torch.nn.functional",
        "torch.ops",
        "builtins",
        "os",
        "acc_pytest",
    )
    for name in NAMES:
        for space in spaces:
            for args in ([], ["add"], [X], ["zzz", X], [X, ["__class__", "__init__", "__globals__"]]):
                try:
                    with calling("it"):
                        made = call_function(f"{space}.{name}", list(args), {})
                except OperatorError:
                    continue
                assert _is_computed(made), (space, name, made)
    assert not hasattr(torch.ops.aten, "zzz")


def _is_computed(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_computed, value))
    return isinstance(value, (torch.Tensor, bool, int, float, complex, str)) or value in (
        None,
        NotImplemented,
    )


def test_a_call_of_msprobe_writes_no_file(tmp_path: Path) -> None:
    """TorchScript has an operator `aten::save`, which torch finds by its name as well."""
    for name in ("save", "from_file", "load"):
        with pytest.raises(OperatorError):
            function_results("Torch", name, [X, str(tmp_path / "x")], {}, [tuple(X.shape)])
        with pytest.raises(OperatorError):
            function_results("Torch", name, [str(tmp_path / "x"), True, 6], {}, [tuple(X.shape)])
    assert not list(tmp_path.iterdir())


def test_what_draws_is_told_by_what_it_is_given() -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    dropout = torch.ops.aten.native_dropout.default
    lstm = torch.ops.aten.lstm.input
    assert not draws(attention, [X, X, X], {})
    assert draws(attention, [X, X, X, 0.1], {})
    assert draws(dropout, [X, 0.5, True], {})
    assert not draws(dropout, [X, 0.5], {"train": False})
    assert not draws(lstm, [X, [X], [X], True, 1, 0.0, True], {})
    assert draws(lstm, [X, [X], [X], True, 1, 0.3, True], {})
    assert not draws(torch.ops.aten.add.Tensor, [X, X], {})
    random = [
        name for name in ("rand_like", "normal_", "bernoulli_", "empty", "lstm", "add") if is_random(name)
    ]
    assert random == ["rand_like", "normal_", "bernoulli_", "empty"]


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        ("add", ("add", False)),
        ("add_", ("add", True)),
        ("__iadd__", ("add", True)),
        ("__add__", ("add", False)),
        ("__invert__", ("bitwise_not", False)),
        ("__ior__", ("bitwise_or", True)),
        ("__index__", ("__index__", False)),
        ("T", ("numpy_T", False)),
    ],
)
def test_a_function_stands_for_an_operator(function: str, operator: tuple[str, bool]) -> None:
    assert operator_of(function) == operator
