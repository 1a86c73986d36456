"""ge_record and ge_file: records are written byte for byte, and give back every tensor or say why not."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import AccError, CannotDecode, FormatError, NoPayload
from acc_pytest.lab.demo.torchair.records import hashed_name
from acc_pytest.tensors import packed
from acc_pytest.tensors.dtypes import LAYOUTS, by_name
from acc_pytest.tensors.formats import format_of
from acc_pytest.tensors.ge_file import members, rule_of
from acc_pytest.tensors.ge_message import (
    GeRecord,
    GeTensor,
    OriginalOp,
    by_ge_code,
    by_ge_name,
    ge_code,
    ge_layout_code,
    ge_layout_name,
)
from acc_pytest.tensors.ge_record import read_record
from acc_pytest.tensors.packed import decoded, is_packed, unpack
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.wire import bytes_field, encoded, number_field
from tests.newer import torch_dtype, torch_dtypes
from tests.tensors.ge_writer import DYNAMIC, GeValue, pack, serialise, write_record

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "conformance" / "torchair" / "ge_and_fx" / "ge"
NAME = "Add.Add_2.44.6.1706596912161941"
ADD_2 = """
4c 00 00 00 00 00 00 00
0a 03 32 2e 30 10 95 c9 e5 f5 c0 84 84 03
1a 20 08 01 10 02 1a 03 0a 01 02 22 0b 0a 05 41 64 64 5f 32 18 01 20 02 30 08 3a 03 0a 01 02 48 80 40
22 13 08 01 10 02 1a 03 0a 01 02 28 08 32 03 0a 01 02 40 80 20
32 05 41 64 64 5f 32
00 00 80 3f 00 00 00 40 00 00 40 40 00 00 80 40
"""


def made(path: Path, tensors: list[GeTensor], payload: bytes = b"", **more: Any) -> str:
    """A record with these outputs and this payload, whether they agree or not."""
    header = serialise(GeRecord("Op", 1, (), tuple(tensors), **more))
    path.write_bytes(len(header).to_bytes(8, "little") + header + payload)
    return str(path)


def described(code: int, shape: tuple[int, ...], nbytes: int, **more: Any) -> GeTensor:
    return GeTensor(by_ge_code(code), "nd", shape, shape, nbytes, **{"address": 1, **more})


def of_code(path: Path, code: int, shape: tuple[int, ...], payload: bytes) -> str:
    """A record with one output of the type with this code, which need not be one that is ever written."""
    dims = bytes_field(3, bytes_field(1, b"".join(map(encoded, shape))))
    output = number_field(1, code) + number_field(2, 2) + dims + number_field(6, len(payload))
    header = bytes_field(3, output)
    path.write_bytes(len(header).to_bytes(8, "little") + header + payload)
    return str(path)


def test_the_worked_example_of_the_format_is_written_and_read(tmp_path: Path) -> None:
    path = write_record(
        tmp_path / NAME,
        "Add_2",
        [torch.tensor([1.0, 2.0])],
        [GeValue(torch.tensor([3.0, 4.0]), original_op=OriginalOp("Add_2"))],
        dump_time=1706596912161941,
    )
    assert Path(path).read_bytes() == bytes.fromhex(ADD_2)
    assert format_of(path).name == "GE record"
    record = read_record(path)
    assert (record.op_name, record.dump_time) == ("Add_2", 1706596912161941)
    assert record.outputs[0].original_op == OriginalOp("Add_2", 0)
    assert members(path) == ("inputs/0", "outputs/0")
    assert TensorRef(path, "inputs/0").open().tolist() == [1, 2]
    assert TensorRef(path, "outputs/0").open().tolist() == [3, 4]
    assert TensorRef(path).open().tolist() == [3, 4]


TORCH = {
    1: "float32",
    2: "float16",
    3: "int8",
    4: "uint8",
    5: "int16",
    6: "uint16",
    7: "int32",
    8: "int64",
    9: "uint32",
    10: "uint64",
    11: "bool",
    12: "float64",
    14: "int8",
    15: "uint8",
    16: "complex64",
    17: "complex128",
    18: "int8",
    19: "int16",
    20: "int32",
    21: "uint8",
    22: "uint16",
    23: "int64",
    27: "bfloat16",
    32: "complex32",
    34: "float8_e5m2",
    35: "float8_e4m3fn",
    36: "float8_e8m0fnu",
}


@pytest.mark.parametrize(("code", "name"), TORCH.items())
def test_every_type_torch_has_is_mapped(tmp_path: Path, code: int, name: str) -> None:
    dtype = torch_dtype(name)
    payload = bytes([0, 1]) * 3 * dtype.itemsize
    ref = TensorRef(of_code(tmp_path / "x", code, (2, 3), payload[: 6 * dtype.itemsize]))
    found = ref.open()
    assert (found.dtype, found.shape) == (dtype, (2, 3))
    assert bytes(found.reshape(-1).view(torch.uint8).tolist()) == payload[: 6 * dtype.itemsize]
    assert ref.header().dtype.torch_dtype() == dtype


PACKED: dict[int, tuple[Any, torch.dtype]] = {
    28: (ml_dtypes.int4, torch.int8),
    30: (ml_dtypes.int2, torch.int8),
    31: (ml_dtypes.uint2, torch.uint8),
    39: (ml_dtypes.float4_e2m1fn, torch.float8_e4m3fn),
}


@pytest.mark.parametrize(("code", "types"), PACKED.items())
def test_packed_types_are_decoded_lowest_bits_first(
    tmp_path: Path, code: int, types: tuple[Any, torch.dtype]
) -> None:
    bits = by_ge_code(code).bits
    codes = np.arange(1 << bits, dtype=np.uint8).repeat(3)[:-1]
    whole = np.append(codes, np.zeros(-len(codes) % (8 // bits), np.uint8)).reshape(-1, 8 // bits)
    payload = (whole << np.arange(0, 8, bits, dtype=np.uint8)).sum(1).astype(np.uint8).tobytes()
    ref = TensorRef(made(tmp_path / "x", [described(code, (len(codes),), len(payload))], payload))
    assert ref.open().dtype == types[1] == ref.header().dtype.torch_dtype()
    assert ref.open().double().tolist() == codes.view(types[0]).astype(np.float64).tolist()


def test_single_bits_begin_at_the_highest(tmp_path: Path) -> None:
    ref = TensorRef(made(tmp_path / "x", [described(29, (11,), 2)], bytes([0b10110010, 0b01100000])))
    assert ref.open().tolist() == [1, 0, 1, 1, 0, 0, 1, 0, 0, 1, 1]


def test_float4_e1m2_counts_in_quarters(tmp_path: Path) -> None:
    ref = TensorRef(made(tmp_path / "x", [described(40, (4,), 2)], bytes([0x71, 0xF8])))
    values = ref.open().double()
    assert values.tolist() == [0.25, 1.75, 0, -1.75]
    assert torch.signbit(values).tolist() == [False, False, True, True]


def test_hifloat8_keeps_every_value(tmp_path: Path) -> None:
    ref = TensorRef(made(tmp_path / "x", [described(33, (256,), 256)], bytes(range(256))))
    values = ref.open()
    assert values.dtype == torch.bfloat16
    assert values[[0x08, 0x88, 0x6F, 0xEF, 0x10]].tolist() == [1, -1, float("inf"), float("-inf"), 2]
    assert torch.isnan(values[0x80])
    # Exact: as many values as there are codes, but that 0 has one and NaN is not one.
    assert len(set(values[~values.isnan()].tolist())) == 255


def test_fp8_specials_are_those_of_the_standard(tmp_path: Path) -> None:
    e4m3 = TensorRef(made(tmp_path / "a", [described(35, (3,), 3)], b"\x7f\xff\x7e")).open().float()
    assert torch.isnan(e4m3).tolist() == [True, True, False]
    assert e4m3[2] == 448
    e5m2 = TensorRef(made(tmp_path / "b", [described(34, (2,), 2)], b"\x7c\xfc")).open().float()
    assert e5m2.tolist() == [float("inf"), float("-inf")]


@pytest.mark.parametrize("code", [13, 24, 25, 26, 37, 38, 41, 42, 99])
def test_types_without_numbers_say_that_they_cannot_be_decoded(tmp_path: Path, code: int) -> None:
    nbytes = {25: 5, 37: 1, 38: 1, 41: 1}.get(code, 3)
    ref = TensorRef(of_code(tmp_path / "x", code, (1,), bytes(nbytes)), "outputs/0")
    assert ref.header().shape == (1,)
    with pytest.raises(CannotDecode, match=r"x:outputs/0: dtype \w+.* has no decoder"):
        ref.open()


def test_a_tensor_of_no_type_is_its_bytes(tmp_path: Path) -> None:
    ref = TensorRef(made(tmp_path / "x", [described(0, (2, 2), 5)], b"\x01\xff\x03\x04\x05"))
    assert ref.open().tolist() == [1, -1, 3, 4, 5]


def test_values_lie_inputs_first_then_outputs_buffers_and_workspaces(tmp_path: Path) -> None:
    path = write_record(
        tmp_path / "x",
        "op",
        [torch.tensor([1]), torch.tensor([2])],
        [torch.tensor([3]), torch.tensor([4])],
        buffers=[b"abc"],
        spaces=[b"de", b"f"],
        attrs=[("_sgt_json_info", "{}")],
        dump_time=5,
    )
    assert [TensorRef(path, name).open().item() for name in members(path)] == [1, 2, 3, 4]
    record = read_record(path)
    assert (record.buffers, record.spaces) == ((3,), (2, 1))
    assert record.end == record.size == os.path.getsize(path)
    assert Path(path).read_bytes().endswith(b"abcdef")


def test_scalars_and_empty_tensors_are_themselves(tmp_path: Path) -> None:
    path = write_record(tmp_path / "x", "op", [torch.tensor(2.5)], [torch.zeros(0, 3), torch.tensor([7])])
    scalar, empty, last = (TensorRef(path, name).open() for name in members(path))
    assert (scalar.shape, scalar.item()) == ((), 2.5)
    assert empty.shape == (0, 3)
    assert last.tolist() == [7]


def test_padding_belongs_to_no_element(tmp_path: Path) -> None:
    values = [GeValue(torch.tensor([1.0, 2.0]), padding=30), GeValue(torch.tensor([3.0]), padding=1)]
    path = write_record(tmp_path / "x", "op", values)
    assert read_record(path).inputs[0].nbytes == 38
    assert [TensorRef(path, name).open().tolist() for name in members(path)] == [[1, 2], [3]]


def test_a_null_address_costs_only_its_own_tensor(tmp_path: Path) -> None:
    path = write_record(
        tmp_path / "x",
        "op",
        [torch.tensor([1.0]), GeValue(torch.tensor([2.0, 3.0]), null=True)],
        [torch.tensor([4.0])],
    )
    null = TensorRef(path, "inputs/1")
    assert (null.header().payload, null.header().shape) == ("description", (2,))
    assert read_record(path).inputs[1].address_null
    with pytest.raises(NoPayload, match="no memory on the device"):
        null.open()
    assert TensorRef(path, "outputs/0").open().tolist() == [4]


def test_values_of_null_addresses_that_are_there_are_read(tmp_path: Path) -> None:
    tensors = [described(1, (1,), 4), described(1, (1,), 4, address=0), described(1, (1,), 4)]
    payload = np.array([1, 2, 3], np.float32).tobytes()
    path = made(tmp_path / "x", tensors, payload)
    assert [TensorRef(path, f"outputs/{i}").open().item() for i in range(3)] == [1, 2, 3]
    unaddressed = made(tmp_path / "y", [replace(one, address=0) for one in tensors], payload[:8])
    assert TensorRef(unaddressed, "outputs/1").open().item() == 2


def test_size_0_means_that_there_are_no_values(tmp_path: Path) -> None:
    path = made(tmp_path / "x", [described(1, (2,), 0), described(1, (1,), 4)], bytes(4))
    with pytest.raises(NoPayload, match="has size 0"):
        TensorRef(path, "outputs/0").open()
    assert TensorRef(path, "outputs/1").open().tolist() == [0]


def test_of_a_cut_file_the_tensors_that_are_whole_are_read(tmp_path: Path) -> None:
    path = Path(write_record(tmp_path / "x", "op", [torch.ones(3), torch.ones(4)], [torch.ones(5)]))
    path.write_bytes(path.read_bytes()[:-21])
    assert TensorRef(str(path), "inputs/0").open().tolist() == [1, 1, 1]
    for member in ("inputs/1", "outputs/0"):
        with pytest.raises(FormatError, match=r"is truncated: needs \d+ bytes at offset \d+"):
            TensorRef(str(path), member).open()


def test_bytes_that_nobody_declared_make_the_values_doubtful(tmp_path: Path) -> None:
    path = made(tmp_path / "x", [described(1, (1,), 4)], bytes(5))
    with pytest.raises(FormatError, match="1 bytes more than its header declares"):
        TensorRef(path).open()


def test_a_size_too_small_for_the_shape_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "x", [described(1, (3,), 8), described(7, (1,), 4)], bytes(12))
    with pytest.raises(FormatError, match=r"declares 8 bytes, but float32 \[3\] takes 12"):
        TensorRef(path, "outputs/0").header()
    assert TensorRef(path, "outputs/1").open().tolist() == [0]


def test_a_shape_that_no_tensor_has_costs_only_its_own_tensor(tmp_path: Path) -> None:
    path = made(tmp_path / "x", [described(1, (2**64 - 1, 3), 8), described(7, (1,), 4)], bytes(12))
    with pytest.raises(FormatError, match="larger than any file"):
        TensorRef(path, "outputs/0").header()
    assert TensorRef(path, "outputs/1").open().tolist() == [0]


@pytest.mark.parametrize(
    "member", ["outputs/2", "outputs/", "output/0", "inputs/0", "outputs/-1", "outputs/²", ""]
)
def test_a_member_that_is_not_there_lists_those_that_are(tmp_path: Path, member: str) -> None:
    path = made(tmp_path / "x", [described(1, (1,), 4)] * 2, bytes(8))
    with pytest.raises(FormatError, match="its tensors: outputs/0, outputs/1"):
        TensorRef(path, member).header()


def test_the_tensors_of_a_record_are_named_once_for_all_who_ask(tmp_path: Path) -> None:
    """A damaged record may hold thousands of tensors, and each is asked for its header."""
    path = write_record(tmp_path / "x", "op", [torch.tensor([1])], [torch.tensor([2])])
    named = read_record(path).tensors
    assert list(named) == ["inputs/0", "outputs/0"]
    assert read_record(path).tensors is named


def test_a_record_without_tensors_has_none(tmp_path: Path) -> None:
    path = write_record(tmp_path / "x", "op")
    assert members(path) == ()
    with pytest.raises(FormatError, match=r"holds 0 tensors, name one; its tensors: \(none\)"):
        TensorRef(path).header()


RECORD_LAYOUTS = [
    ("fractal_nz", (5,), torch.float16, 16),
    ("fractal_nz", (17, 33), torch.float16, 16),
    ("fractal_nz", (2, 17, 33), torch.int8, 32),
    ("fractal_nz", (2, 2, 17, 33), torch.float32, 16),
    ("nc1hwc0", (2, 20, 3, 5), torch.float16, 16),
    ("nc1hwc0_c04", (2, 3, 3, 5), torch.float16, 4),
    ("ndc1hwc0", (2, 20, 2, 3, 5), torch.bfloat16, 16),
    ("fractal_z", (18, 20, 3, 2), torch.int8, 32),
    ("fractal_z_3d", (18, 20, 2, 3, 2), torch.float16, 16),
    ("nchw", (2, 3, 4, 5), torch.float32, 0),
]


@pytest.mark.parametrize(("layout", "shape", "dtype", "c0"), RECORD_LAYOUTS)
def test_layouts_of_the_device_open_as_the_logical_tensor(
    tmp_path: Path, layout: str, shape: tuple[int, ...], dtype: torch.dtype, c0: int
) -> None:
    tensor = torch.randint(-99, 99, shape).to(dtype)
    path = write_record(tmp_path / "x", "op", [tensor], [GeValue(tensor, layout)])
    described = read_record(path).outputs[0]
    assert (described.layout, described.original_shape) == (layout, shape)
    assert not c0 or described.shape[-1] == c0
    ref = TensorRef(path, "outputs/0")
    assert torch.equal(ref.open(), tensor)
    assert (ref.header().shape, ref.header().layout) == (shape, "nd" if c0 else layout)


def test_packed_types_have_tiles_too(tmp_path: Path) -> None:
    tensor = torch.randint(-8, 8, (17, 70), dtype=torch.int8)
    path = write_record(tmp_path / "x", "op", [], [GeValue(tensor, "fractal_nz", dtype="int4")])
    assert read_record(path).outputs[0].shape == (2, 2, 16, 64)
    assert torch.equal(TensorRef(path).open(), tensor)


def test_several_groups_stay_in_the_layout_and_say_so(tmp_path: Path) -> None:
    tiles = torch.randn(9, 2, 16, 16)
    value = GeValue(tiles, "fractal_z", stored=True, shape=(32, 8, 3, 3), sub_format=2)
    path = write_record(tmp_path / "x", "op", [], [value])
    header = TensorRef(path).header()
    assert (header.shape, header.layout) == ((9, 2, 16, 16), "fractal_z")
    assert rule_of(read_record(path).outputs[0]) is None
    assert torch.equal(TensorRef(path).open(), tiles)


def test_without_a_logical_shape_the_stored_one_stays(tmp_path: Path) -> None:
    tensor = GeTensor(by_ge_code(2), "fractal_nz", (1, 1, 16, 16), None, 512, 1)
    ref = TensorRef(made(tmp_path / "x", [tensor], bytes(512)))
    assert (ref.header().shape, ref.header().layout) == ((1, 1, 16, 16), "fractal_nz")
    assert ref.open().shape == (1, 1, 16, 16)


def test_the_layout_before_fusion_decides_where_sizes_do_not(tmp_path: Path) -> None:
    tensor = torch.arange(4096.0).reshape(1, 16, 16, 16)
    origin = OriginalOp("conv", 0, "nhwc")
    value = GeValue(tensor, "nc1hwc0", channels="nhwc", original_op=origin)
    path = write_record(tmp_path / "x", "op", [], [value])
    assert torch.equal(TensorRef(path).open(), tensor)


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from(torch_dtypes(*TORCH.values())),
    st.integers(0, 70),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_what_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    shape: list[int],
    dtype: torch.dtype,
    padding: int,
    null: bool,
    dynamic: bool,
) -> None:
    nbytes = math.prod(shape) * dtype.itemsize
    bits = torch.arange(nbytes, dtype=torch.uint8) % (2 if dtype == torch.bool else 251)
    tensor = bits.view(dtype).reshape(shape)
    first = GeValue(torch.ones(3), null=null, padding=padding, dynamic=dynamic)
    value = GeValue(tensor, padding=padding, dynamic=dynamic)
    path = write_record(tmp_path_factory.getbasetemp() / "ge", "a/b.c", [first], [value, tensor])
    assert read_record(path).op_name == "a/b.c"
    assert (read_record(path).outputs[0].address_offset == DYNAMIC) == dynamic
    for index in range(2):
        found = TensorRef(path, f"outputs/{index}").open()
        assert (found.dtype, found.shape) == (dtype, tensor.shape)
        assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_large_values_are_mapped_and_only_the_header_is_read(tmp_path: Path) -> None:
    count = 3 << 30
    path = Path(made(tmp_path / "x", [described(4, (count,), count), described(4, (2,), 2)]))
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + count + 2)
        file.seek(-3, os.SEEK_END)
        file.write(b"\x05\x06\x07")
    first, second = (TensorRef(str(path), f"outputs/{i}") for i in range(2))
    assert first.header().nbytes == count
    assert first.open()[-1] == 5
    assert second.open().tolist() == [6, 7]


def test_a_nano_device_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes((60).to_bytes(8, "little") + b"\x5a" * 4 + bytes(60))
    with pytest.raises(CannotDecode, match=r"record of a nano device \(TLV instead of protobuf\)"):
        TensorRef(str(path)).header()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a GE record"),
        (b"\x04\0\0\0\0\0\0", "is not a GE record"),
        (b"\0" * 20, "is not a GE record"),
        (b"\xff" * 20, "is not a GE record"),
        (
            (100).to_bytes(8, "little") + b"\x0a\x03" + bytes(20),
            r"is truncated: declares a header of 100 bytes, 22 follow; was the dump interrupted\?",
        ),
        ((4).to_bytes(8, "little") + b"\x0a\x09ab", "its header is not a valid DumpData message: byte"),
    ],
)
def test_what_is_no_record_says_so(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=reason):
        read_record(path)


def test_a_header_longer_than_any_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with open(path, "wb") as file:
        file.write((1 << 30).to_bytes(8, "little") + b"\x0a\x03")
        file.truncate((1 << 30) + 8)
    with pytest.raises(FormatError, match="more than the 4194304 allowed"):
        read_record(path)


def test_a_header_longer_than_one_read_is_read(tmp_path: Path) -> None:
    path = write_record(tmp_path / "x", "op", [], [torch.ones(1)], attrs=[("json", "x" * 9000)])
    assert TensorRef(path).open().tolist() == [1]


def test_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = write_record(tmp_path / "x", "op", [], [torch.ones(1)])
    assert TensorRef(path).open().shape == (1,)
    write_record(tmp_path / "x", "op", [], [torch.ones(2)])
    assert TensorRef(path).open().shape == (2,)


def test_a_name_too_long_becomes_its_hash_and_a_line_in_mapping_csv(tmp_path: Path) -> None:
    names = [f"Relu.{'fused_' * 50}{i}.1.2.1706596912161941" for i in range(2)]
    for name in names:
        path = Path(write_record(tmp_path / "0" / name, "op", [], [torch.ones(1)]))
        assert path.name == hashed_name(name)
        assert TensorRef(str(path)).open().tolist() == [1]
    lines = (tmp_path / "0" / "mapping.csv").read_text().splitlines()
    assert lines == [f"{hashed_name(name)},{name}" for name in names]


def test_the_hash_is_that_of_libstdcpp() -> None:
    # Printed by std::hash<std::string>{}(name) of g++ 12 on x86-64.
    assert hashed_name("a") == "4993892634952068459"
    assert hashed_name("12345678") == "10113836418918046885"
    assert hashed_name("Add.Add_2.1.2.3") == "1397262294857687898"


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AccError, match="cannot be written"):
        write_record(tmp_path / "file" / "x", "op")
    with pytest.raises(AccError, match="cannot be written"):
        write_record(tmp_path / "file" / ("x" * 300), "op")
    with pytest.raises(CannotDecode, match="has no code in GE records"):
        write_record(tmp_path / "x", "op", [torch.ones(1).to(torch_dtype("float8_e4m3fnuz"))])
    with pytest.raises(FormatError, match="cannot be stored as fractal_zn_lstm"):
        write_record(tmp_path / "x", "op", [GeValue(torch.ones(4, 4), "fractal_zn_lstm")])


def test_the_time_is_now_where_none_is_given(tmp_path: Path) -> None:
    path = write_record(tmp_path / "x", "op")
    assert abs(read_record(path).dump_time / 1e6 - os.path.getmtime(path)) < 60


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no conformance data at {DATA}")
def test_records_that_canns_parser_took_are_read_and_written_alike(tmp_path: Path) -> None:
    paths = [path for path in DATA.rglob("*") if path.is_file() and path.suffix[1:].isdigit()]
    assert len(paths) == 38
    for path in paths:
        record = read_record(path)
        assert record.end == record.size
        values = {name: TensorRef(str(path), name).open() for name in members(str(path))}
        again = write_record(
            tmp_path / "x",
            record.op_name,
            [value for name, value in values.items() if name.startswith("inputs")],
            [value for name, value in values.items() if name.startswith("outputs")],
            dump_time=record.dump_time,
        )
        plain = [replace(one, address=0, place=None) for one in (*record.inputs, *record.outputs)]
        written = read_record(again)
        assert [replace(one, address=0, place=None) for one in (*written.inputs, *written.outputs)] == plain
        assert Path(again).read_bytes()[written.start :] == path.read_bytes()[record.start :]


# ge_codes: the numbers and names of GE records, in terms of the one table of types.


@pytest.mark.parametrize("code", range(43))
def test_every_code_has_a_type_whose_code_means_the_same(code: int) -> None:
    dtype = by_ge_code(code)
    assert "(" not in dtype.name
    assert by_ge_code(ge_code(dtype)) == dtype


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("DT_FLOAT", "float32"),
        ("bf16", "bfloat16"),
        (" DT_QINT8 ", "int8"),
        ("FLOAT8_E4M3FN", "float8_e4m3fn"),
        ("DT_DOUBLE", "float64"),
        ("DT_DUAL_SUB_UINT8", "uint8"),
        ("DT_COMPLEX32", "complex32"),
        ("DT_HIFLOAT8", "hifloat8"),
        ("DT_FLOAT4_E1M2", "float4_e1m2"),
    ],
)
def test_names_are_known_with_and_without_their_prefix(name: str, dtype: str) -> None:
    assert by_ge_name(name) is by_name(dtype)


def test_what_ge_has_not_is_named_so() -> None:
    assert by_ge_code(99).name == "undefined(99)"
    assert by_ge_name("DT_NEW").name == "new"
    assert by_ge_name("").name == "undefined"
    assert by_ge_name("UNKNOW").name == "unknow"
    with pytest.raises(CannotDecode, match="no code in GE records"):
        ge_code(by_name("float8_e5m2fnuz"))


def test_layouts_answer_each_other_and_agree_with_atb() -> None:
    for code in (*range(55), 255):
        assert ge_layout_code(ge_layout_name(code)) == code
    for code, name in LAYOUTS.items():
        assert ge_layout_name(code) == name
    assert ge_layout_name(200) == "undefined(200)"
    assert ge_layout_name(0x10000004) == "fractal_z"
    assert ge_layout_code("no such layout") == -1
    assert ge_layout_code(" FRACTAL_NZ ") == 29


# packed: types of fewer than eight bits, and hifloat8, come and go without loss.


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
