"""plain_tensor: where the values of plain `.pth` files lie; it agrees with `torch.load` or says nothing."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.tensors.file_bytes import mapped, opened
from acc_pytest.tensors.torch_archive import LEGACY_STORAGES, encode, entries_in
from acc_pytest.tensors.torch_pickle import PlainTensor, plain_tensor_in

PLAIN = {
    "matrix": torch.arange(12.0).reshape(3, 4),
    "scalar": torch.tensor(3, dtype=torch.int64),
    "empty": torch.empty(0, 64, dtype=torch.float16),
    "part": torch.arange(40.0).reshape(10, 4)[3:5],
    "row": torch.arange(40.0).reshape(10, 4).T[:, 2:3].T,
    "parameter": torch.nn.Parameter(torch.ones(5)),
    "float8": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn),
    **{name: torch.ones(2, 3).to(getattr(torch, name)) for name in LEGACY_STORAGES.values()},
}
OTHER = {
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "expanded": torch.ones(1, 3).expand(4, 3),
    "conjugated": torch.tensor([1 + 2j]).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.ones(3, device="meta"),
    "two": [torch.ones(2), torch.ones(2)],
    "nothing": None,
}
needs_float8 = pytest.mark.skipif(
    not hasattr(torch._utils, "_rebuild_tensor_v3"), reason="torch 2.1 cannot save float8"
)


def found_in(path: Path) -> PlainTensor | None:
    with opened(str(path)) as (file, size):
        return plain_tensor_in(file, size, entries_in(str(path), file, size))


def same(path: Path, found: PlainTensor) -> bool:
    """Whether torch reads the same, bit for bit."""
    expected = torch.load(path, map_location="cpu", weights_only=True).detach()
    mine = mapped(str(path), found.dtype.torch_dtype(), found.shape, found.offset)
    return (
        mine.dtype == expected.dtype
        and mine.shape == expected.shape
        and mine.contiguous().view(torch.uint8).tolist() == expected.contiguous().view(torch.uint8).tolist()
        if mine.dim()
        else mine.item() == expected.item()
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_float8 if name == "float8" else ()) for name in PLAIN]
)
def test_plain_tensors_have_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.pth"
    torch.save(PLAIN[name], path)
    found = found_in(path)
    assert found is not None
    assert same(path, found)


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "float8"])
def test_so_have_the_files_that_we_write(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.pth"
    archive = encode(PLAIN[name].detach())
    path.write_bytes(archive.head + bytes(archive.data) + archive.tail)
    found = found_in(path)
    assert found is not None
    assert same(path, found)


@pytest.mark.parametrize("name", OTHER)
def test_whatever_else_a_file_holds_is_left_to_torch(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.pth"
    torch.save(OTHER[name], path)
    assert found_in(path) is None


def rewritten(path: Path, change: dict[str, bytes | None]) -> None:
    """Give entries another content, or none."""
    with zipfile.ZipFile(path) as archive:
        content = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in content.items():
            wanted = change.get(entry.partition("/")[2], data)
            if wanted is not None:
                archive.writestr(entry, wanted)


@pytest.mark.parametrize(
    "change",
    [
        {"byteorder": b"big"},
        {"data/0": None},
        {"data/0": b"1234"},
        {"data.pkl": b"N."},
        {"data.pkl": b"\x80\x04"},
    ],
    ids=["other-byte-order", "no-storage", "short-storage", "another-pickle", "cut-pickle"],
)
def test_files_that_are_not_what_they_say_have_none(change: dict[str, bytes | None], tmp_path: Path) -> None:
    path = tmp_path / "t.pth"
    torch.save(torch.ones(3, 4), path)
    rewritten(path, change)
    assert found_in(path) is None


def test_two_entries_of_one_name_are_left_to_torch(tmp_path: Path) -> None:
    path = tmp_path / "t.pth"
    torch.save(torch.ones(2), path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data/0", bytes(8))
    assert found_in(path) is None


def _pickle() -> bytes:
    file = io.BytesIO()
    torch.save(torch.arange(6.0).reshape(2, 3)[1:], file)
    with zipfile.ZipFile(file) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


PICKLE = _pickle()


@given(
    changes=st.lists(st.tuples(st.integers(0, len(PICKLE) - 1), st.integers(0, 255)), min_size=1, max_size=3)
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_spoilt_pickle_is_read_as_torch_reads_it_or_not_at_all(
    changes: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("spoilt") / "t.pth"
    torch.save(torch.arange(6.0).reshape(2, 3)[1:], path)
    data = bytearray(PICKLE)
    for place, value in changes:
        data[place] = value
    rewritten(path, {"data.pkl": bytes(data)})
    found = found_in(path)
    if found is not None:
        assert same(path, found)
