"""`model_outline.json` of a torch dump, sound or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.dumps.torch_model import SIGNS, Outline, outline_of
from acc_pytest.tensors.ref import TensorRef

SOUND: dict[str, Any] = {
    "format": "acc_pytest model outline",
    "schema": 1,
    "projection": SIGNS,
    "model": "LlamaForCausalLM",
    "config": {"hidden_size": 8},
    "tensors": ["weight root.norm.weight", "projection root.head"],
    "outputs": {"root.head": 40},
    "numbers": {"root.norm": {"eps": 1e-05}},
}


def read(folder: Path, **changes: Any) -> Outline | None:
    (folder / "model_outline.json").write_text(json.dumps({**SOUND, **changes}))
    return outline_of(folder)


def test_a_sound_one_is_read(tmp_path: Path) -> None:
    file = str(tmp_path / "model_outline.pt")
    assert read(tmp_path) == Outline(
        "LlamaForCausalLM",
        {"hidden_size": 8},
        {"root.norm.weight": TensorRef(file, "weight root.norm.weight")},
        {"root.head": TensorRef(file, "projection root.head")},
        {"root.head": 40},
        {"root.norm": {"eps": 1e-05}},
        str(tmp_path),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "another"},
        {"schema": 2},
        {"projection": "signs of dice"},
        {"tensors": {"weight root.norm.weight": 1}},
        {"tensors": None},
    ],
    ids=str,
)
def test_one_of_another_form_counts_as_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read(tmp_path, **changes) is None


def test_a_missing_or_damaged_file_counts_as_none(tmp_path: Path) -> None:
    assert outline_of(tmp_path) is None
    (tmp_path / "model_outline.json").write_bytes(b"{\x80")
    assert outline_of(tmp_path) is None


def test_what_is_not_sound_is_left_out(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        model=["LlamaForCausalLM"],
        config="none",
        tensors=[1, "weight a", None, "other b"],
        outputs={"root.head": -1, "root.up": "many"},
        numbers={"root.norm": {"eps": "small", "scale": 2}, "root.up": 3},
    )
    assert found == Outline(
        weights={"a": TensorRef(str(tmp_path / "model_outline.pt"), "weight a")},
        numbers={"root.norm": {"scale": 2.0}, "root.up": {}},
        home=str(tmp_path),
    )
    assert read(tmp_path, outputs=[1], numbers=[1]) is not None
