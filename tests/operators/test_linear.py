from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.operators.layout import nd_to_nz
from acc_pytest.operators.linear import BLOCK

LINEAR = "LinearOperation"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_products_are_those_of_float64(dtype: torch.dtype, left: bool, right: bool) -> None:
    x, w = torch.randn(3, 5, 8).to(dtype), torch.randn(4, 8).to(dtype)
    expected = F.linear(x.double(), w.double())
    param = {"hasBias": False, "transposeA": left, "transposeB": right}
    inputs = [x.transpose(1, 2) if left else x, w if right else w.T]
    (out,) = compute(LINEAR, param, inputs, accumulate=torch.float64, round_outputs=False)
    torch.testing.assert_close(out, expected, rtol=1e-14, atol=1e-14)
    (rounded,) = compute(LINEAR, param, inputs)
    assert rounded.dtype == dtype
    torch.testing.assert_close(rounded.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)])
def test_a_wide_weight_is_multiplied_by_blocks_of_columns(transposed: bool, shape: tuple[int, ...]) -> None:
    x, w = torch.randn(shape).half(), torch.randn(BLOCK * 2 + 5, 8).half()
    param = {"hasBias": False, "transposeB": transposed}
    (out,) = compute(
        LINEAR, param, [x, w if transposed else w.T], accumulate=torch.float64, round_outputs=False
    )
    torch.testing.assert_close(out, F.linear(x.double(), w.double()), rtol=1e-14, atol=1e-14)


def test_a_weight_in_nz_is_the_same_weight() -> None:
    x, w = torch.randn(2, 20).half(), torch.randn(24, 20).half()
    plain, nz = (compute(LINEAR, {"hasBias": False}, [x, t]) for t in (w, nd_to_nz(w)[None]))
    # rows of the weight are padded to 16, and nothing in its file says where they end
    assert torch.equal(nz[0][:, :24], plain[0])


def test_the_product_of_the_old_library() -> None:
    x, y = torch.randn(2, 3).half(), torch.randn(3, 4).half()
    (out,) = compute("MatmulOperation", {}, [x, y])
    assert torch.equal(out, (x.float() @ y.float()).half())
    (turned,) = compute("MatmulOperation", {"transposeA": True, "transposeB": True}, [x.T, y.T])
    assert torch.equal(turned, out)


def test_a_bias_is_added_to_the_rounded_product() -> None:
    x, w = torch.tensor([[1.0]]).half(), torch.tensor([[1.0]]).half()
    bias = torch.tensor([2.0**-11]).half()
    assert compute(LINEAR, {}, [x, w, bias])[0].item() == 1.0
    (exact,) = compute(LINEAR, {}, [x, w, bias], round_outputs=False)
    assert exact.item() == 1.0 + 2.0**-11


def test_int8_products_are_exact_before_their_scale() -> None:
    x = torch.full((1, 70000), 127, dtype=torch.int8)
    w = torch.full((1, 70000), 127, dtype=torch.int8)
    bias, scale = torch.tensor([1], dtype=torch.int32), torch.tensor([1.0])
    (out,) = compute(LINEAR, {"outDataType": 27}, [x, w, bias, scale],
                     accumulate=torch.float64, round_outputs=False)  # fmt: skip
    assert out.item() == 127 * 127 * 70000 + 1


@pytest.mark.parametrize("scale", [[0.5], [0.5, 0.25, 2.0]])
@pytest.mark.parametrize("packed", [False, True])
def test_scales_come_by_tensor_or_by_column_and_packed_into_integers(
    scale: list[float], packed: bool
) -> None:
    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((4, 16), (3, 16)))
    values = torch.tensor(scale)
    operand = values.view(torch.int32).long() if packed else values
    (out,) = compute(LINEAR, {"hasBias": False, "outDataType": 1}, [x, w, operand])
    assert out.dtype == torch.float16
    expected = (x.double() @ w.double().T * values.double()).half()
    assert torch.equal(out, expected)


def test_operands_of_int8_may_come_before_they_are_rounded() -> None:
    """In float64, as what is computed from golden's inputs has them; other floats have no scale."""
    x, scale = torch.tensor([[1.25, -3.5]]), torch.tensor([0.5])
    w = torch.tensor([[2, 1]], dtype=torch.int8)
    param = {"hasBias": False, "outDataType": 27}
    (out,) = compute(LINEAR, param, [x.double(), w, scale], accumulate=torch.float64, round_outputs=False)
    assert out.tolist() == [[-0.5]]
    with pytest.raises(OperatorError, match="deqScale is given, but x is"):
        compute(LINEAR, param, [x.half(), w, scale])


def test_the_output_of_int8_follows_the_scale_unless_told() -> None:
    x = torch.ones(1, 2, dtype=torch.int8)
    for scale, dtype in ((torch.ones(1), torch.bfloat16), (torch.ones(1, dtype=torch.int64), torch.float16)):
        assert compute(LINEAR, {"hasBias": False}, [x, x, scale])[0].dtype == dtype


def test_rows_are_scaled_by_token() -> None:
    x, w = torch.ones(2, 3, dtype=torch.int8), torch.ones(1, 3, dtype=torch.int8)
    rows = torch.tensor([1.0, 10.0])
    param = {"hasBias": False, "quantMode": 2, "outDataType": 1}
    assert compute(LINEAR, param, [x, w, torch.ones(1), rows])[0].tolist() == [[3.0], [30.0]]


def test_accumulation_replaces_its_operand() -> None:
    x, w, total = torch.ones(2, 3).half(), torch.ones(4, 3).half(), torch.full((2, 4), 0.5)
    (out,) = compute(LINEAR, {"hasBias": False, "enAccum": True}, [x, w, total])
    assert out.dtype == torch.float32
    assert torch.equal(out, torch.full((2, 4), 3.5))


def test_einsum_multiplies_head_by_head() -> None:
    x, w = torch.randn(5, 2, 3), torch.randn(2, 3, 4)
    (out,) = compute(LINEAR, {"hasBias": False, "matmulType": 1, "transposeB": False}, [x, w])
    torch.testing.assert_close(out, torch.einsum("mbk,bkn->mbn", x, w))


@pytest.mark.parametrize(
    ("param", "inputs", "message"),
    [
        (
            {"hasBias": False},
            [torch.ones(2, 3), torch.ones(4, 5)],
            r"weight \[4, 5\] do not mul",
        ),
        ({}, [torch.ones(2, 3), torch.ones(4, 3), torch.ones(5)], "row of 5 values does not fit 4 columns"),
        (
            {"hasBias": False},
            [torch.ones(2, 3).char(), torch.ones(4, 3).char()],
            "operands need deqScale",
        ),
        ({"hasBias": False}, [torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)], "deqScale is given, but x"),
        ({"hasBias": False}, [torch.ones(2, 3), torch.ones(3)], "weight has 1 dimensions"),
    ],
)
def test_operands_that_do_not_fit(param: dict[str, object], inputs: list[torch.Tensor], message: str) -> None:
    with pytest.raises(OperatorError, match=f"LinearOperation: .*{message}"):
        compute(LINEAR, param, inputs)
