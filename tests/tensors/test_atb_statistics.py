"""atb_statistics: the probe's text, to the byte, and back."""

from __future__ import annotations

import math

import pytest
import torch

from acc_pytest.tensors.atb_bin import from_attributes, number, text_of
from acc_pytest.tensors.header import Statistics
from tests.newer import torch_dtypes


def texts(tensor: torch.Tensor, **options: bool) -> str:
    return " ".join(f"{key}={value}" for key, value in text_of(tensor, **options).items())


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.tensor([-5, 0, 7], dtype=torch.int8), "max=7 min=-5 mean=0.666667 l2norm=8.602325"),
        (
            torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64),
            "max=(3.000000,-4.000000) min=(1.000000,2.000000) mean=(2.000000,-1.000000) l2norm=5.477226",
        ),
        (torch.tensor([1, math.nan, -2.0]), "max=1.000000 min=-2.000000 mean=nan l2norm=nan"),
        (torch.tensor([math.inf, 1.0]), "max=inf min=1.000000 mean=inf l2norm=inf"),
        (
            torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
            "max=2.000000 min=1.000000 mean=1.500000 l2norm=2.236068",
        ),
        (torch.tensor([0.5], dtype=torch.float64), "max=0.500000 min=0.500000 mean=0.500000 l2norm=0.500000"),
        (torch.tensor([True]), "max=N/A min=N/A mean=N/A l2norm=N/A"),
        (torch.zeros(0), "max=N/A min=N/A mean=N/A l2norm=N/A"),
        (torch.zeros(2, dtype=torch.complex128), "max=N/A min=N/A mean=N/A l2norm=N/A"),
    ],
)
def test_the_text_is_that_of_the_probe(tensor: torch.Tensor, text: str) -> None:
    assert texts(tensor) == text


def test_float_squares_round_in_float32_unless_wide() -> None:
    tensor = torch.tensor([1e10, 1e-8])
    assert text_of(tensor)["l2norm"] == "10000000100.204386"
    assert text_of(tensor, wide_squares=True)["l2norm"] == "10000000000.000000"
    many = torch.tensor([1e30 + 1e30j], dtype=torch.complex64)
    assert text_of(many)["l2norm"] == "inf"
    assert number(text_of(many, wide_squares=True)["l2norm"]) == pytest.approx(math.sqrt(2) * 1e30, rel=1e-6)


def test_a_tensor_of_nan_shows_the_limits_of_its_type() -> None:
    found = text_of(torch.tensor([math.nan]))
    limit = torch.finfo(torch.float32).max
    assert (found["max"], found["min"]) == (f"{-limit:f}", f"{limit:f}")


@pytest.mark.parametrize("dtype", torch_dtypes("uint16", "uint32", "uint64"), ids=str)
def test_unsigned_numbers_are_ordered_over_their_whole_range(dtype: torch.dtype) -> None:
    top = 2 ** (8 * dtype.itemsize) - 1
    found = text_of(torch.tensor([1, top, 0], dtype=dtype))
    assert (found["max"], found["min"]) == (str(top), "0")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4.000000", 4.0),
        (" -7 ", -7.0),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("(3.000000,-4.000000)", 5.0),
        ("N/A", None),
        ("(N/A,1)", None),
        ("", None),
        ("9" * 500, None),
    ],
)
def test_cells_are_numbers_moduli_or_nothing(text: str, value: float | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["nan", "-nan"])
def test_both_signs_of_nan_are_nan(text: str) -> None:
    assert math.isnan(number(text) or 0.0)


def test_attributes_without_statistics_give_none_and_gaps_stay_gaps() -> None:
    assert from_attributes({"dtype": "0"}) is None
    assert from_attributes({"max": "1"}) == Statistics(1.0, None, None, None)
