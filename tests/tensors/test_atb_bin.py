"""atb_bin: the header grammar of every era, read; the probe's bytes, written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import CannotDecode, FormatError, NoPayload
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.dtypes import DTYPES
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.ref import TensorRef
from tests.newer import torch_dtype, torch_dtypes

SQUARE = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
HEADER = b"$Version=1.0\n$Object.Count=1\n$Object.Length=16\nformat=2\ndtype=0\ndims=2,2\n"
PAYLOAD = SQUARE.numpy().tobytes()
NAMES = [dtype.torch_name for dtype in DTYPES if dtype.atb_code is not None and dtype.torch_name]
WRITABLE = torch_dtypes(*NAMES)


def reading(path: Path, content: bytes) -> TensorRef:
    path.write_bytes(content)
    return TensorRef(str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outtensor0.bin"


def test_a_float_square_is_written_as_the_probe_writes_it(path: Path) -> None:
    atb_bin.write(path, SQUARE)
    assert path.read_bytes() == HEADER + b"$Object.data=0,16\n$End=1\n" + PAYLOAD
    assert path.stat().st_size == 114


def test_a_bfloat16_row_is_written_as_the_probe_writes_it(path: Path) -> None:
    atb_bin.write(path, torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16))
    lines = (
        "$Version=1.0|$Object.Count=1|$Object.Length=4|format=2|dtype=27|dims=1,2|$Object.data=0,4|$End=1|"
    )
    assert path.read_bytes() == lines.replace("|", "\n").encode() + bytes.fromhex("803f00c0")
    assert path.stat().st_size == 101


def test_a_description_and_statistics_are_written_as_the_probe_writes_them(path: Path) -> None:
    start = "$Version=1.0\n$Object.Count=0\n$Object.Length=0\nformat=2\ndtype=0\ndims=2,2\n"
    atb_bin.write_description(path, torch.float32, (2, 2))
    assert path.read_text() == start + "$End=1\n"
    atb_bin.write_statistics(path, SQUARE)
    assert path.read_text() == start + "max=4.000000\nmin=1.000000\nmean=2.500000\nl2norm=5.477226\n$End=1\n"


def test_an_alias_is_written_as_the_probe_writes_it(path: Path) -> None:
    atb_bin.write_description(path, torch.float32, (1, 2), extra={"data": "1_0_outtensor0.bin"})
    assert path.read_text() == (
        "$Version=1.0\n$Object.Count=0\n$Object.Length=0\nformat=2\ndtype=0\ndims=1,2\n"
        "data=1_0_outtensor0.bin\n$End=1\n"
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@given(st.sampled_from(WRITABLE), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 2**32))
def test_every_type_and_shape_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype, shape: list[int], seed: int
) -> None:
    tensor = torch.empty(shape, dtype=dtype)
    noise = torch.Generator().manual_seed(seed)
    top = 2 if dtype == torch.bool else 256
    raw = torch.randint(top, (tensor.numel() * dtype.itemsize,), dtype=torch.uint8, generator=noise)
    tensor.view(-1).view(torch.uint8).copy_(raw)
    path = tmp_path_factory.getbasetemp() / "round trip.bin"
    atb_bin.write(path, tensor)
    opened = TensorRef(str(path)).open()
    assert (opened.dtype, opened.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(opened.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_writing_replaces_and_takes_strided_and_graph_tensors(path: Path) -> None:
    path.write_bytes(b"x" * 10_000)
    atb_bin.write(path, SQUARE.clone().requires_grad_().T, layout="fractal_nz")
    ref = TensorRef(str(path))
    assert ref.header().layout == "fractal_nz"
    assert torch.equal(ref.open(), SQUARE.T)


def test_a_type_without_a_code_cannot_be_written(path: Path) -> None:
    with pytest.raises(CannotDecode, match="no ATB code"):
        atb_bin.write(path, torch.zeros(2).to(torch_dtype("float8_e4m3fnuz")))


@pytest.mark.parametrize(
    "header",
    [
        HEADER + b"$Object.data=0,16\n$END=1\n",
        HEADER + b"$Object.data=0,16\nnote=a=b=c\n$End=1\n",
        HEADER + b"$End=1\n",
        b"dtype=0\ndims=2,2\n$End=1\n",
        b"format=2\ntype=0\ndims=2,2\n$End=1\n",
    ],
    ids=["first builds", "value with =", "no place", "minimal", "type instead of dtype"],
)
def test_header_variants_of_all_writers_are_read(path: Path, header: bytes) -> None:
    ref = reading(path, header + PAYLOAD)
    assert ref.header().offset == len(header)
    assert torch.equal(ref.open(), SQUARE)


def test_the_place_of_the_payload_is_honoured(path: Path) -> None:
    header = HEADER.replace(b"Length=16", b"Length=20") + b"$Object.data=4,16\n$End=1\n"
    assert torch.equal(reading(path, header + b"skip" + PAYLOAD).open(), SQUARE)


def test_empty_dims_are_a_scalar_and_a_zero_is_an_empty_tensor(path: Path) -> None:
    scalar = reading(path, b"dtype=9\ndims=\n$End=1\n" + (7).to_bytes(8, "little"))
    assert scalar.open().shape == ()
    assert scalar.open() == 7
    for number, header in enumerate((b"", b"$Object.Count=0\n", b"$Object.Count=1\n$Object.data=0,0\n")):
        empty = reading(path.with_name(f"{number}.bin"), header + b"dtype=0\ndims=0,64\n$End=1\n")
        assert empty.open().shape == (0, 64)


def test_of_appended_records_the_last_complete_one_counts(path: Path) -> None:
    record = HEADER + b"$Object.data=0,16\n$End=1\n"
    newer = (SQUARE + 1).numpy().tobytes()
    assert torch.equal(reading(path, record + PAYLOAD + record + newer).open(), SQUARE + 1)
    for number, cut in enumerate((b"$", b"$Version=1.0\n$Obj", record, record + PAYLOAD[:-1])):
        ref = reading(path.with_name(f"cut{number}.bin"), record + newer + cut)
        assert torch.equal(ref.open(), SQUARE + 1)


def test_a_description_may_be_followed_by_its_data(path: Path) -> None:
    description = b"$Version=1.0\n$Object.Count=0\n$Object.Length=0\nformat=2\ndtype=0\ndims=2,2\n$End=1\n"
    ref = reading(path, description + HEADER + b"$Object.data=0,16\n$End=1\n" + PAYLOAD)
    assert torch.equal(ref.open(), SQUARE)


def test_thousands_of_records_are_refused(path: Path) -> None:
    with pytest.raises(FormatError, match="more than 4096 records"):
        reading(path, b"$Version=1.0\ndtype=0\ndims=0\n$End=1\n" * 4098).header()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            HEADER + b"$Object.data=0,16\n$End=1\n" + PAYLOAD[:9],
            r"is truncated: .* 16 payload bytes .*, the file has 9;",
        ),
        (HEADER + b"$Object.data=0,16\n$End=1\n" + PAYLOAD + b"more", "4 bytes follow"),
        (HEADER + b"$Object.data=4,16\n$End=1\n" + PAYLOAD, "contradicts itself"),
        (HEADER + b"$Object.data=0\n$End=1\n", "not OFFSET,LENGTH"),
        (HEADER + b"$Object.data=0,x\n$End=1\n", "not a whole number"),
        (HEADER.replace(b"dims=2,2", b"dims=2,3") + b"$Object.data=0,16\n$End=1\n" + PAYLOAD, "takes 24"),
        (HEADER.replace(b"dims=2,2", b"dims=2,,2") + b"$End=1\n", "dims holds ''"),
        (HEADER.replace(b"dims=2,2", b"dims=-2,2") + b"$End=1\n", "dims holds '-2'"),
        (HEADER.replace(b"dims=2,2", b"dims=" + b"9" * 30) + b"$End=1\n", "not a whole number"),
        (HEADER.replace(b"dims=2,2", b"dims=" + b"9" * 18 + b",99") + b"$End=1\n", "larger than any file"),
        (HEADER.replace(b"dtype=0", b"dtype=zero") + b"$End=1\n", "dtype holds 'zero'"),
        (HEADER.replace(b"dtype=0\n", b"") + b"$End=1\n", "lacks dtype or dims"),
        (HEADER + b"no separator\n$End=1\n", "not NAME=VALUE"),
        (HEADER + b"\x00\x01=3\n$End=1\n", "not NAME=VALUE"),
        (HEADER, r"is truncated inside its header"),
        (b"", r"is truncated inside its header"),
        (b"PK\x03\x04 a torch file", "another format"),
        (b"$Version=" + b"x" * 70_000, r"no \$End line in its first 65536 bytes"),
    ],
)
def test_a_file_that_lies_or_is_cut_is_one_clear_error_naming_it(
    path: Path, content: bytes, reason: str
) -> None:
    ref = reading(path, content)
    with pytest.raises(FormatError, match=reason) as caught:
        ref.open()
    assert str(path) in str(caught.value)


def test_a_long_header_is_read_in_a_second_step(path: Path) -> None:
    header = HEADER + b"".join(b"extra%d=%s\n" % (i, b"v" * 50) for i in range(200)) + b"$End=1\n"
    assert torch.equal(reading(path, header + PAYLOAD).open(), SQUARE)


def test_a_description_has_shape_and_type_but_no_values(path: Path) -> None:
    atb_bin.write_description(path, torch.int8, (3,), layout="nchw")
    header = TensorRef(str(path)).header()
    assert (header.payload, header.shape, header.dtype.name, header.layout) == (
        "description",
        (3,),
        "int8",
        "nchw",
    )
    with pytest.raises(NoPayload, match="-sd"):
        TensorRef(str(path)).open()


def test_statistics_are_in_the_header(path: Path) -> None:
    atb_bin.write_statistics(path, SQUARE)
    header = TensorRef(str(path)).header()
    assert header.payload == "statistics"
    assert header.statistics == Statistics(4.0, 1.0, 2.5, 5.477226)
    with pytest.raises(NoPayload, match="statistics"):
        TensorRef(str(path)).open()


@pytest.mark.parametrize("code", [29, 30, 34, 38, 39, 40, 41, 13, 99])
def test_bytes_without_meaning_have_a_header_and_cannot_be_decoded(path: Path, code: int) -> None:
    ref = reading(path, f"dtype={code}\ndims=2,2\n$End=1\n".encode() + bytes(4))
    assert (ref.header().payload, ref.header().shape, ref.header().nbytes) == ("data", (2, 2), 4)
    with pytest.raises(CannotDecode, match=r"dtype"):
        ref.open()


def test_a_file_beyond_two_gibibytes_is_opened(path: Path) -> None:
    count = (1 << 30) + 1
    header = f"dtype=1\ndims={count}\n$End=1\n".encode()
    path.write_bytes(header)
    with open(path, "r+b") as file:
        file.truncate(len(header) + 2 * count)
    tensor = TensorRef(str(path)).open()
    assert (tensor.shape, float(tensor[-1])) == ((count,), 0.0)


def test_paths_may_hold_spaces_and_any_letters(tmp_path: Path) -> None:
    path = tmp_path / "a dump, größer 张量" / "out tensor.bin"
    path.parent.mkdir()
    atb_bin.write(path, SQUARE)
    assert torch.equal(TensorRef(str(path)).open(), SQUARE)
