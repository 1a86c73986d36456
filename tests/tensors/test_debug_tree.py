"""debug_tree: statistics of what Hugging Face's model debugger prints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import FormatError, NoPayload
from acc_pytest.tensors.debug_tree import is_tree
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.ref import TensorRef


def written(path: Path, tensor: Any) -> TensorRef:
    """A tree whose root has one argument, as the tool writes it."""
    file = path / "A_debug_tree_FULL_TENSORS.json"
    file.write_text(json.dumps({"module_path": "A", "inputs": {"args": [tensor]}}, indent=2))
    return TensorRef(str(file), "inputs/args/0")


def said(tensor: torch.Tensor) -> dict[str, Any]:
    entry: dict[str, Any] = {"shape": f"torch.Size({list(tensor.shape)})", "dtype": str(tensor.dtype)}
    with torch._tensor_str.printoptions(sci_mode=True, linewidth=120):
        entry["value"] = repr(tensor).splitlines()
        if tensor.is_floating_point() and tensor.numel():
            values = {"mean": tensor.mean(), "std": tensor.std(), "min": tensor.min(), "max": tensor.max()}
            entry |= {key: repr(value) for key, value in values.items()}
    return entry


def statistics(path: Path, tensor: torch.Tensor) -> Statistics:
    header = written(path, said(tensor)).header()
    assert header.payload == "statistics"
    assert header.shape == tuple(tensor.shape)
    assert header.statistics is not None
    return header.statistics


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_have_the_statistics_that_are_printed(tmp_path: Path, dtype: torch.dtype) -> None:
    held = torch.randn(40, 60, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = statistics(tmp_path, held)
    # Five digits, of mean and deviation rounded to the dtype; the norm is made of these two.
    bound = 1e-4 + torch.finfo(dtype).eps
    assert found.max == pytest.approx(held.max().item(), rel=5e-5)
    assert found.min == pytest.approx(held.min().item(), rel=5e-5)
    assert found.l2norm == pytest.approx(held.double().norm().item(), rel=bound)
    assert found.mean == pytest.approx(held.mean().item(), rel=5e-5)
    assert (found.rounding, found.digits) == (torch.finfo(dtype).eps / 2, 5e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_stay_so(tmp_path: Path, value: float) -> None:
    found = statistics(tmp_path, torch.tensor([1.0, value]))
    assert (found.max, found.min, found.mean) == (
        pytest.approx(max(1.0, value) if not math.isnan(value) else value, nan_ok=True),
        pytest.approx(min(1.0, value) if not math.isnan(value) else value, nan_ok=True),
        pytest.approx(value, nan_ok=True),
    )
    assert found.l2norm is not None
    assert not math.isfinite(found.l2norm)


def test_sums_that_overflowed_are_not_known(tmp_path: Path) -> None:
    mask = torch.full((4, 4), torch.finfo(torch.float32).min).triu(1)
    found = statistics(tmp_path, mask)
    assert found.min == pytest.approx(mask.min().item(), rel=5e-5)
    assert (found.max, found.mean, found.l2norm) == (0, None, None)


@pytest.mark.filterwarnings("ignore:std")
def test_one_number_has_a_norm(tmp_path: Path) -> None:
    found = statistics(tmp_path, torch.tensor(-2.5))
    assert found == Statistics(-2.5, -2.5, -2.5, 2.5, rounding=2**-24, digits=5e-5)


@pytest.mark.parametrize("held", [torch.tensor([[3, -4], [0, 12]]), torch.tensor([True, False, True])])
def test_whole_numbers_are_read_where_all_are_printed(tmp_path: Path, held: torch.Tensor) -> None:
    found, exact = statistics(tmp_path, held), held.double()
    assert (found.max, found.min) == (exact.max().item(), exact.min().item())
    assert found.mean == pytest.approx(exact.mean().item())
    assert found.l2norm == pytest.approx(exact.norm().item())


def test_prints_that_leave_numbers_out_say_nothing(tmp_path: Path) -> None:
    assert statistics(tmp_path, torch.arange(2000)) == Statistics(None, None, None, None)
    assert statistics(tmp_path, torch.empty(0)) == Statistics(None, None, None, None)


def test_there_are_no_values(tmp_path: Path) -> None:
    with pytest.raises(NoPayload, match="use_repr=False"):
        written(tmp_path, said(torch.ones(3))).open()


@pytest.mark.parametrize(
    "member", ["inputs/args/1", "inputs/args/x", "outputs", "inputs", "", "inputs/args/0/shape/0"]
)
def test_a_member_that_is_no_tensor_is_named(tmp_path: Path, member: str) -> None:
    ref = written(tmp_path, said(torch.ones(3)))
    with pytest.raises(FormatError, match="has no tensor at"):
        TensorRef(ref.path, member).header()


@pytest.mark.parametrize(
    "lie",
    [
        {"shape": "torch.Size([-1])"},
        {"shape": "torch.Size([9999999999999999999, 9999999999999999999])"},
        {"shape": [2]},
        {"dtype": 3},
        {"shape": "torch.Size([" + "1, " * 100 + "1])"},
    ],
)
def test_a_shape_that_lies_is_refused(tmp_path: Path, lie: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        written(tmp_path, said(torch.ones(3)) | lie).header()


@pytest.mark.parametrize("text", ["tensor()", "tensor(x)", "1.0", "tensor([1, 2])", 3, None])
def test_prints_that_are_no_number_say_nothing(tmp_path: Path, text: object) -> None:
    found = written(tmp_path, said(torch.ones(3)) | {"max": text}).header().statistics
    assert found is not None
    assert found.max is None
    assert found.min == 1


def test_a_dict_that_a_model_passed_is_no_tensor(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="has no tensor at"):
        written(tmp_path, {"shape": {"height": "4"}, "dtype": "'f'"}).header()


def test_which_files_are_trees() -> None:
    full, summary = "A_debug_tree_FULL_TENSORS.json", "A_debug_tree_SUMMARY.json"
    assert is_tree(full, (full, summary))
    assert not is_tree(summary, (full, summary))
    assert is_tree(summary, (summary,))
    assert not is_tree("tree.json", ())
