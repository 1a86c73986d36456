"""What benchmarks/fuzz.py has found, a file each: every one ends in one sentence, in a moment."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from acc_pytest.capture.manual import dump_data
from acc_pytest.capture.torch_hooks.store import NodeTensor, statistics_csv
from acc_pytest.dumps import Slot, open_dump
from acc_pytest.dumps.statistics_rows import torch_rows
from acc_pytest.errors import AccError, CannotDecode, FormatError, MappingError, OperatorError, SettingsError
from acc_pytest.mapping.tables import load_tables, read_op_mapping_file
from acc_pytest.metrics.kernel import measure
from acc_pytest.opcheck.run import run_entry
from acc_pytest.opcheck.settings import OpcheckSettings, listed
from acc_pytest.opcheck.stand_alone import StandAlone, write_case
from acc_pytest.operators import compute
from acc_pytest.reference.prepare import tensors_in
from acc_pytest.settings import read_config
from acc_pytest.tensors import atb_bin, torch_archive
from acc_pytest.tensors.kept_dump import read_index
from acc_pytest.tensors.numpy_file import stored_dtype
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.source import TensorSource
from acc_pytest.tensors.torch_pickle import content
from acc_pytest.topology.atb import read_graph, read_layer
from acc_pytest.topology.ge_graph import read_graph as read_ge_graph
from acc_pytest.topology.onnx_export import graph
from acc_pytest.topology.onnx_export.shapes import read_operation_csv
from acc_pytest.topology.torch_modules import read_tree

DIGITS = "9" * 5000
"""More than Python makes a number of."""


def operation_csv(home: Path, old: str, new: str) -> Path:
    """The CSV of an operation of two numbers, with a cell changed."""
    x = torch.ones(2, 3)
    path = write_case(StandAlone("SoftmaxOperation", {"axes": [-1]}, [x], [x], {}), home)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_sizes_of_thousands_of_digits_in_an_operation_csv_are_no_sizes(tmp_path: Path) -> None:
    path = operation_csv(tmp_path, "|2,3|", f"|2,{DIGITS}|")
    assert read_operation_csv(path) == {}
    [(_, entry)] = listed(OpcheckSettings(sources=(str(path),)))
    [row] = run_entry(entry)
    assert row.verdict == "fail"


def test_a_count_of_thousands_of_digits_in_an_operation_csv_is_no_count(tmp_path: Path) -> None:
    assert read_operation_csv(operation_csv(tmp_path, "|1|float|", f"|{DIGITS}|float|")) == {}


def test_a_large_number_in_the_name_of_a_tensor_makes_no_list_of_that_length(tmp_path: Path) -> None:
    atb_bin.write(tmp_path / "outtensor0.bin", torch.ones(2))
    atb_bin.write(tmp_path / "outtensor99999999999.bin", torch.ones(2))
    assert list(tensors_in(str(tmp_path), "")[1]) == [0]


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_what_can_be_no_path_in_metadata_is_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    torch.save(torch.ones(2), tmp_path / "mine.pth")
    dump_data(0, "a", torch.ones(2), tmp_path / "mine.pth", tmp_path)
    [metadata] = tmp_path.rglob("metadata.json")
    metadata.write_text(json.dumps({"a": {"0": [name, name]}}))
    dump = open_dump(str(tmp_path))
    [ref] = dump.tensors(dump.steps[0], dump.ranks[0], next(iter(dump.steps[0].tree.root.children))).values()
    with pytest.raises(AccError, match="no such file"):
        ref.open()


@pytest.mark.parametrize("text", [f'{{"A": {DIGITS}}}', "[" * 5000, f'{{"A": {[0] * 10_000}}}'])
def test_a_mapping_file_beyond_reason_is_told_in_few_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "map.json"
    path.write_text(text)
    with pytest.raises(MappingError) as told:
        read_op_mapping_file(str(path))
    assert len(str(told.value)) < 600


def test_the_name_of_a_type_that_nobody_knows_is_told_in_few_words(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}).replace(b'"F32"', b'"F"  '))
    header, values = path.read_bytes()[8:-8], bytes(8)
    header = header.replace(b'"F"', b'"' + b"F" * 5000 + b'"')
    path.write_bytes(len(header).to_bytes(8, "little") + header + values)
    with pytest.raises(CannotDecode) as told:
        TensorRef(str(path)).open()
    assert len(str(told.value)) < 600


@pytest.mark.parametrize("size", ["2" * 2000, "-" + "2" * 2000])
def test_a_size_of_thousands_of_digits_is_told_in_few_words(tmp_path: Path, size: str) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(2))
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({size},), }}\n".encode()
    path.write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(FormatError, match="shape") as told:
        TensorRef(str(path)).open()
    assert len(str(told.value)) < 600


def test_an_odd_header_of_an_array_is_no_warning(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(2))
    path.write_bytes(path.read_bytes().replace(b"(2,), ", b"(2L,),"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stored_dtype(str(path)) == np.float64
        assert TensorRef(str(path)).open().shape == (2,)


def test_an_odd_text_in_a_pickle_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="opcode STRING"):
            content(b"S'\\c'\n.")


def test_a_tensors_number_of_thousands_of_digits_in_statistics_is_its_name(tmp_path: Path) -> None:
    path = tmp_path / "statistics.csv"
    path.write_bytes(statistics_csv([NodeTensor("root.a", "Linear", "output", DIGITS, torch.ones(2))]))
    assert list(torch_rows(path)) == [Slot("output", (DIGITS,))]


@pytest.mark.parametrize("text", ["{n} 1", "{n}", "{n} {{", "{n}: [ {{ }} ]", "op: {n}"])
def test_the_name_of_a_field_of_a_graph_is_told_in_few_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dynamo_original_graph_20261120202451423567.txt"
    path.write_text(text.format(n="x" * 100_000) + "\n")
    with pytest.raises(FormatError) as told:
        read_ge_graph(path)
    assert len(str(told.value)) < 600


def test_two_modules_of_one_name_are_refused(tmp_path: Path) -> None:
    """Thousands of them took seconds: all that is one tensor was looked at for each."""
    path = tmp_path / "model_tree.json"
    children = [{"name": "root.a", "type": "Linear", "children": []}] * 2
    path.write_text(json.dumps({"name": "root", "type": "Net", "children": children}))
    with pytest.raises(FormatError, match=r"two modules are called root\.a"):
        read_tree(path)


@pytest.mark.parametrize(
    "tables",
    [
        {"stand_in": {"k": ["v"]}},
        {"special": [{"mine": ["~("], "golden": ["a"]}]},
        {"special": [{"golden": ["a"]}]},
        {"module": [{"mine": ["a"], "golden": ["b"]}]},
        {"fragments": [{"mine": ["a"], "golden": "b", "mine_slot": 1}]},
        {"slots": {"A": "4"}},
        {"packs": {"qkv": "qkv"}},
        {"types": {"A": [1]}},
    ],
)
def test_a_mapping_table_of_another_form_is_refused_before_anything_is_planned(
    tables: dict[str, Any],
) -> None:
    [name] = tables
    with pytest.raises(SettingsError, match=rf"mapping\.{name}\b.* (must be|lacks)"):
        load_tables(tables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_element_with_a_stride_of_nothing_is_measured(dtype: torch.dtype) -> None:
    one = torch.ones((), dtype=dtype).expand(1, 1)
    found = measure(TensorSource(one), TensorSource(torch.ones(1, 1, dtype=dtype)))
    assert found.identical


@pytest.mark.parametrize("operator", ["PadWithHiddenStateOperation", "UnpadWithHiddenStateOperation"])
@pytest.mark.parametrize("lengths", [[-(2**63)], [-1, 3]])
def test_a_sequence_of_less_than_no_tokens_is_refused(operator: str, lengths: list[int]) -> None:
    x = torch.ones(2, 4) if operator.startswith("Pad") else torch.ones(len(lengths), 4, 2)
    with pytest.raises(OperatorError, match="qSeqLen"):
        compute(operator, {"qSeqLen": lengths, "maxSeqLen": 4}, [x])


@pytest.mark.parametrize("read", [read_layer, read_graph])
def test_the_name_of_an_operation_is_told_in_few_words(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"opName": "x" * 100_000, "opType": "A", "inTensors": 1}))
    with pytest.raises(FormatError) as told:
        read(path)
    assert len(str(told.value)) < 600


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, DIGITS])
def test_a_config_file_beyond_reason_is_told(tmp_path: Path, value: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"description = {value}\n")
    with pytest.raises(SettingsError, match=r"x\.toml: cannot be read as TOML"):
        read_config(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_element_with_a_stride_of_nothing_is_written(tmp_path: Path, dtype: torch.dtype) -> None:
    one = torch.ones((), dtype=dtype).expand(1, 1)
    atb_bin.write(tmp_path / "x.bin", one)
    assert torch.equal(TensorRef(str(tmp_path / "x.bin")).open(), one)
    archive = torch_archive.encode(one)
    (tmp_path / "x.pth").write_bytes(archive.head + bytes(archive.data) + archive.tail)
    assert torch.equal(TensorRef(str(tmp_path / "x.pth")).open(), one)


def test_a_name_of_100_kb_does_not_make_a_message_of_100_kb(tmp_path: Path) -> None:
    """Whatever room it comes from. Paths stay whole: their components have 255 bytes at most."""
    home = tmp_path / ("d" * 255) / ("e" * 255)
    said = str(SettingsError(f"{home}: no key {'x' * 100_000} in {'y' * 300}"))
    assert said == f"{home}: no key {'x' * 200}... in {'y' * 200}..."


def test_nested_lists_of_a_parameter_are_written_as_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every list that held lists was text first, at each level: 6,000 operations took seconds."""
    written: list[object] = []

    def text(value: object) -> str:
        written.append(value)
        return "text"

    monkeypatch.setattr(json, "dumps", text)
    nested: list[Any] = [0]
    for _ in range(20):
        nested = [nested, None]
    assert len(graph.attributes_of({"p": nested})) == 21
    assert written == [None] * 20


def test_half_a_character_in_the_index_of_a_kept_dump_is_refused(tmp_path: Path) -> None:
    index = {"format": "acc_pytest kept dump", "version": 1, "kind": "torch", "root": "x", "files": {}}
    (tmp_path / "acc_kept.json").write_text(json.dumps({**index, "files": {"x/\ud800": [0]}}))
    with pytest.raises(FormatError, match="every name in it must be a path below"):
        read_index(str(tmp_path))
