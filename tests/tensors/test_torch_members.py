"""torch_members: tensors in files that hold several, by their members; it agrees with torch.load."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import AccError, FormatError
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.torch_file import content_of, stored_crc

WHOLE = torch.arange(24.0).reshape(4, 6)
HELD: dict[Any, Any] = {
    "value": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "list": [torch.ones(3, dtype=torch.int8), None, (torch.tensor(7), "text")],
    "ordered": OrderedDict(a=torch.zeros(2, dtype=torch.bool)),
    "parameter": torch.nn.Parameter(torch.full((2,), 3.0)),
    "part": WHOLE[1:3],
    "transposed": WHOLE.T,
    "spread": torch.ones(1, 3).expand(4, 3),
    "empty": torch.empty(0, 5),
    7: torch.tensor(8.5),
    "meta": {
        "step": 0,
        "dims": "t h",
        "size": 2.5,
        "none": None,
        "big": 1 << 70,
        "deep": {"x": torch.ones(1)},
    },
}
MEMBERS = {
    "value": HELD["value"],
    "list/0": HELD["list"][0],
    "list/2/0": HELD["list"][2][0],
    "ordered/a": HELD["ordered"]["a"],
    "parameter": HELD["parameter"].detach(),
    "part": HELD["part"],
    "transposed": HELD["transposed"],
    "spread": HELD["spread"],
    "empty": HELD["empty"],
    "7": HELD[7],
    "meta/deep/x": HELD["meta"]["deep"]["x"],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "held.pt"
    torch.save(HELD, path)
    return path


def test_the_members_of_a_file_in_its_order(file: Path) -> None:
    assert list(content_of(str(file)).tensors) == list(MEMBERS)


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_is_what_torch_reads(file: Path, member: str) -> None:
    ref, expected = TensorRef(str(file), member), MEMBERS[member]
    header, found = ref.header(), ref.open()
    assert header.shape == tuple(expected.shape)
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert torch.equal(found, expected)


def test_what_is_beside_the_tensors_is_read_but_not_made(file: Path) -> None:
    meta = content_of(str(file)).value["meta"]  # type: ignore[index]
    assert {key: meta[key] for key in ("step", "dims", "size", "none", "big")} == {
        key: HELD["meta"][key] for key in ("step", "dims", "size", "none", "big")
    }


def test_a_member_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(FormatError, match="has no tensor 'other'; its tensors: value, list/0"):
        TensorRef(str(file), "other").header()


def test_a_file_of_one_tensor_needs_no_member(tmp_path: Path) -> None:
    torch.save({"value": HELD["transposed"], "meta": {"name": "x"}}, tmp_path / "one.pt")
    assert torch.equal(TensorRef(str(tmp_path / "one.pt")).open(), HELD["transposed"])
    torch.save({"value": HELD["value"], "meta": {"name": "x"}}, tmp_path / "other.pt")
    assert torch.equal(TensorRef(str(tmp_path / "other.pt")).open(), HELD["value"])


class _Evil:
    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return sys.exit, self.arguments


def test_objects_beside_a_tensor_are_not_made(tmp_path: Path) -> None:
    path = tmp_path / "held.pt"
    torch.save({"value": torch.ones(2), "meta": {"evil": _Evil(3), _Evil: [_Evil(torch.ones(1))]}}, path)
    assert list(content_of(str(path)).tensors) == ["value"]
    assert TensorRef(str(path), "value").open().tolist() == [1, 1]


def test_check_sums_of_whole_storages(file: Path, tmp_path: Path) -> None:
    torch.save(HELD["value"], tmp_path / "alone.pt")
    assert stored_crc(str(file), "value") == stored_crc(str(tmp_path / "alone.pt"))
    for member in ("part", "transposed", "spread", "other"):
        assert stored_crc(str(file), member) is None
    assert stored_crc(str(tmp_path / "x.safetensors"), "data") is None


@pytest.mark.parametrize("value", [3, "text", None, [], {}, {"meta": {}}])
def test_files_without_a_tensor_have_no_member(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "held.pt")
    assert not content_of(str(tmp_path / "held.pt")).tensors
    with pytest.raises(FormatError):
        TensorRef(str(tmp_path / "held.pt")).header()


def test_lists_that_hold_themselves_end(tmp_path: Path) -> None:
    value: list[Any] = [torch.ones(1)]
    value.append(value)
    torch.save(value, tmp_path / "held.pt")
    with pytest.raises(FormatError, match="values 16 deep"):
        content_of(str(tmp_path / "held.pt"))
    wide: list[Any] = [torch.ones(1)]
    for _ in range(14):
        wide = [wide] * 10
    torch.save(wide, tmp_path / "wide.pt")
    with pytest.raises(FormatError, match="more than 100000 values"):
        content_of(str(tmp_path / "wide.pt"))


def test_views_of_few_elements_that_show_many_are_refused(tmp_path: Path) -> None:
    torch.save({"value": torch.ones(1).expand(1 << 40)}, tmp_path / "held.pt")
    with pytest.raises(FormatError, match="is a view of"):
        TensorRef(str(tmp_path / "held.pt"), "value").open()


def test_files_older_than_zip_archives_have_no_members(tmp_path: Path) -> None:
    torch.save({"value": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError, match="older than torch 1"):
        TensorRef(str(tmp_path / "old.pt"), "value").header()


def test_damage_gives_typed_errors_or_a_tensor_of_the_declared_size(file: Path, tmp_path: Path) -> None:
    sound = file.read_bytes()
    chance = random.Random(11)
    broken = tmp_path / "broken.pt"
    for number in range(1500):
        content = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            # Most of the file is one pickle, which is where lies are.
            content[chance.randrange(len(content))] = chance.randrange(256)
        if number % 10 == 0:
            del content[chance.randrange(len(content)) :]
        broken.write_bytes(content)
        for member in ("value", "transposed", "list/2/0"):
            try:
                header = TensorRef(str(broken), member).header()
                assert TensorRef(str(broken), member).open().numel() == header.numel
            except AccError:
                continue
