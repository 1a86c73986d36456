"""mode="api": functions, methods and operators, each call with a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.capture.torch_hooks.config import api_name
from acc_pytest.dumps import open_dump

from .models import entries, files, tensor


class Uses(nn.Module):
    """A model that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(2))
        self.function = function

    def forward(self, *args: Any) -> torch.Tensor:
        return self.function(self, *args)


def dumped(path: Path, function: Callable[..., Any], *args: Any, **options: Any) -> Path:
    with register_hook(Uses(function), DumpConfig(path, mode="api", **options)) as handle:
        handle._model(*args)
    return handle.dump_path


def folders(home: Path) -> list[str]:
    return sorted({name.partition("/")[0].removeprefix("root.") for name in files(home)})


X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda m, x: torch.matmul(x, x), ["matmul"]),
        (lambda m, x: x @ x, ["matmul"]),
        (lambda m, x: x.matmul(x), ["matmul"]),
        (lambda m, x: F.softmax(x, dim=-1), ["softmax"]),
        (lambda m, x: x.softmax(-1), ["softmax"]),
        (lambda m, x: F.silu(x), ["silu"]),
        (lambda m, x: F.linear(x, m.weight), ["linear"]),
        (lambda m, x: F.layer_norm(x, (2,)), ["layer_norm"]),
        (lambda m, x: F.scaled_dot_product_attention(x, x, x), ["scaled_dot_product_attention"]),
        (lambda m, x: F.embedding(torch.tensor([0]), x), ["embedding"]),
        (lambda m, x: torch.cat([x, x]), ["cat"]),
        (lambda m, x: torch.einsum("ij,kj->ik", x, x), ["einsum"]),
        (lambda m, x: 2 + x, ["add"]),
        (lambda m, x: 2 - x, ["sub"]),
        (lambda m, x: 1 / x, ["div"]),
        (lambda m, x: x / 2, ["div"]),
        (lambda m, x: x // 2, ["floordiv"]),
        (lambda m, x: -x, ["neg"]),
        (lambda m, x: x**2, ["pow"]),
        (lambda m, x: x.mean(-1), ["mean"]),
        (lambda m, x: x.max(-1), ["max"]),
        (lambda m, x: (x > 0) & (x < 3), ["bitwise_and", "gt", "lt"]),
        (lambda m, x: torch.special.exp2(x), ["special_exp2"]),
        (lambda m, x: torch.linalg.vector_norm(x), ["linalg_vector_norm"]),
        (lambda m, x: torch.ops.aten.relu(x), ["relu"]),
        (lambda m, x: torch.ops.aten.add.Tensor(x, x), ["add"]),
    ],
)  # fmt: skip
def test_functions_methods_and_operators_go_by_the_names_of_functions(
    tmp_path: Path, function: Callable[..., Any], names: list[str]
) -> None:
    assert folders(dumped(tmp_path, function, X.clone())) == names


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x.view(4).reshape(2, 2).transpose(0, 1)[0].unsqueeze(0),
        lambda m, x: torch.chunk(x, 2),
        lambda m, x: x.contiguous(),
        lambda m, x: x.to(torch.float32).detach(),
        lambda m, x: F.dropout(x, 0.5, training=False),
        lambda m, x: torch.zeros(2) if x.dim() and x.size(0) and x.shape and x.is_floating_point() else x,
        lambda m, x: (torch.empty_like(x), x.item() if x.numel() == 1 else 0)[1],
        lambda m, x: x.tolist(),
    ],
)
def test_questions_views_and_new_memory_are_no_computation(
    tmp_path: Path, function: Callable[..., Any]
) -> None:
    assert folders(dumped(tmp_path, function, X.clone())) == []


