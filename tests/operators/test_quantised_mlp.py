from __future__ import annotations

import pytest
import torch

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.operators.layout import nd_to_nz

ONE, SOME = "MmDeqSwigluQuantMmDeqOperation", "GmmDeqSwigluQuantGmmDeqOperation"


def interleaved(columns: torch.Tensor, tile: int) -> torch.Tensor:
    """Half a tile of the gate, half a tile of the value, and so on: column by column."""
    half, width = columns.shape[-1] // 2, tile // 2
    order = []
    for start in range(0, half, width):
        order += [*range(start, start + width), *range(half + start, half + start + width)]
    return columns[..., order].contiguous()


def mlp(x: torch.Tensor, up: torch.Tensor, scale_up: torch.Tensor, rows: torch.Tensor,
        down: torch.Tensor, scale_down: torch.Tensor) -> torch.Tensor:  # fmt: skip
    """Row by row in float64; the product before the activation is float16."""
    result = []
    for row, scale in zip(x.double(), rows.double()):
        hidden = ((row @ up.double()) * scale_up.double() * scale).float().half().double()
        gate, value = hidden.tensor_split(2)
        activated = gate / (1 + (-gate).exp()) * value
        step = activated.abs().max() / 127
        result.append((activated / step).round() @ down.double() * scale_down.double() * step)
    return torch.stack(result)


def operands(groups: int, m: int = 5, k: int = 32, n: int = 256) -> list[torch.Tensor]:
    up, down = torch.randint(-16, 16, (groups, k, n)), torch.randint(-16, 16, (groups, n // 2, k))
    scale_up, scale_down = torch.rand(groups, n) / 50 + 0.01, torch.rand(groups, k) / 50
    x, rows = torch.randint(-16, 16, (m, k)), torch.rand(m) / 10 + 0.05
    return [x.to(torch.int8), up.to(torch.int8), scale_up, rows, down.to(torch.int8), scale_down]


@pytest.mark.parametrize(("kind", "tile"), [(0, 256), (1, 128)])
@pytest.mark.parametrize("nz", [False, True])
def test_one_expert(kind: int, tile: int, nz: bool) -> None:
    x, up, scale_up, rows, down, scale_down = operands(1)
    weights = [interleaved(up[0], tile), down[0].T.contiguous()]
    if nz:
        weights = [nd_to_nz(weight[None], 32) for weight in weights]
    param = {"weightUpPermuteType": kind, "outputType": 1}
    inputs = [x, weights[0], interleaved(scale_up[0], tile), rows, weights[1], scale_down[0]]
    (out,) = compute(ONE, param, inputs)
    assert out.dtype == torch.bfloat16
    expected = mlp(x, up[0], scale_up[0], rows, down[0], scale_down[0])
    torch.testing.assert_close(out.double(), expected, rtol=2.0**-8, atol=0.02)


@pytest.mark.parametrize("counted", [False, True])
def test_experts_take_the_rows_of_their_groups(counted: bool) -> None:
    x, up, scale_up, rows, down, scale_down = operands(3)
    groups = torch.tensor([2, 0, 2] if counted else [2, 2, 4])
    inputs = [
        x,
        interleaved(up, 256).transpose(1, 2),
        interleaved(scale_up, 256),
        rows,
        groups,
        down,
        scale_down,
    ]
    param = {"groupListType": int(counted), "transposeWeightUp": True, "transposeWeightDown": False}
    (out,) = compute(SOME, param, inputs)
    first = mlp(x[:2], up[0], scale_up[0], rows[:2], down[0], scale_down[0])
    last = mlp(x[2:4], up[2], scale_up[2], rows[2:4], down[2], scale_down[2])
    expected = torch.cat((first, last, torch.zeros(1, 32)))
    torch.testing.assert_close(out.double(), expected, rtol=2.0**-10, atol=0.02)


def test_columns_that_are_no_whole_tiles_are_refused() -> None:
    x, up, scale_up, rows, down, scale_down = operands(1, n=64)
    with pytest.raises(OperatorError, match="64 columns of weightUp are not whole tiles of 256"):
        compute(ONE, {"transposeWeightDown": False}, [x, up[0], scale_up[0], rows, down[0], scale_down[0]])
    with pytest.raises(OperatorError, match=r"weightUp is torch.float32 and not int8"):
        compute(ONE, {}, [x, up[0].float(), scale_up[0], rows, down[0], scale_down[0]])
