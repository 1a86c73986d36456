"""ge_message and wire: what protobuf's own library reads and writes, ours does too."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import FormatError, NoPayload
from acc_pytest.tensors.dtypes import by_name
from acc_pytest.tensors.ge_file import GE_COLUMNS
from acc_pytest.tensors.ge_message import GeRecord, GeTensor, OriginalOp, by_ge_code, ge_layout_name
from acc_pytest.tensors.ge_record import parse
from acc_pytest.tensors.header import Statistics, TensorHeader
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.statistics import statistics_in
from acc_pytest.tensors.wire import WireError, bytes_field, encoded, fields, number_field, signed, varint
from tests.tensors.ge_statistics_file import write_statistics_csv
from tests.tensors.ge_writer import DYNAMIC, serialise

U64 = st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# Codes of which several mean one type would not come back.
TYPES = st.sampled_from([code for code in range(43) if code not in (14, 15, 18, 19, 20, 21, 22, 23)])
LAYOUTS = st.sampled_from([0, 1, 2, 3, 4, 12, 16, 27, 29, 32, 33, 50, 54])
SHAPES = st.lists(st.one_of(st.integers(0, 300), U64), max_size=6).map(tuple)
ORIGINS = st.builds(
    OriginalOp,
    NAMES,
    st.one_of(st.none(), st.integers(0, 2**32 - 2)),
    LAYOUTS.map(ge_layout_name),
)


def tensors(output: bool) -> st.SearchStrategy[GeTensor]:
    return st.builds(
        GeTensor,
        TYPES.map(by_ge_code),
        LAYOUTS.map(ge_layout_name),
        SHAPES,
        st.one_of(st.none(), SHAPES),
        U64,
        U64,
        st.integers(0, 2**16 - 1),
        U64,
        st.one_of(st.none(), ORIGINS) if output else st.none(),
    )


RECORDS = st.builds(
    GeRecord,
    NAMES,
    U64,
    st.lists(tensors(False), max_size=3).map(tuple),
    st.lists(tensors(True), max_size=3).map(tuple),
    st.lists(U64, max_size=2).map(tuple),
    st.lists(U64, max_size=2).map(tuple),
)


@given(RECORDS)
@settings(max_examples=150, deadline=None)
def test_what_protobuf_writes_is_read(record: GeRecord) -> None:
    assert parse(serialise(record, attrs=[("a", "b")])) == record


def test_fields_nobody_knows_are_skipped() -> None:
    record = GeRecord("Add_1", 7, (), (GeTensor(by_ge_code(1), "nd", (2,), (2,), 8, 4096),))
    known = serialise(record)
    unknown = number_field(77, 5) + bytes_field(78, b"abc") + encoded(79 << 3 | 1) + bytes(8)
    unknown += encoded(80 << 3 | 5) + bytes(4)
    assert parse(unknown + known + unknown) == record


def test_dimensions_may_be_unpacked_and_numbers_fixed() -> None:
    shape = number_field(1, 3) + number_field(1, 4)
    output = number_field(1, 1) + number_field(2, 2) + bytes_field(3, shape)
    fixed = encoded(6 << 3 | 1) + (48).to_bytes(8, "little")
    (tensor,) = parse(bytes_field(3, output + fixed)).outputs
    assert (tensor.shape, tensor.nbytes, tensor.original_shape) == ((3, 4), 48, None)


def test_a_scalar_has_an_empty_shape_and_a_missing_shape_is_none() -> None:
    described = GeTensor(by_ge_code(1), "nchw", (), (), 4, 1)
    assert bytes_field(3, b"") in serialise(GeRecord("", 0, (), (described,)))
    assert parse(serialise(GeRecord("", 0, (described,), ()))).inputs == (described,)


@pytest.mark.parametrize(("code", "groups", "layout"), [(0x403, 4, "nc1hwc0"), (0x10000004, 0, "fractal_z")])
def test_a_layout_that_was_not_split_still_says_layout_and_groups(
    code: int, groups: int, layout: str
) -> None:
    (tensor,) = parse(bytes_field(4, number_field(2, code))).inputs
    assert (tensor.layout, tensor.sub_format) == (layout, groups)


def test_the_executor_of_dynamic_shapes_shows() -> None:
    (tensor,) = parse(bytes_field(4, number_field(9, DYNAMIC))).inputs
    assert tensor.address_offset == DYNAMIC
    assert tensor.address_null


def test_an_unknown_output_index_is_none() -> None:
    origin = number_field(2, 2**32 - 1)
    (tensor,) = parse(bytes_field(3, bytes_field(4, origin))).outputs
    assert tensor.original_op == OriginalOp("", None, "nchw")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a", "ends inside a number"),
        (b"\x0a\x05ab", "3 bytes beyond"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "more than ten bytes"),
        (b"\x09\x00", "ends inside a fixed number"),
        (b"\x0d\x00", "ends inside a fixed number"),
        (b"\x0b", "wire type 3"),
        (b"\x00\x00", "field of number 0"),
        (bytes_field(3, bytes_field(3, bytes_field(1, bytes(65)))), "more than 64 dimensions"),
        (bytes_field(3, bytes_field(3, number_field(1, 9) * 65)), "more than 64 dimensions"),
        (bytes_field(3, bytes_field(6, b"")), "is not a number"),
        (bytes_field(4, bytes_field(9, b"")), "is not a number"),
        (number_field(20, 1) * 100_001, "more than 100000 fields"),
    ],
)
def test_bytes_that_are_no_message_say_why(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        parse(data)


def test_a_field_of_bytes_where_a_number_belongs_means_nothing() -> None:
    data = bytes_field(2, b"x") + bytes_field(5, bytes_field(3, b"x")) + bytes_field(7, number_field(1, 4))
    assert parse(data) == GeRecord("", 0, (), (), (0,))


@given(U64)
def test_a_number_comes_back(value: int) -> None:
    text = encoded(value)
    assert varint(text, 0, len(text)) == (value, len(text))
    field = number_field(5, value)
    end = len(field)
    assert list(fields(field, 0, end)) == ([(5, value, (end, end))] if value else [])


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_negative_number_is_its_twos_complement(value: int) -> None:
    assert signed(varint(encoded(value), 0, 10)[0] if value >= 0 else value & 2**64 - 1) == value


# ge_statistics: both headers of GE's statistics files, and the same numbers through a reference.


HOST = f"{GE_COLUMNS},Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,Positive Inf Count"
NAME = "Add.Add_2.44.6.1706596912161941.csv"


def test_a_file_of_the_host_is_read(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(
        f"{HOST}\nInput,0,48,DT_FLOAT16,FRACTAL_NZ,2x3x4,3.5,-1,0.25,24,0,1,2\n"
        "Input,1,4,DT_INT4,ND,-,,,,,,,\nOutput,0,8,DT_BF16,UNKNOW,4,inf,nan,1,4,0,0,1\n"
    )
    rows = statistics_in(str(path))
    assert list(rows) == ["inputs/0", "inputs/1", "outputs/0"]
    first, second, third = rows.values()
    assert first == TensorHeader(
        by_name("float16"),
        (2, 3, 4),
        "statistics",
        layout="fractal_nz",
        statistics=Statistics(3.5, -1, 0.25, None),
    )
    assert (second.shape, second.statistics) == ((), Statistics(None, None, None, None))
    assert third.layout == "undefined(UNKNOW)"
    assert third.statistics is not None
    assert third.statistics.max == math.inf
    ref = TensorRef(str(path), "inputs/0")
    assert ref.header() == first
    with pytest.raises(NoPayload, match="holds only the statistics"):
        ref.open()


def test_a_file_of_a_device_holds_what_was_chosen(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(f"{GE_COLUMNS},Count,Min Value,l2norm\nOutput,0,12,DT_FLOAT,ND,3,3,NA,2.5\n")
    (row,) = statistics_in(str(path)).values()
    assert row.statistics == Statistics(None, None, None, 2.5)


@pytest.mark.parametrize("items", [None, ["l2norm", "Min Value", "Max Value", "Avg Value"]])
def test_what_is_written_is_read(tmp_path: Path, items: list[str] | None) -> None:
    path = tmp_path / NAME
    values = torch.tensor([[1.0, -2.5], [3.0, 0.5]])
    write_statistics_csv(path, [values, torch.ones(2, dtype=torch.complex64)], [torch.tensor(3)], items=items)
    first, second, third = statistics_in(str(path)).values()
    norm = None if items is None else float(values.double().norm())
    assert first.statistics == Statistics(3, -2.5, 0.5, norm)
    assert (first.shape, first.dtype.name) == ((2, 2), "float32")
    assert path.read_text().splitlines()[1].startswith("Input,0,16,DT_FLOAT,ND,2x2,")
    assert second.statistics == Statistics(None, None, None, None)
    assert (third.shape, third.dtype.name) == ((), "int64")
    assert third.statistics == Statistics(3, 3, 3, None if items is None else 3)
    assert path.read_text().startswith(HOST if items is None else f"{GE_COLUMNS},Count,Max Value,Min Value")


def test_nan_and_infinities_are_counted(tmp_path: Path) -> None:
    path = tmp_path / NAME
    write_statistics_csv(path, [], [torch.tensor([math.nan, math.inf, -math.inf, -math.inf])])
    assert path.read_text().splitlines()[1].endswith(",4,1,2,1")
    write_statistics_csv(path, [], [torch.tensor([math.nan])])
    (row,) = statistics_in(str(path)).values()
    assert row.statistics is not None
    assert row.statistics.max is not None
    assert math.isnan(row.statistics.max)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Input,0,4,DT_FLOAT,ND,1,1,1,1,1,0,0", "has 12 columns instead of 13"),
        ("Inout,0,4,DT_FLOAT,ND,1,1,1,1,1,0,0,0", r"describes neither an input nor an"),
        ("Input,x,4,DT_FLOAT,ND,1,1,1,1,1,0,0,0", r"describes neither an input nor an"),
        ("Input,0,4,DT_FLOAT,ND,1xx2,1,1,1,1,0,0,0", "describes neither an input nor an output"),
        ("Input,0,4,DT_FLOAT,ND,9999999999999999999x9,1,1,1,1,0,0,0", "larger than any file"),
        ("Input,0," + "9" * 200_000, r"is not a valid CSV: field larger than"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / NAME
    path.write_text(f"{HOST}\n\n{line}\n")
    with pytest.raises(FormatError, match=reason):
        statistics_in(str(path))


@pytest.mark.parametrize("content", ["", "a,b\n", f"x{HOST}\n", f"{GE_COLUMNS}s,Count\n"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / NAME
    path.write_text(content)
    with pytest.raises(FormatError, match=r"is not a statistics file( of GE)?: its first"):
        statistics_in(str(path))


def test_a_file_larger_than_any_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with open(path, "wb") as file:
        file.truncate((1 << 28) + 1)
    with pytest.raises(FormatError, match="more than the 268435456 allowed"):
        statistics_in(str(path))
