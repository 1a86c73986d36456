"""ref: references are cheap plain data; headers are remembered until their file changes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import FormatError
from acc_pytest.tensors import atb_bin, header
from acc_pytest.tensors.dtypes import by_name
from acc_pytest.tensors.header import TensorHeader
from acc_pytest.tensors.ref import TensorRef, forget_headers


def test_a_reference_crosses_processes_and_names_its_member() -> None:
    ref = TensorRef("/d/x.safetensors", "weight")
    assert pickle.loads(pickle.dumps(ref)) == ref
    assert str(ref) == "/d/x.safetensors:weight"
    assert str(TensorRef("/d/x.pth")) == "/d/x.pth"


def test_a_header_counts_its_elements() -> None:
    assert TensorHeader(by_name("int8"), (3, 0, 2)).numel == 0
    assert TensorHeader(by_name("int8"), ()).numel == 1
    assert TensorHeader(by_name("int8"), (3, 2)).numel == 6


def test_a_rewritten_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    ref = TensorRef(str(path))
    atb_bin.write(path, torch.zeros(3))
    assert ref.header() is ref.header()
    atb_bin.write(path, torch.zeros(4, 5))
    assert ref.open().shape == (4, 5)


@pytest.mark.parametrize("name", ["gone.bin", "gone.pth", "gone"])
def test_a_missing_file_is_one_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="no such file"):
        TensorRef(str(tmp_path / name)).header()
    with pytest.raises(FormatError, match=name):
        TensorRef(str(tmp_path / name)).open()


def test_a_file_is_looked_at_once_for_a_pair_and_again_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pth"
    torch.save(torch.zeros(3), path)
    ref = TensorRef(str(path))
    looked: list[str] = []
    real = header._version_now

    def look(place: str) -> tuple[int, ...]:
        looked.append(place)
        return real(place)

    monkeypatch.setattr(header, "_version_now", look)
    with header.looking_once():
        assert ref.header().shape == ref.open().shape == (3,)
    assert looked == [str(path)]
    torch.save(torch.zeros(4), path)
    with header.looking_once():
        assert ref.header().shape == (4,)


def test_a_header_is_read_once_and_anew_when_it_was_forgotten(tmp_path: Path) -> None:
    atb_bin.write(tmp_path / "a.bin", torch.zeros(3))
    reference = TensorRef(str(tmp_path / "a.bin"))
    first = reference.header()
    assert reference.header() is first
    forget_headers()
    assert reference.header() == first
    assert reference.header() is not first
