"""The kernels of leaves: names, Mki parameters and tensors. Real dumps are in `test_conformance`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acc_pytest.lab.atb.graph import Execution, operation
from acc_pytest.lab.atb.kernels import Kernel, kernels_of

HALF = torch.ones(2, 4, dtype=torch.float16)


def run(
    kind: str, param: dict[str, Any] | None, *inputs: torch.Tensor, out: torch.Tensor = HALF
) -> list[Kernel]:
    leaf = operation(kind, param, ("",) * len(inputs), ("",))
    return kernels_of(Execution(0, (f"0_{kind}",), leaf, inputs, inputs, (None,), (out,)))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float16, "SoftmaxF16Kernel"),
        (torch.bfloat16, "SoftmaxBF16Kernel"),
        (torch.int32, "SoftmaxI32Kernel"),
    ],
)
def test_an_operation_without_real_data_has_one_kernel_like_itself(dtype: torch.dtype, name: str) -> None:
    x = HALF.to(dtype)
    (kernel,) = run("SoftmaxOperation", {"axes": [-1]}, x, out=x)
    assert (kernel.name, kernel.operation, kernel.param) == (name, "SoftmaxOperation", {"axes": [-1]})
    assert kernel.declared == 1
    assert kernel.before[0] is x
    assert kernel.outputs[0] is x


def test_communication_has_no_kernels() -> None:
    assert run("AllReduceOperation", {"rank": 0, "rankSize": 1}, HALF) == []


def test_product_and_bias_are_two_kernels_with_the_product_between() -> None:
    weight = torch.full((3, 4), 2.0, dtype=torch.float16)
    bias = torch.arange(3, dtype=torch.float16)
    product, add = run("LinearOperation", {"hasBias": True}, HALF, weight, bias, out=HALF.new_zeros(2, 3))
    assert product.name == "PpMatMulF16Kernel"
    assert product.declared == 2
    assert product.param["oriShape"] == [2, 4, 3]
    assert torch.equal(product.outputs[0], torch.full((2, 3), 8.0, dtype=torch.float16))
    assert add.name == "AddF16Kernel"
    assert add.before[0] is product.outputs[0]
    assert add.before[1] is bias


def test_transposed_operands_are_counted_in_the_right_direction() -> None:
    weight = torch.ones(4, 3, dtype=torch.float16)
    (kernel,) = run("LinearOperation", {"hasBias": False, "transposeB": False}, HALF, weight)
    assert kernel.param["oriShape"] == [2, 4, 3]


def test_moving_bits_uses_the_kernels_of_float16_and_computing_does_not() -> None:
    x = HALF.bfloat16()
    names = [
        run("SplitOperation", {"splitDim": -1, "splitNum": 1}, x, out=x)[0].name,
        run("LinearOperation", {}, x, x, out=x)[0].name,
        run("ElewiseOperation", {"elewiseType": 8}, x, x, out=x)[0].name,
    ]
    assert names == ["SplitF16Output1Kernel", "PpMatMulBf16Kernel", "AddBF16Kernel"]


def test_the_mask_of_attention_leaves_a_gap_and_the_lengths_become_parameters() -> None:
    q = torch.ones(3, 2, 8, dtype=torch.float16)
    mask, lengths = torch.zeros(3, 3, dtype=torch.float16), torch.tensor([3], dtype=torch.int32)
    param = {"calcType": 3, "headNum": 2, "kvHeadNum": 2, "maskType": 1, "qkScale": 0.5}
    (kernel,) = run("SelfAttentionOperation", param, q, q, q, mask, lengths, out=q)
    assert sorted(kernel.before) == [0, 1, 2, 4]
    assert kernel.declared == 12
    assert kernel.param["kvSeqLen"] == [3]
    assert kernel.param["tor"] == 0.5
    (bare,) = run("SelfAttentionOperation", {**param, "maskType": 0}, q, q, q, lengths, out=q)
    assert sorted(bare.before) == [0, 1, 2]


def test_lengths_of_rope_are_unsigned() -> None:
    lengths = torch.tensor([2], dtype=torch.int32)
    (kernel,) = run("RopeOperation", {"rotaryCoeff": 2}, HALF, HALF, HALF, HALF, lengths)
    assert kernel.before[4].dtype == getattr(torch, "uint32", torch.int32)


def test_the_attention_of_2024_scales_then_extends_both_caches_then_attends() -> None:
    q = torch.full((1, 2, 1, 4), 3.0, dtype=torch.float16)
    old, new = torch.zeros(1, 1, 8, 4, dtype=torch.float16), torch.ones(1, 1, 8, 4, dtype=torch.float16)
    one = torch.tensor([2], dtype=torch.int32)
    before = (q, q, q, old, old, HALF, one, one, one)
    after = (q, q, q, new, new, HALF, one, one, one)
    leaf = operation(
        "SelfAttentionOperation", {"headNum": 1, "qScale": 0.5, "isSupportAlibi": True}, ("",) * 9, ("",)
    )
    kernels = kernels_of(Execution(0, ("0_SelfAttentionOperation",), leaf, before, after, (None,), (HALF,)))
    names = ["MulsF16Kernel", "KVCacheNdKernel", "KVCacheNdKernel", "UnpadFlashAttentionNdKernel"]
    assert [kernel.name for kernel in kernels] == names
    muls, key, _, attend = kernels
    assert float(muls.outputs[0][0, 0]) == 1.5
    assert key.before[2] is old
    assert key.after[2] is new
    assert key.stale == (old,)
    assert attend.before[1] is new
    assert attend.before[0] is muls.outputs[0]
    assert attend.param["maskType"] == 2


def test_an_operation_that_writes_onto_its_input_alone_has_a_kernel_too() -> None:
    leaf = operation("SetValueOperation", {"starts": [0]}, ("", ""), ())
    (kernel,) = kernels_of(Execution(0, ("0_SetValueOperation",), leaf, (HALF, HALF), (HALF, HALF), (), ()))
    assert kernel.name == "SetValueF16Kernel"
    assert kernel.outputs == ()


def test_scales_after_the_weight_are_no_bias() -> None:
    x = torch.ones(2, 4, dtype=torch.int8)
    scales = torch.ones(3)
    param = {"hasBias": False, "outDataType": 1}
    (kernel,) = run("LinearOperation", param, x, torch.ones(3, 4, dtype=torch.int8), scales)
    assert kernel.declared == 3
    assert kernel.param["oriShape"] == [2, 4, 3]