def test_each_call_of_a_step_is_numbered_and_belongs_to_the_module_that_made_it(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(2, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = self.q(x)
            return torch.matmul(torch.softmax(torch.matmul(q, x.T), -1), x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x) + x

    model = Model()
    with register_hook(model, DumpConfig(tmp_path, range(2), mode="api")) as handle:
        result = model(X)
        model(X)
    home = handle.dump_path
    assert folders(home) == [
        "add",
        *(f"attention.{n}" for n in ("matmul", "matmul.1", "q.linear", "softmax")),
    ]
    assert files(home, 1) == files(home, 0)
    assert torch.equal(tensor(home, "root.add/output"), result)
    assert torch.equal(tensor(home, "root.attention.matmul/input_0"), model.attention.q(X))
    assert torch.equal(tensor(home, "root.attention.matmul.1/input_1"), X)
    step = open_dump(str(home)).steps[0]
    assert [
        (n.path.removeprefix("root.attention."), n.op_type) for n in step.tree.root.children[0].walk()
    ] == [
        ("root.attention", "Attention"),
        ("q", "Linear"),
        ("q.linear", "linear"),
        ("matmul", "matmul"),
        ("softmax", "softmax"),
        ("matmul.1", "matmul"),
    ]


@pytest.mark.parametrize(
    ("function", "name", "before", "after"),
    [
        (lambda m, x: x.add_(1), "add_", 1, 2),
        (lambda m, x: x.__iadd__(1), "add_", 1, 2),
        (lambda m, x: F.relu(x.neg_(), inplace=True), "relu", -1, 0),
        (lambda m, x: x.__setitem__(0, 5.0), "setitem_", 1, 5),
        (lambda m, x: torch.mul(x, 3, out=x), "mul", 1, 3),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_calls_that_change_their_arguments_keep_them_as_they_were(
    tmp_path: Path, function: Callable[..., Any], name: str, before: int, after: int, inference: bool
) -> None:
    with torch.inference_mode(inference):
        home = dumped(tmp_path, function, torch.ones(2))
    assert name in folders(home)
    assert tensor(home, f"root.{name}/input_0")[0] == before
    assert tensor(home, f"root.{name}/output")[0] == after


def test_what_a_function_calls_itself_is_not_recorded(tmp_path: Path) -> None:
    def attend(m: Uses, x: torch.Tensor) -> object:
        x = x[None]
        return F.multi_head_attention_forward(
            x, x, x, 2, 1, m.weight.repeat(3, 1), None, None, None, False, 0.0, m.weight, None
        )

    home = dumped(tmp_path, attend, X)
    assert folders(home) == ["multi_head_attention_forward", "repeat"]


def test_nothing_is_recorded_outside_of_the_model_or_of_the_recorders_own(tmp_path: Path) -> None:
    model = Uses(lambda m, x: torch.exp(x))
    with register_hook(model, DumpConfig(tmp_path, range(9), mode=["module", "api"])) as handle:
        torch.sin(X)
        model(X)
        torch.cos(X)
    assert folders(handle.dump_path) == ["exp", "root"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"api_list": ["exp"]}, ["exp"]),
        ({"api_list": [torch.exp, torch.Tensor.__add__]}, ["add", "exp"]),
        ({"layer_name": "root.*x*"}, ["exp"]),
        ({"module_list": [nn.Linear]}, ["add", "exp"]),  # chooses modules, not functions
    ],
)
def test_functions_are_chosen_by_object_name_and_full_name(
    tmp_path: Path, options: dict[str, list[str]] | dict[str, Any] | dict[str, str], names: list[str]
) -> None:
    assert folders(dumped(tmp_path, lambda m, x: torch.exp(x) + 1, X, **options)) == names


@pytest.mark.parametrize(("part", "kept"), [(0, {"input_0"}), (1, {"output"})])
def test_tensor_part_holds_for_functions(tmp_path: Path, part: int, kept: set[str]) -> None:
    home = dumped(tmp_path, lambda m, x: torch.exp(x), X, tensor_part=part)
    assert {name.rpartition("/")[2] for name in files(home)} == kept


def test_weights_are_not_saved_with_every_call(tmp_path: Path) -> None:
    home = dumped(tmp_path, lambda m, x: F.linear(x, m.weight), X)
    assert files(home) == ["root.linear/input_0", "root.linear/output"]
    assert [e["note"] for e in entries(home) if e["status"] == "not looked into"] == ["a Parameter"]


def test_keyword_arguments_of_functions_have_names(tmp_path: Path) -> None:
    home = dumped(tmp_path, lambda m, x: F.layer_norm(x, (2,), weight=x[0], bias=x[1]), X)
    assert [name for name in files(home) if "input" in name] == [
        "root.layer_norm/input_0", "root.layer_norm/input_bias", "root.layer_norm/input_weight"
    ]  # fmt: skip


def test_what_runs_inside_of_vmap_is_left_to_it(tmp_path: Path) -> None:
    """Its tensors have no values of their own. Masks of transformers 4.53 are made so."""

    def masked(module: Uses, x: torch.Tensor) -> torch.Tensor:
        mask = torch.vmap(lambda row: row.le(0.5).logical_and(row.ge(0.1)))(x)
        return torch.matmul(x * mask, module.weight)

    home = dumped(tmp_path, masked, torch.rand(2, 2))
    assert {"matmul", "mul"} <= set(folders(home))
    assert "le" not in folders(home)


def test_a_function_that_fails_is_the_models_error(tmp_path: Path) -> None:
    model = Uses(lambda m, x: torch.matmul(x, torch.ones(3)) if x[0, 0].item() == 1 else x.exp())
    with register_hook(model, DumpConfig(tmp_path, range(2), mode="api")) as handle:
        with pytest.raises(RuntimeError, match="size"):
            model(X)
        model(X * 2)
    assert files(handle.dump_path, 1) == ["root.exp/input_0", "root.exp/output"]


def test_a_function_and_a_module_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.softmax = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.softmax(torch.softmax(torch.softmax(x, -1), -1))

    model = Attention()
    with register_hook(model, DumpConfig(tmp_path, mode=["module", "api"])) as handle:
        model(X)
    assert folders(handle.dump_path) == ["root", "softmax", "softmax.1", "softmax_"]
    assert torch.equal(tensor(handle.dump_path, "root.softmax_/output"), torch.softmax(X, -1))
    tree = open_dump(str(handle.dump_path)).steps[0].tree
    assert [(node.path, node.op_type) for node in tree.root.children] == [
        ("root.softmax_", "softmax"),
        ("root.softmax.1", "softmax"),
        ("root.softmax", "Identity"),
    ]


def test_names_of_functions() -> None:
    assert api_name(torch.matmul) == api_name(torch.Tensor.__matmul__) == api_name(torch.Tensor.__rmatmul__)
    assert api_name(torch.Tensor.__imul__) == "mul_"
    assert api_name(torch.ops.aten.add.Tensor) == "add"
    assert api_name(F.gelu) == "gelu"
    assert api_name(3) == ""
