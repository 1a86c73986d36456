"""`weights.json` of a torch dump, sound or not."""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.dumps.torch_model import FOREIGN, digests, weights_of
from acc_pytest.tensors.digest import NAME, digest

FOUND = digest(torch.arange(6.0).reshape(2, 3))
SOUND: dict[str, Any] = {"kind": "parameter", "aliases": [], "storage": 3, "offset": 0}
SOUND |= json.loads(json.dumps(dataclasses.asdict(FOUND)))


def written(folder: Path, entry: object, **content: object) -> Path:
    said = {"format": "acc_pytest weight digests", "schema": 1, "sketch": NAME, "weights": {"root.w": entry}}
    (folder / "weights.json").write_text(json.dumps({**said, **content}))
    return folder


def test_a_digest_comes_back_as_it_was(tmp_path: Path) -> None:
    assert digests(written(tmp_path, SOUND)) == {"root.w": FOUND}
    saved = weights_of(tmp_path)["root.w"]
    assert (saved.kind, saved.storage, saved.offset, saved.reason) == ("parameter", 3, 0, "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": 3},
        {"shape": [-1]},
        {"shape": None},
        {"crc32": 1 << 32},
        {"sum": "1"},
        {"sum": 10**19},
        {"squares": -1.0},
        {"squares": float("inf")},
        {"min": None},
        {"max": True},
        {"nonfinite": -1},
        {"sketch": [0.0] * 30},
        {"sketch": [0.0] * 30 + ["x"]},
        {"sketch": [float("nan")] * 31},
        {"rounded": []},
    ],
    ids=str,
)
def test_a_digest_that_is_not_sound_is_none(
    tmp_path: Path,
    wrong: dict[str, int]
    | dict[str, list[int]]
    | dict[str, None]
    | dict[str, str]
    | dict[str, float]
    | dict[str, bool]
    | dict[str, list[float]]
    | dict[str, list[Any]],
) -> None:
    home = written(tmp_path, {**SOUND, **wrong})
    assert digests(home) == {}
    assert weights_of(home)["root.w"].reason == "its digest is not sound"


def test_what_is_beside_a_digest_is_checked_too(tmp_path: Path) -> None:
    home = written(
        tmp_path, SOUND | {"aliases": ["a", 3], "storage": -1, "kind": [], "rounded": {"float16": "x"}}
    )
    saved = weights_of(home)["root.w"]
    assert (saved.aliases, saved.storage, saved.kind) == (("a",), None, "parameter")
    assert saved.digest is not None
    assert saved.digest.rounded == {}
    assert weights_of(written(tmp_path, {"reason": 3}))["root.w"].digest is None


@pytest.mark.parametrize(
    "content",
    [{"format": "x"}, {"schema": 2}, {"sketch": "another formula"}, {"weights": []}, {"weights": {"a": 3}}],
    ids=str,
)
def test_a_file_of_another_kind_says_nothing(
    tmp_path: Path,
    content: dict[str, str] | dict[str, int] | dict[str, list[Any]] | dict[str, dict[str, int]],
) -> None:
    assert weights_of(written(tmp_path, SOUND, **content)) == {}
    assert weights_of(tmp_path / "nowhere") == {}


def test_a_file_that_the_manifest_does_not_state_has_no_digests(tmp_path: Path) -> None:
    data = (written(tmp_path, SOUND) / "weights.json").read_bytes()
    manifest: dict[str, Any] = {"format": "acc_pytest torch dump", "schema": 1}
    for stated, sound in ((zlib.crc32(data), True), (zlib.crc32(data) ^ 1, False), (None, True), (-1, True)):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"weights_crc32": stated}))
        saved = weights_of(tmp_path)["root.w"]
        assert (saved.digest is not None) is sound
        assert (saved.reason == FOREIGN) is not sound
        assert saved.storage == 3
