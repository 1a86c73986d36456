"""The check sum of a tensor's bytes, taken from the directory of its file."""

from __future__ import annotations

import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from acc_pytest.tensors.torch_archive import encode
from acc_pytest.tensors.torch_file import stored_crc

VALUES = torch.arange(24.0).reshape(4, 6)


def saved(path: Path, value: object, **options: Any) -> str:
    torch.save(value, path / "x.pth", **options)
    return str(path / "x.pth")


@pytest.mark.parametrize(
    "tensor",
    [
        VALUES,
        torch.nn.Parameter(VALUES),
        VALUES.bfloat16(),
        VALUES.to(torch.float8_e4m3fn),
        VALUES > 3,
        VALUES[:1].clone().unsqueeze(2),
        torch.tensor(3),
        torch.complex(VALUES, VALUES),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_it_is_the_sum_of_the_bytes_in_row_major_order(tmp_path: Path, tensor: torch.Tensor) -> None:
    plain = tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    try:
        path = saved(tmp_path, tensor)
    except KeyError:
        pytest.skip(f"torch {torch.__version__} cannot save {tensor.dtype}")
    assert stored_crc(path) == (zlib.crc32(plain), len(plain))
    archive = encode(tensor.detach())
    (tmp_path / "ours.pth").write_bytes(archive.head + bytes(archive.data.cast("B")) + archive.tail)
    assert stored_crc(str(tmp_path / "ours.pth")) == (archive.crc32, len(plain))


@pytest.mark.parametrize("tensor", [VALUES.t(), VALUES[1:], VALUES[:, :3], VALUES[:2], VALUES[::2]])
def test_a_view_has_none_for_the_storage_is_not_the_tensor(tmp_path: Path, tensor: torch.Tensor) -> None:
    assert stored_crc(saved(tmp_path, tensor)) is None


def test_other_files_have_none(tmp_path: Path) -> None:
    assert stored_crc(saved(tmp_path, (VALUES, VALUES.clone()))) is None
    assert stored_crc(saved(tmp_path, {"a": VALUES})) is None
    assert stored_crc(saved(tmp_path, VALUES, _use_new_zipfile_serialization=False)) is None
    assert stored_crc(saved(tmp_path, torch.empty(3, device="meta"))) is None
    assert stored_crc(str(tmp_path / "nowhere.pth")) is None
    numpy.save(tmp_path / "x.npy", VALUES.numpy())
    assert stored_crc(str(tmp_path / "x.npy")) is None


def test_a_writer_that_makes_no_sums_gives_none(tmp_path: Path) -> None:
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always makes check sums")
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path, VALUES)
    finally:
        torch.serialization.set_crc32_options(True)
    assert stored_crc(path) is None


def test_damage_and_lies_give_none_and_never_an_error(tmp_path: Path) -> None:
    content = Path(saved(tmp_path, VALUES)).read_bytes()
    bad = tmp_path / "bad.pth"
    for cut in range(0, len(content), 37):
        bad.write_bytes(content[:cut])
        assert stored_crc(str(bad)) is None
    for position in range(0, len(content), 11):
        bad.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        stored_crc(str(bad))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return print, ("called",)


@pytest.mark.parametrize(
    "program",
    [
        pickle.dumps(Evil(), 2),
        pickle.dumps([1], 2),
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # LONG_BINPUT 2^31-1: a table of 16 GB
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"",
    ],
)
def test_a_pickle_of_anything_else_is_not_run(
    tmp_path: Path, program: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "x.pth", "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/data/0", b"abcd")
    assert stored_crc(str(tmp_path / "x.pth")) is None
    assert capsys.readouterr().out == ""
