"""Pictures of two tensors, against the same computed plainly on whole tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.reporting.html import view as module
from acc_pytest.reporting.html.view import fold_of, pictures_of
from acc_pytest.tensors.source import TensorSource

SHAPES = [(7, 64), (1, 5), (5,), (3, 4, 50), (2, 3, 5, 7), (1, 8, 200), (10_000,), (300, 1), ()]


def pictures(golden: torch.Tensor, mine: torch.Tensor) -> dict[str, Any]:
    return pictures_of(TensorSource(golden), TensorSource(mine))


@pytest.fixture(params=[64, 1 << 16], ids=["small blocks", "one block"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", request.param)


def pair(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(len(shape) + sum(shape))
    golden = torch.randn(shape, generator=make).to(dtype)
    noise = torch.randn(shape, generator=make) * 10 ** torch.randn(shape, generator=make)
    return golden, (golden.float() + 0.01 * noise).to(dtype)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_errors_are_counted_by_powers_of_two(shape: tuple[int, ...]) -> None:
    golden, mine = pair(shape)
    found = pictures(golden, mine)["errors"]
    errors = (mine.double() - golden.double()).abs().reshape(-1).tolist()
    expected: dict[int, int] = {}
    for error in errors:
        if error:
            power = math.floor(math.log2(error))
            expected[power] = expected.get(power, 0) + 1
    assert {found["lowest"] + place: n for place, n in enumerate(found["bins"]) if n} == expected
    assert found["equal"] == errors.count(0.0)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_map_holds_the_largest_error_of_each_cell(shape: tuple[int, ...]) -> None:
    golden, mine = pair(shape)
    found = pictures(golden, mine)["map"]
    errors = (mine.double() - golden.double()).abs().reshape(-1).numpy()
    rows, columns = found["rows"], found["columns"]
    padded = np.full(rows * columns, -1.0)
    padded[: errors.size] = errors
    cells = found["cells"]
    height, width = len(cells), len(cells[0])
    assert height <= module.MAP_ROWS
    assert width <= module.MAP_COLUMNS
    expected = np.full((height, width), -1.0)
    for (y, x), error in np.ndenumerate(padded.reshape(rows, columns)):
        down = y * height // rows
        right = max(one for one in range(width) if one * columns // width <= x)
        expected[down, right] = max(expected[down, right], error)
    for line, wanted in zip(cells, expected.tolist()):
        shown = [-1.0 if cell is None else cell for cell in line]
        assert shown == pytest.approx(wanted, rel=1e-3)  # four digits are kept


@pytest.mark.usefixtures("block")
def test_the_scatter_counts_every_finite_pair() -> None:
    golden, mine = pair((40, 50))
    found = pictures(golden, mine)["scatter"]
    both = torch.stack([golden, mine]).double()
    assert (found["low"], found["high"]) == (both.min().item(), both.max().item())
    counted, _, _ = np.histogram2d(
        mine.double().reshape(-1).numpy(),
        golden.double().reshape(-1).numpy(),
        bins=found["size"],
        range=[[found["low"], found["high"]]] * 2,
    )
    grid = np.zeros_like(counted)
    for x, y, number in found["cells"]:
        grid[y, x] = number
    assert grid.sum() == 2000
    assert np.abs(grid - counted).sum() <= 4  # values on an edge may fall to either side


@pytest.mark.usefixtures("block")
def test_the_worst_elements_are_those_of_a_full_sort() -> None:
    golden, mine = pair((6, 7, 8))
    errors = (mine.double() - golden.double()).abs().reshape(-1)
    order = torch.argsort(errors, descending=True)[: module.WORST].tolist()
    found = pictures(golden, mine)["worst"]
    assert [one[0] for one in found] == [str([place // 56, place // 8 % 7, place % 8]) for place in order]
    assert [one[1] for one in found] == [golden.reshape(-1)[place].item() for place in order]
    assert [one[2] for one in found] == [mine.reshape(-1)[place].item() for place in order]


def test_nan_and_infinity_are_counted_and_never_plotted() -> None:
    nan, inf = math.nan, math.inf
    golden = torch.tensor([1.0, nan, nan, inf, inf, -inf, 2.0, 0.0])
    mine = torch.tensor([1.0, nan, 1.0, inf, -inf, 1.0, nan, 0.5])
    found = pictures(golden, mine)
    assert found["onesided"] == 4  # NaN for a number, two infinities for something else, a number for NaN
    assert found["common"] == 2
    assert found["errors"]["equal"] == 3
    assert sum(found["errors"]["bins"]) == 1
    assert sum(number for *_, number in found["scatter"]["cells"]) == 2
    assert [one[3] for one in found["worst"]] == ["Infinity"] * 4 + [0.5]
    assert found["worst"][0][:3] == ["[2]", "nan", 1.0]


def test_an_empty_tensor_has_no_pictures() -> None:
    assert pictures(torch.empty(2, 0), torch.empty(2, 0)) == {"shape": [2, 0], "empty": True}


def test_complex_tensors_have_no_scatter() -> None:
    golden = torch.tensor([1 + 1j, 2 - 1j])
    found = pictures(golden, golden + torch.tensor([0j, 3 + 4j]))
    assert found["scatter"] is None
    assert found["worst"][0][3] == 5.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool])
def test_every_type_is_drawn(dtype: torch.dtype) -> None:
    golden = torch.tensor([0, 1, 1, 0]).to(dtype)
    found = pictures(golden, torch.tensor([0, 1, 0, 0]).to(dtype))
    assert found["errors"] == {"lowest": 0, "bins": [1], "equal": 3}


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "split"),
    [
        ((512, 4096), 512, 4096, 1),
        ((1, 512, 4096), 512, 4096, 2),
        ((512, 32, 128), 512, 4096, 1),  # columns are heads side by side
        ((1, 32, 512, 128), 16384, 128, 3),
        ((7,), 1, 7, 0),
        ((1_000_000,), 245, 4096, -1),
        ((1, 1, 500_000), 123, 4096, -1),
        ((), 1, 1, 0),
    ],
    ids=str,
)
def test_a_tensor_is_folded_to_tokens_by_width(
    shape: tuple[int, ...], rows: int, columns: int, split: int
) -> None:
    found = fold_of(shape)
    assert (found.rows, found.columns, found.split) == (rows, columns, split)
