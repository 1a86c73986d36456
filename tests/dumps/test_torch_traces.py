"""`module_traces.json` of a torch dump, sound or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.dumps.torch_model import traced_modules, traces_of

CALL = {"name": "module act", "args": [{"given": [0]}], "kwargs": {}, "made": [[[], [2, 4]]]}
TRACE = {"given": [[[0], [2, 4]]], "calls": [CALL], "result": {"of": [0, []]}}
OTHER = {**TRACE, "given": [[[0], [3, 4]]], "calls": [{**CALL, "made": [[[], [3, 4]]]}]}
SOUND: dict[str, Any] = {
    "format": "acc_pytest module traces",
    "schema": 1,
    "dtype": "float32",
    "kept": ["0"],
    "modules": {"root.mlp": [0, 1], "root": [2]},
    "traces": [TRACE, OTHER, {"void": "it ended in an error"}],
}


def write(home: Path, **changes: Any) -> str:
    (home / "0").mkdir(exist_ok=True)
    (home / "0" / "module_traces.json").write_text(json.dumps({**SOUND, **changes}))
    return str(home)


def test_sound_traces_are_read(tmp_path: Path) -> None:
    found = traces_of(write(tmp_path), "0")
    assert found is not None
    assert found.modules == SOUND["modules"]
    assert found.traces == SOUND["traces"]
    assert found.tensors["0"].path == str(tmp_path / "0" / "module_traces.pt")
    assert [found.is_general(number) for number in range(3)] == [True, True, False]
    assert traced_modules(str(tmp_path), ["0", "1"]) == {"root", "root.mlp", "root.mlp.act"}


@pytest.mark.parametrize(
    "changes", [{"format": "another"}, {"schema": 2}, {"modules": []}, {"traces": {}}, {"kept": 3}]
)
def test_a_file_that_is_not_sound_counts_as_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert traces_of(write(tmp_path, **changes), "0") is None


def test_parts_that_are_not_sound_count_as_void(tmp_path: Path) -> None:
    home = write(tmp_path, modules={"root": [0, 9], "root.mlp": [1], "root.act": "1"}, traces=[5, TRACE])
    found = traces_of(home, "0")
    assert found is not None
    assert found.modules == {"root.mlp": [1]}
    assert found.traces == [{"void": "it is not sound"}, TRACE]


def test_no_file_is_no_traces(tmp_path: Path) -> None:
    assert traces_of(str(tmp_path), "0") is None
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "module_traces.json").write_bytes(b"{\x80")
    assert traces_of(str(tmp_path), "0") is None
