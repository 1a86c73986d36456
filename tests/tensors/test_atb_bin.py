"""atb_bin: the header grammar of every era, read; the probe's bytes, written."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import CannotDecode, FormatError, NoPayload
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.atb_bin import (
    alias_target,
    execution_directory,
    from_attributes,
    located,
    number,
    text_of,
)
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
    for index, header in enumerate((b"", b"$Object.Count=0\n", b"$Object.Count=1\n$Object.data=0,0\n")):
        empty = reading(path.with_name(f"{index}.bin"), header + b"dtype=0\ndims=0,64\n$End=1\n")
        assert empty.open().shape == (0, 64)


def test_of_appended_records_the_last_complete_one_counts(path: Path) -> None:
    record = HEADER + b"$Object.data=0,16\n$End=1\n"
    newer = (SQUARE + 1).numpy().tobytes()
    assert torch.equal(reading(path, record + PAYLOAD + record + newer).open(), SQUARE + 1)
    for index, cut in enumerate((b"$", b"$Version=1.0\n$Obj", record, record + PAYLOAD[:-1])):
        ref = reading(path.with_name(f"cut{index}.bin"), record + newer + cut)
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


# atb_links: aliases, and links of dumps that were moved, lead to values inside the dump only.


VALUES = torch.tensor([[1.0, 2.0]])


@pytest.fixture
def execution(tmp_path: Path) -> Path:
    """An execution directory of rank 0, step 0, with one stored output of node 1_0."""
    directory = tmp_path / "dump" / "tensors" / "0_77" / "0"
    stored = directory / "1_Layer" / "0_Attention" / "after"
    stored.mkdir(parents=True)
    atb_bin.write(stored / "outtensor0.bin", VALUES)
    (directory / "1_Layer" / "1_Add" / "before").mkdir(parents=True)
    return directory


def alias(execution: Path, target: str, name: str = "intensor0.bin", shape: tuple[int, ...] = (1, 2)) -> Path:
    path = execution / "1_Layer" / "1_Add" / "before" / name
    atb_bin.write_description(path, torch.float32, shape, extra={"data": target})
    return path


@pytest.mark.parametrize("given", [True, False])
def test_an_alias_leads_to_the_node_with_these_ids(execution: Path, given: bool) -> None:
    ref = TensorRef(str(alias(execution, "1_0_outtensor0.bin")), root=str(execution) if given else "")
    assert (ref.header().payload, ref.header().alias) == ("alias", "1_0_outtensor0.bin")
    assert torch.equal(ref.open(), VALUES)
    assert atb_bin.resolve(ref, ref.header())[0].path.endswith("0_Attention/after/outtensor0.bin")


def test_an_alias_finds_named_files_and_inputs(execution: Path) -> None:
    before = execution / "1_Layer" / "0_Attention" / "before"
    before.mkdir()
    atb_bin.write(before / "intensor3_key.bin", VALUES + 1)
    assert torch.equal(TensorRef(str(alias(execution, "1_0_intensor3_key.bin"))).open(), VALUES + 1)


def test_an_alias_may_name_a_file_beside_it(execution: Path) -> None:
    path = alias(execution, "intensor7.bin")
    atb_bin.write(path.with_name("intensor7.bin"), VALUES + 7)
    assert torch.equal(TensorRef(str(path)).open(), VALUES + 7)


def test_ids_are_numbers_not_prefixes_of_names(execution: Path) -> None:
    other = execution / "1_Layer" / "00_Trap" / "after"
    other.mkdir(parents=True)
    (other / "outtensor0.bin").write_bytes(b"trap")
    (execution / "10_Layer").mkdir()
    assert torch.equal(TensorRef(str(alias(execution, "1_0_outtensor0.bin"))).open(), VALUES)


def test_an_alias_of_an_alias_is_followed_and_keeps_its_own_shape(execution: Path) -> None:
    alias(execution, "1_0_outtensor0.bin", "intensor1.bin")
    path = alias(execution, "intensor1.bin", shape=(2, 1))
    assert torch.equal(TensorRef(str(path)).open(), VALUES.reshape(2, 1))


def test_an_alias_that_disagrees_with_its_target_is_an_error(execution: Path) -> None:
    with pytest.raises(FormatError, match=r"declares float32 \[3\] but is an alias"):
        TensorRef(str(alias(execution, "1_0_outtensor0.bin", shape=(3,)))).open()


def test_an_alias_of_itself_says_why_it_has_no_values(execution: Path) -> None:
    with pytest.raises(NoPayload, match="alias of itself"):
        TensorRef(str(alias(execution, "intensor0.bin"))).open()


@pytest.mark.parametrize(
    "target",
    [
        "1_5_outtensor0.bin",
        "9_outtensor0.bin",
        "1_0_outtensor1.bin",
        "1_0_intensor9.bin",
        "gone.bin",
        "..",
        "",
        "../x.bin",
    ],
)
def test_an_alias_of_nothing_in_the_dump_has_no_values(execution: Path, target: str) -> None:
    with pytest.raises(NoPayload, match="not in its execution directory"):
        TensorRef(str(alias(execution, target))).open()


def test_aliases_in_a_circle_end(execution: Path) -> None:
    alias(execution, "intensor0.bin", "intensor1.bin")
    with pytest.raises(FormatError, match="is a loop"):
        TensorRef(str(alias(execution, "intensor1.bin"))).open()


def test_an_alias_cannot_name_a_file_elsewhere(execution: Path) -> None:
    secret = execution / "secret.bin"
    atb_bin.write(secret, VALUES)
    path = str(alias(execution, "x"))
    for name in ("../../../secret.bin", str(secret), "1_0_outtensor0.bin/../../secret.bin", "a\\b.bin"):
        assert alias_target(name, path, "") is None


def test_the_execution_directory_is_seen_in_the_path() -> None:
    path = "/d/tensors/0_7/3/1_Layer/0_Op/0_Kernel/before/intensor0.bin"
    assert execution_directory(path, "") == "/d/tensors/0_7/3"
    assert execution_directory(path, "/elsewhere") == "/elsewhere"


def link(execution: Path, target: str) -> str:
    path = execution / "1_Layer" / "1_Add" / "before" / "intensor0.bin"
    path.symlink_to(target)
    return str(path)


STORED = "1_Layer/0_Attention/after/outtensor0.bin"


@pytest.mark.parametrize(
    "target",
    [
        f"/data/run/tensors/x/msit_dump_1/tensors/0_77/0/{STORED}",
        f"/data/run/atb_dump_data/data/0_77/0/{STORED}",
        f"out/msit_dump_1/tensors/0_77/0/{STORED}",
        f"/other/tensors/5_123/0/{STORED}",
    ],
    ids=["absolute", "2026 layout", "relative to nowhere", "renamed process"],
)
def test_a_link_broken_by_a_move_is_found_again_below_the_dump(execution: Path, target: str) -> None:
    assert torch.equal(TensorRef(link(execution, target), root=str(execution)).open(), VALUES)


def test_a_broken_link_into_another_step_finds_that_step(execution: Path) -> None:
    other = execution.parent / "1" / "1_Layer" / "0_Attention" / "after"
    other.mkdir(parents=True)
    atb_bin.write(other / "outtensor0.bin", VALUES + 1)
    path = link(execution, f"/gone/tensors/0_77/1/{STORED}")
    assert torch.equal(TensorRef(path, root=str(execution)).open(), VALUES + 1)


def test_a_link_that_works_is_followed(execution: Path) -> None:
    assert torch.equal(
        TensorRef(link(execution, str(execution / STORED)), root=str(execution)).open(), VALUES
    )


def test_an_execution_directory_alone_finds_its_own_tensors(execution: Path, tmp_path: Path) -> None:
    alone = tmp_path / "taken" / "0"
    alone.parent.mkdir()
    execution.rename(alone)
    assert torch.equal(
        TensorRef(link(alone, f"/gone/tensors/3_9/0/{STORED}"), root=str(alone)).open(), VALUES
    )


@pytest.mark.parametrize(
    "target",
    [
        "/etc/no such file",
        "/gone/tensors/0_77/4/1_Layer/0_Attention/after/outtensor0.bin",
        "/gone/tensors/0_77/0/../../../../outside.bin",
    ],
)
def test_a_link_to_nowhere_is_an_error_that_names_its_target(execution: Path, target: str) -> None:
    atb_bin.write(execution.parents[3] / "outside.bin", VALUES)
    with pytest.raises(FormatError, match="copy the whole dump"):
        TensorRef(link(execution, target), root=str(execution)).open()


def test_a_broken_link_is_not_repaired_through_a_way_out_of_the_dump(execution: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "after"
    outside.mkdir(parents=True)
    atb_bin.write(outside / "outtensor0.bin", VALUES)
    os.symlink(tmp_path / "outside", execution / "2_Out")
    path = link(execution, "/gone/tensors/0_77/0/2_Out/after/outtensor0.bin")
    with pytest.raises(FormatError, match="does not exist"):
        located(path, str(execution))


# atb_statistics: the probe's text, to the byte, and back.


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
