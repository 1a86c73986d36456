"""What the real TorchAir writes: our backend writes the same bytes, our reader knows all of its graphs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.topology.ge_graph import read_graph
from tests.capture.conftest import Graphs
from tests.topology.ge_graph.schema import schema

from .models import PROGRAMS
from .tree import graphs
from .wheel import needs_same_torch, torchair_home

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, commands_with_torch: Path) -> Path:
    """Everything the real TorchAir writes of our programs."""
    needs_same_torch()
    home, out = torchair_home(), tmp_path_factory.mktemp("torchair")
    words = [str(commands_with_torch / "python"), "-m", "tests.capture.torchair.process", str(home), str(out)]
    run = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return out


@pytest.mark.parametrize("program", PROGRAMS)
def test_files_are_those_of_torchair_byte_for_byte(
    program: str, written: Path, eager_graphs: Callable[[str], Graphs]
) -> None:
    theirs, ours = graphs(written / "fx" / program), eager_graphs(program)
    assert len(ours) == len(theirs) > 0
    for their, our in zip(theirs, ours):
        same = {name: content for name, content in our.items() if ".KWARG." not in name}
        assert same.keys() == their.keys()
        assert [name for name in their if their[name] != same[name]] == []


def test_graphs_of_torchair_are_read(written: Path) -> None:
    texts = sorted(written.glob("ge/*/dynamo_*.txt"))
    assert {path.name.split("_graph_")[0] for path in texts} == {"dynamo_original", "dynamo_optimized"}
    for text in texts:
        assert any(any(node.fx_names) for node in read_graph(text).nodes)


def test_the_schema_is_that_of_torchair() -> None:
    """Every field and enum value that we name has TorchAir's number and type."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    path = torchair_home() / "torchair" / "_ge_concrete_graph" / "ge_ir_by_protoc_3_19_pb2.py"
    spec = importlib.util.spec_from_file_location("torchair_ge_ir", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    theirs = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(theirs)
    kinds = descriptor_pb2.FieldDescriptorProto
    messages = {message.name: message for outer in theirs.message_type for message in _with_nested(outer)}
    for name, fields in schema().messages.items():
        numbers = {field.name: field for field in messages[name].field}
        for field in fields.values():
            their = numbers[field.name]
            assert their.number == field.number, (name, field)
            assert (their.label == kinds.LABEL_REPEATED) == (field.repeated or field.map), (name, field)
            kind = their.type_name.rsplit(".")[-1] or kinds.Type.Name(their.type)[5:].lower()
            assert kind == ("AttrEntry" if field.map else field.type), (name, field)
    enums = [*theirs.enum_type, *(enum for message in messages.values() for enum in message.enum_type)]
    numbered = {enum.name: {value.name: value.number for value in enum.value} for enum in enums}
    for name, values in schema().enums.items():
        assert numbered[name].items() >= values.items()


def _with_nested(message: Any) -> Iterator[Any]:
    yield message
    for nested in message.nested_type:
        yield from _with_nested(nested)


def test_the_process_got_as_far_as_the_device(written: Path) -> None:
    failed = json.loads((written / "facts.json").read_text())["failed"]
    assert {name for name, error in failed.items() if error == "NoDevice"} >= {"mlp", "shapes", "training"}
