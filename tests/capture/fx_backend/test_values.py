"""Files of an FX dump hold what TorchAir's would, and what it would stop at."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.capture.fx_backend.runs import as_array, as_plain_array
from acc_pytest.tensors.ref import TensorRef

ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("value", "dtype", "shape", "content"),
    [
        (torch.tensor(1.5), "<f4", (), 1.5),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "<f4", (2,), [1, 2]),
        (torch.tensor([1.5], dtype=torch.float16), "<f2", (1,), [1.5]),
        (torch.tensor([1.5, -448.0]).to(torch.float8_e4m3fn), "<f4", (2,), [1.5, -448]),
        (torch.tensor([True]), "|b1", (1,), [True]),
        (torch.tensor([1, 2], dtype=torch.uint8), "|u1", (2,), [1, 2]),
        (torch.tensor([1 + 2j]).conj(), "<c8", (1,), [1 - 2j]),
        (torch.eye(2).to_sparse(), "<f4", (2, 2), [[1, 0], [0, 1]]),
        (torch.nn.Parameter(torch.zeros(1)), "<f4", (1,), [0]),
        (torch.empty(0, 3), "<f4", (0, 3), np.zeros((0, 3))),
        (7, "<i8", (), 7),
        (True, "|b1", (), True),
        (0.5, "<f8", (), 0.5),
        ([1, 2], "<i8", (2,), [1, 2]),
        ((1, 2.5), "<f8", (2,), [1, 2.5]),
        ([], "<f8", (0,), []),
        ("mean", "<U4", (), "mean"),
    ],
)
def test_values_become_arrays(value: Any, dtype: str, shape: tuple[int, ...], content: Any) -> None:
    array = as_array(value)
    assert (array.dtype.str, array.shape) == (dtype, shape)
    assert np.array_equal(array, content)


def test_bfloat16_may_keep_its_bytes(tmp_path: Path) -> None:
    tensor = torch.randn(3, 4).to(torch.bfloat16).t()
    np.save(tmp_path / "x.npy", as_array(tensor, bfloat16=True))
    ref = TensorRef(str(tmp_path / "x.npy"))
    assert ref.header().dtype.name == "bfloat16"
    assert torch.equal(ref.open(), tensor)
    assert as_array(torch.ones(1), bfloat16=True).dtype == np.float32
    assert as_plain_array(torch.ones((), dtype=torch.bfloat16), bfloat16=True).shape == ()


@pytest.mark.parametrize("value", [None, torch.float32, torch.device("cpu")])
def test_what_is_no_number_is_an_object_and_its_text_where_nothing_may_be_pickled(value: Any) -> None:
    assert (as_array(value).dtype.str, as_array(value).shape) == ("|O", ())
    assert as_plain_array(value) == np.array(str(value))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_dumped_as_what_they_stand_for() -> None:
    array = as_array(torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.qint8))
    assert array.dtype.str == "<f4"
    assert array.tolist() == [0.5, 1.0]


def test_unequal_things_become_their_text() -> None:
    array = as_array([None, torch.tensor([0, 2])])
    assert array.dtype.str == "<U22"
    assert array.item() == "[None, tensor([0, 2])]"


def test_the_order_of_memory_is_kept() -> None:
    """TorchAir hands numpy the tensor as it is, and numpy writes a transposed one by columns."""
    file = io.BytesIO()
    np.save(file, as_array(ONES.t()))
    assert b"'fortran_order': True" in file.getvalue()
