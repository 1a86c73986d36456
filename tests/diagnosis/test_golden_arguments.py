"""Arguments of golden's modules with the tensors of mine in them, and functions that make golden models."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from acc_pytest.capture.torch_hooks.values import Key
from acc_pytest.diagnosis.golden_model.calls import CallTemplate, of_dump, with_results
from acc_pytest.diagnosis.golden_model.models import copies, load_model, network_dtype
from acc_pytest.errors import OperatorError, SettingsError


def tensor(value: float) -> torch.Tensor:
    return torch.full((2,), value)


ONE, TWO, THREE = tensor(1.0), tensor(2.0), tensor(3.0)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Fields:
    hidden: Any
    rest: Any


def plain(value: Any) -> Any:
    """Tensors as the number that they are full of."""
    if isinstance(value, torch.Tensor):
        return float(value[0]) if value.numel() else "empty"
    if isinstance(value, (tuple, list)):
        items = [plain(item) for item in value]
        return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def given(x: Any, pair: Any = None, *, mask: Any = None, flag: bool = False) -> None: ...


def test_inputs_of_a_dump_are_arguments_at_their_places() -> None:
    mine = {
        (0,): ONE, (1, 1): TWO, (1, 2, "deep"): THREE, ("mask",): THREE, ("more", "key"): TWO,
    }  # fmt: skip
    args, kwargs = of_dump({key: mine[key] for key in list(mine)[:4]}, given, "root.x")
    assert plain(args) == (1.0, (None, 2.0, {"deep": 3.0}))
    assert plain(kwargs) == {"mask": 3.0}
    with pytest.raises(OperatorError, match=r"root\.x: its inputs were not all dumped: .* 'more'"):
        of_dump(mine, given, "root.x")
    with pytest.raises(OperatorError, match="missing a required argument: 'x'"):
        of_dump({("mask",): ONE}, given, "root.x")


def test_a_place_before_the_first_dumped_one_is_none() -> None:
    assert plain(of_dump({(1,): ONE}, given, "root.x")[0]) == (None, 1.0)


def test_a_template_keeps_what_is_no_tensor_and_what_mine_did_not_dump() -> None:
    seen = CallTemplate.of_call((ONE, [TWO, None]), {"mask": THREE, "flag": True}, [(0,), ("mask",)])
    assert (plain(seen.args), plain(seen.kwargs)) == (("empty", [2.0, None]), {"mask": "empty", "flag": True})
    module = nn.Linear(2, 2)
    mine: dict[Key, torch.Tensor] = {
        (0,): tensor(10.0), ("mask",): tensor(30.0), ("further",): tensor(40.0),
    }  # fmt: skip
    args, kwargs = seen.filled(mine, torch.neg, module)
    assert (plain(args), plain(kwargs)) == (
        (10.0, [-2.0, None]), {"mask": 30.0, "flag": True, "further": 40.0},
    )  # fmt: skip
    mine = {(0,): ONE, ("mask",): TWO, (2,): THREE, ("flag",): ONE}
    args, kwargs = seen.filled(mine, torch.neg, module)
    assert plain(args) == (1.0, [-2.0, None], 3.0)
    assert kwargs["flag"] is True, "where golden has something else, that stays"


def test_masks_take_the_form_that_golden_uses() -> None:
    may, added = torch.tensor([True, False]), torch.tensor([0.0, torch.finfo(torch.float32).min])
    module = nn.Linear(2, 2)
    for golden, mine, expected in (
        (added, may, added),
        (may, added, may),
        (may, may, may),
        (added, added, added),
        (added.bfloat16(), may, torch.tensor([0.0, torch.finfo(torch.bfloat16).min]).bfloat16()),
        (torch.ones(2, dtype=torch.int64), may, may),
    ):
        template = CallTemplate.of_call((golden,), {}, [(0,)])
        (found,), _ = template.filled({(0,): mine}, torch.clone, module)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_results_keep_their_form_with_the_tensors_of_mine_in_them() -> None:
    mine = {
        (0,): tensor(10.0),
        (1, "key"): tensor(20.0),
        ("hidden",): tensor(30.0),
        ("rest", 0): tensor(40.0),
    }
    assert plain(with_results(ONE, mine)) == 10.0
    assert plain(with_results(Pair(ONE, {"key": TWO, "other": THREE}), mine)) == Pair(
        10.0, {"key": 20.0, "other": 3.0}
    )
    found = with_results(Fields(ONE, [TWO, "text"]), mine)
    assert (plain(found.hidden), plain(found.rest)) == (30.0, [40.0, "text"])
    named = with_results(OrderedDict(hidden=ONE), mine)
    assert type(named) is OrderedDict
    assert plain(named["hidden"]) == 30.0
    numbered = with_results({1: {"key": ONE}}, mine)
    assert plain(numbered) == {1: {"key": 20.0}}


# ---- the model twice --------------------------------------------------------------------------------


class Stated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("table", torch.full((2,), 1 / 3))
        self.register_buffer("kept", torch.full((2,), 1 / 3))
        self.register_buffer("count", torch.ones(2, dtype=torch.int64))
        self.implementations: list[str] = []

    def set_attn_implementation(self, name: str) -> None:
        self.implementations.append(name)
        raise ValueError("there is none")


@pytest.mark.parametrize(
    ("dtype", "finer"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float64)],
)
def test_one_copy_computes_finer_than_mine_and_one_as_mine(dtype: torch.dtype, finer: torch.dtype) -> None:
    model = Stated()
    before = model.linear.weight.detach().clone()
    saved = {"root.linear.bias": "float16", "root.table": "bfloat16", "root.count": "float32"}
    fine, rounding = copies(model, dtype, saved)
    precise: Any = fine.modules["root"]
    rough: Any = rounding.modules["root"]
    assert precise.implementations == ["eager"]
    assert (fine.dtype, rounding.dtype, fine.fine, rounding.fine) == (finer, dtype, True, False)
    assert precise.linear.weight.dtype == precise.table.dtype == finer
    assert torch.equal(precise.linear.weight, before.to(finer))
    assert torch.equal(rough.linear.weight, before.to(dtype))
    assert (rough.linear.weight.dtype, rough.linear.bias.dtype) == (dtype, torch.float16)
    assert (rough.table.dtype, rough.kept.dtype, rough.count.dtype) == (
        torch.bfloat16, torch.float32, torch.int64,
    )  # fmt: skip


def test_tensors_are_copied_to_what_a_copy_computes_in() -> None:
    fine, rounding = copies(Stated(), torch.bfloat16, {})
    half, whole = torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)
    assert [fine.cast(half).dtype, rounding.cast(half).dtype] == [torch.float32, torch.bfloat16]
    assert [rounding.cast(half.float()).dtype, rounding.lowered(half.float()).dtype] == [
        torch.float32,
        torch.bfloat16,
    ]
    assert fine.cast(whole).dtype == fine.lowered(whole).dtype == torch.int64
    for one in (half, whole, half.float()):
        for of in (fine, rounding):
            assert of.cast(one).data_ptr() != one.data_ptr()
            assert of.lowered(one).data_ptr() != one.data_ptr()


def test_a_module_of_two_names_has_both() -> None:
    model = Stated()
    model.same = model.linear
    fine, _ = copies(model, torch.bfloat16, {})
    assert fine.names[id(fine.modules["root.linear"])] == ("root.linear", "root.same")


def test_the_type_of_a_network_is_that_of_most_of_its_floats() -> None:
    assert network_dtype(["float32", "bfloat16", "bfloat16", "int64", "int64", "int64", ""]) == torch.bfloat16
    assert network_dtype(["int64"]) == network_dtype([]) == torch.float32


# ---- the function that makes it ---------------------------------------------------------------------

FACTORIES = """
import torch
NUMBER = 3
def model(*args, size=2, **kwargs): return torch.nn.Linear(size, size).train()
def number(): return 3
def needy(size, depth, *, width): return torch.nn.Linear(2, 2)
def broken(): raise OSError("no checkpoint")
"""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("NUMBER", "--acc-model: {file} has no function NUMBER; define it or correct the name"),
        ("absent", "--acc-model: {file} has no function absent; define it or correct the name"),
        ("number", "--acc-model: number in {file} must return a torch.nn.Module, got int"),
        (
            "needy",
            "--acc-model: needy in {file} needs size, depth, width, but is called without arguments; "
            "give them defaults",
        ),
    ],
)
def test_functions_that_make_no_model_are_refused(function: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "factories.py"
    file.write_text(FACTORIES)
    with pytest.raises(SettingsError) as raised:
        load_model(f"{file}:{function}")
    assert str(raised.value) == said.format(file=file)


def test_a_function_that_makes_a_model_is_called_without_arguments(tmp_path: Path) -> None:
    file = tmp_path / "factories.py"
    file.write_text(FACTORIES)
    assert not load_model(f"{file}:model").training
    with pytest.raises(Exception, match=r"calling broken in .*factories\.py: OSError: no checkpoint"):
        load_model(f"{file}:broken")


@pytest.mark.parametrize("spec", ["model.py", "model.py:", ":make", "model.py:a b"])
def test_a_factory_is_a_file_and_a_name(spec: str) -> None:
    with pytest.raises(SettingsError, match=r"must be FILE\.py:FUNCTION, as in my_model\.py:make_model, got"):
        load_model(spec)


def test_the_file_of_a_factory_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("")
    for name in ("model.txt", "absent.py"):
        with pytest.raises(SettingsError, match=r"is not an existing \.py file; correct the path"):
            load_model(f"{tmp_path / name}:make")


def test_a_mask_that_is_added_has_the_dtype_of_the_copy() -> None:
    """Golden's own code was seen in float32; the copy that rounds computes in bfloat16."""
    template = CallTemplate.of_call((torch.zeros(2),), {}, [(0,)])
    (found,), _ = template.filled(
        {(0,): torch.tensor([True, False])}, lambda one: one.bfloat16(), nn.Linear(2, 2)
    )
    assert torch.equal(found, torch.tensor([0.0, torch.finfo(torch.bfloat16).min]).bfloat16())
