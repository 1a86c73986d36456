"""Dumps that the real msprobe wrote: every one opens with all that it recorded, and says what it lacks."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.msprobe import MsprobeDump

DATA = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "other_dumps"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no conformance data at {DATA}")


def sets() -> list[str]:
    if not DATA.is_dir():
        return []
    listed = json.loads((DATA / "sets.json").read_text())
    return [one["name"] for one in listed if one["tool"] == "msprobe"]


def unpacked(name: str, home: Path) -> Path:
    if (DATA / name).is_dir():
        return DATA / name
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extractall(home, filter="data")
    return home / Path(name).name


def in_json(value: Any) -> int:
    """How many tensors a record holds, counted apart from the reader."""
    if isinstance(value, list):
        return sum(map(in_json, value))
    if not isinstance(value, dict):
        return 0
    if isinstance(value.get("shape"), list) and isinstance(value.get("type"), str):
        return 1
    return sum(map(in_json, value.values()))


@pytest.mark.parametrize("name", sets())
def test_everything_that_was_recorded_is_there(name: str, tmp_path: Path) -> None:
    root = unpacked(name, tmp_path)
    dump = open_dump(str(root))
    assert isinstance(dump, MsprobeDump)
    files = [*root.rglob("dump.json"), *root.rglob("debug.json")]
    passes = 3 if "generate" in name else 1
    assert passes * len(files) == len(dump.steps) * len(dump.ranks)
    recorded = sum(in_json(json.loads(file.read_text())["data"]) for file in files)
    found = set()
    for step in dump.steps:
        for rank in dump.ranks:
            own = dump.dumped_weights(rank).values() if step is dump.steps[0] else ()
            listed = [ref for node in step.tree.walk() for ref in dump.tensors(step, rank, node).values()]
            for ref in (*listed, *own):
                header = ref.header()
                assert header.payload in ("data", "statistics", "description")
                found.add((ref.path, ref.member))
    overwritten = sum(note.startswith("inputs are left out") for note in dump.notes)
    assert overwritten == (name in LATE)
    # Parameters stand in the record of every call and step, and among the inputs of functions.
    assert len(found) <= recorded
    if "/llama_L0" in name and len(dump.steps) == 1 and "generate" not in name:
        assert len(found) == recorded


LATE = {"msprobe_26_1/engine_llama_L0_tensor_bf16", "msprobe_26_1/special_L0_tensor"}
"""Sets of the release that takes inputs late, with modules that work in place."""


def test_the_tensors_of_statistics_are_those_of_the_expected_list(tmp_path: Path) -> None:
    for file in (DATA / "expected" / "msprobe").rglob("*_statistics.json"):
        expected = json.loads(file.read_text())
        for side in ("golden", "mine"):
            dump = open_dump(str(unpacked(expected[side], tmp_path / side)))
            assert isinstance(dump, MsprobeDump)
            for step, said in zip(dump.steps, expected["steps"]):
                ran = [node for node in step.tree.walk() if dump.tensors(step, dump.ranks[0], node)]
                assert len(ran) <= said[f"{side}_records"]
                assert not said["only_golden"]
