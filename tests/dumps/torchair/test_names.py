"""File names of TorchAir dumps, read back to what their writers put in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.dumps.torchair_files import (
    FxFileName,
    GeFileName,
    GraphFileName,
    is_torchair,
    parse_fx_name,
    parse_ge_name,
    parse_graph_name,
    read_mapping,
    sanitized,
)
from acc_pytest.errors import FormatError

TIME = 1706596912161941
TS20 = 20261120202512059085
WORD = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
NUMBER = st.integers(0, 10**6)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (f"Add.Add_2.44.6.{TIME}", GeFileName("Add", "Add_2", TIME)),
        (f"Add.Add_2.44.{TIME}", GeFileName("Add", "Add_2", TIME)),
        (f"TransData.TransData_1.1.42.6.{TIME}", GeFileName("TransData", "TransData_1.1", TIME)),
        (f"MatMul.MatMul_1.44.6.{TIME}.4.1.3.0", GeFileName("MatMul", "MatMul_1", TIME, thread=3)),
        (f"Add.Add_2.44.6.{TIME}_min_max.npz", GeFileName("Add", "Add_2", TIME, form="info")),
        (f"Add.Add_2.44.6.{TIME}.csv", GeFileName("Add", "Add_2", TIME, form="statistics")),
        (f"Add.Add_2.44.6.{TIME}.txt", None),
        ("mapping.csv", None),
        ("Add_2", None),
    ],
)
def test_a_ge_name_is_read_from_the_right(name: str, known: GeFileName | None) -> None:
    assert parse_ge_name(name, {}) == known


def test_a_name_too_long_for_a_file_is_found_under_its_hash() -> None:
    long = f"AutomaticBufferFusionOp.{'Mul_1Add_1' * 30}.12.7.{TIME}"
    known = parse_ge_name("17263548172635481726", {"17263548172635481726": long})
    assert known == GeFileName("AutomaticBufferFusionOp", "Mul_1Add_1" * 30, TIME)
    info = parse_ge_name("17263548172635481726_min_max.npz", {"17263548172635481726": long})
    assert info is not None
    assert info.form == "info"
    assert parse_ge_name("17263548172635481726", {}) is None


@given(WORD, WORD, NUMBER, NUMBER, st.integers(10**15, 10**16 - 1))
def test_every_ge_name_comes_back(kind: str, op: str, task: int, stream: int, time: int) -> None:
    assert parse_ge_name(f"{kind}.{op}.{task}.{stream}.{time}", {}) == GeFileName(kind, op, time)


def test_an_fx_name_says_node_target_and_place() -> None:
    split = parse_fx_name(f"cat-aten.cat.default.INPUT.0.1.{TS20}.npy")
    assert split == FxFileName("cat", "aten.cat.default", "input", (0, 1), TS20)
    assert parse_fx_name(f"topk-aten.topk.default.OUTPUT.1.{TS20}.npy") == FxFileName(
        "topk", "aten.topk.default", "output", (1,), TS20
    )


def test_targets_of_symbolic_arithmetic_hold_spaces_and_brackets() -> None:
    known = parse_fx_name(f"mul_15-<built-in function mul>.INPUT.0.{TS20}.npy")
    assert known == FxFileName("mul_15", "<built-in function mul>", "input", (0,), TS20)


def test_keyword_arguments_have_names_for_numbers() -> None:
    known = parse_fx_name(f"full-aten.full.default.KWARG.dtype.{TS20}.npy")
    assert known is not None
    assert (known.kind, known.index) == ("input", ("dtype",))


def test_info_files_of_fx_are_told_apart() -> None:
    known = parse_fx_name(f"add-aten.add.Tensor.OUTPUT.0.{TS20}_min_max.npy")
    assert known is not None
    assert known.info
    assert parse_fx_name("weights.npy") is None


@given(WORD, WORD, NUMBER, st.none() | NUMBER, st.sampled_from(["INPUT", "OUTPUT"]))
def test_every_fx_name_comes_back(node: str, op: str, i: int, j: int | None, io: str) -> None:
    index = (i,) if j is None else (i, j)
    numbers = ".".join(map(str, index))
    known = parse_fx_name(f"{node}-aten.{op}.Tensor.{io}.{numbers}.{TS20}.npy")
    kind = "input" if io == "INPUT" else "output"
    assert known == FxFileName(node, f"aten.{op}.Tensor", kind, index, TS20)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (
            f"dynamo_original_graph_12_rank_3_pid_21111_ts_{TS20}.txt",
            GraphFileName("original", 12, 3, TS20),
        ),
        (f"dynamo_optimized_graph_1_rank_0_pid_7_ts_{TS20}.pbtxt", GraphFileName("optimized", 1, 0, TS20)),
        (f"dynamo_original_graph_{TS20}.txt", GraphFileName("original", None, None, TS20)),
        (f"dynamo_original_graph_1_rank_0_pid_7_ts_{TS20}.py", None),
        ("dynamo.txt", None),
    ],
)
def test_a_graph_text_says_which_graph_and_rank(name: str, known: GraphFileName | None) -> None:
    assert parse_graph_name(name) == known


def test_names_that_only_torchair_gives_are_known() -> None:
    assert is_torchair(f"Add.Add_2.44.6.{TIME}")
    assert is_torchair(f"add-aten.add.Tensor.OUTPUT.0.{TS20}.npy")
    assert is_torchair(f"dynamo_original_graph_1_rank_0_pid_7_ts_{TS20}.py")
    assert not any(map(is_torchair, ("model.npy", "outtensor0.bin", "README.md", "Add.Add_2")))
    assert not is_torchair("server.log.1.1706596912")


def test_names_are_compared_as_files_hold_them() -> None:
    assert sanitized(r"layer.0/attention\query key") == "layer_0_attention_query_key"


def test_mapping_csv_keeps_commas_and_its_last_word(tmp_path: Path) -> None:
    table = tmp_path / "mapping.csv"
    table.write_text("123,old\n123,Add.a,b.1.2.3\nno number,x\nalone\n")
    assert read_mapping(str(table)) == {"123": "Add.a,b.1.2.3"}
    table.write_bytes(b"7,\xc4\xa3")
    assert read_mapping(str(table)) == {"7": os.fsdecode(b"\xc4\xa3")}
    table.write_bytes(b"1," + b"x" * 200_000)
    with pytest.raises(FormatError, match=r"mapping\.csv: is not a readable list of long names"):
        read_mapping(str(table))
