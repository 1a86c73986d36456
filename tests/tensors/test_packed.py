"""packed: types of fewer than eight bits, and hifloat8, come and go without loss."""

from __future__ import annotations

import pytest
import torch

from acc_pytest.tensors import packed
from acc_pytest.tensors.dtypes import by_name
from acc_pytest.tensors.packed import decoded, is_packed, pack, unpack

NAMES = ["int4", "int2", "uint2", "uint1", "float4_e2m1", "float4_e1m2", "hifloat8"]


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_is_unpacked_and_packed_again(name: str) -> None:
    dtype = by_name(name)
    stored = torch.arange(256, dtype=torch.uint8)
    values = unpack(stored, dtype, 256 * 8 // dtype.bits)
    assert values.dtype == decoded(dtype).torch_dtype()
    assert torch.equal(pack(values, dtype), stored)


@pytest.mark.parametrize("name", NAMES)
def test_values_that_do_not_fill_a_byte_are_cut_from_it(name: str) -> None:
    dtype = by_name(name)
    values = unpack(torch.tensor([255, 129], dtype=torch.uint8), dtype, 1)
    assert values.numel() == 1
    assert torch.equal(unpack(pack(values, dtype), dtype, 1).view(torch.uint8), values.view(torch.uint8))
    assert unpack(torch.empty(0, dtype=torch.uint8), dtype, 0).shape == (0,)


def test_long_tensors_are_unpacked_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = torch.randint(0, 256, (100,), dtype=torch.uint8)
    whole = unpack(stored, by_name("int4"), 199)
    monkeypatch.setattr(packed, "_BLOCK", 7)
    assert torch.equal(unpack(stored, by_name("int4"), 199), whole)


@pytest.mark.parametrize("name", ["float32", "float8_e4m3fn", "float6_e3m2", "string", "int8"])
def test_other_types_are_left_alone(name: str) -> None:
    assert decoded(by_name(name)) is by_name(name)
    assert not is_packed(by_name(name))
