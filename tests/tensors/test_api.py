"""api: the old tool's functions to read and save single tensors."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import acc_pytest
from acc_pytest.errors import AccError, CannotDecode, FormatError, NoPayload
from acc_pytest.tensors import atb_bin, header
from acc_pytest.tensors.api import (
    convert_bin_data_to_npy,
    convert_bin_data_to_pt,
    get_bin_data_from_dir,
    read_atb_data,
    read_bin_data,
    save_npy_data,
    save_torch_data,
)
from acc_pytest.tensors.dtypes import DTYPES, by_name
from acc_pytest.tensors.file_bytes import mapped
from acc_pytest.tensors.formats import format_of
from acc_pytest.tensors.header import Location, TensorHeader
from acc_pytest.tensors.ref import TensorRef, forget_headers
from acc_pytest.tensors.torch_archive import LEGACY_STORAGES, encode
from acc_pytest.tensors.torch_file import header_of_member, is_read_here


def written(path: Path, tensor: torch.Tensor) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    atb_bin.write(path, tensor)
    return path


class TestReadAtbData:
    @pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
    @pytest.mark.parametrize(
        "name",
        [
            d.torch_name
            for d in DTYPES
            if d.torch_name and d.atb_code is not None and hasattr(torch, d.torch_name)
        ],
    )
    def test_every_dtype_that_atb_and_torch_have(self, tmp_path: Path, name: str) -> None:
        dtype = getattr(torch, name)
        tensor = torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=torch.uint8).to(dtype)
        found = acc_pytest.read_atb_data(str(written(tmp_path / "t.bin", tensor)))
        assert (found.dtype, found.shape) == (dtype, (2, 3))
        assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))

    @pytest.mark.parametrize("end", ["$End=1", "$END=1"])
    def test_headers_of_every_era(self, tmp_path: Path, end: str) -> None:
        values = torch.tensor([1.5, -2.0])
        path = tmp_path / "t.bin"
        path.write_bytes(f"dtype=0\ndims=2\n{end}\n".encode() + values.numpy().tobytes())
        assert torch.equal(read_atb_data(path), values)

    def test_scalars_and_empty_tensors(self, tmp_path: Path) -> None:
        assert read_atb_data(written(tmp_path / "s.bin", torch.tensor(3.0))).item() == 3.0
        assert read_atb_data(written(tmp_path / "e.bin", torch.zeros(0, 4))).shape == (0, 4)

    def test_more_than_two_gib_are_mapped(self, tmp_path: Path) -> None:
        count = 2**31 + 8
        path = tmp_path / "large.bin"
        header = f"$Version=1.0\n$Object.Count=1\n$Object.Length={count}\nformat=2\ndtype=2\ndims={count}\n"
        with open(path, "wb") as file:  # sparse: takes no room on the disk
            file.write(f"{header}$Object.data=0,{count}\n$End=1\n".encode())
            file.truncate(file.tell() + count - 1)
            file.seek(0, os.SEEK_END)
            file.write(b"\x07")
        tensor = read_atb_data(path)
        assert tensor.numel() == count
        assert (tensor[0].item(), tensor[-1].item()) == (0, 7)

    def test_a_link_that_a_move_broke_is_followed_inside_the_dump(self, tmp_path: Path) -> None:
        run = tmp_path / "tensors" / "0_7" / "0"
        written(run / "0_A" / "after" / "outtensor0.bin", torch.tensor([4.0]))
        link = run / "1_B" / "before" / "intensor0.bin"
        link.parent.mkdir(parents=True)
        link.symlink_to("/gone/tensors/0_7/0/0_A/after/outtensor0.bin")
        assert read_atb_data(link).tolist() == [4.0]
        link.unlink()
        link.symlink_to("/gone/secret.bin")
        with pytest.raises(FormatError, match=r"intensor0\.bin: is a link to /gone/secret\.bin"):
            read_atb_data(link)

    def test_errors_name_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match=r"gone\.bin: no such file"):
            read_atb_data(tmp_path / "gone.bin")
        with pytest.raises(
            AccError,
            match=r"t\.npy: is not a \.bin file; read \.pth with torch\.load and \.npy with numpy\.load",
        ):
            read_atb_data(tmp_path / "t.npy")
        path = written(tmp_path / "cut.bin", torch.zeros(4))
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(FormatError, match=r"cut\.bin: is truncated"):
            read_atb_data(path)
        atb_bin.write_description(tmp_path / "sd.bin", torch.float32, (2,))
        with pytest.raises(NoPayload, match=r"sd\.bin: holds only the dtype"):
            read_atb_data(tmp_path / "sd.bin")
        (tmp_path / "int4.bin").write_bytes(b"dtype=29\ndims=2\n$End=1\n\x12")
        with pytest.raises(CannotDecode, match=r"int4\.bin"):
            read_atb_data(tmp_path / "int4.bin")


class TestBinData:
    def test_the_header_has_the_old_names_and_the_data_both_forms(self, tmp_path: Path) -> None:
        values = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
        data = read_bin_data(written(tmp_path / "t.bin", values))
        assert (data.dtype, data.format, data.dims) == (27, 2, [1, 2])
        assert torch.equal(data.get_data(), values)
        assert torch.equal(convert_bin_data_to_pt(data), values)
        array = convert_bin_data_to_npy(data)
        assert array.dtype == np.float32
        assert array.tolist() == [[1.5, -2.0]]
        assert data.path == str(tmp_path / "t.bin")

    def test_arrays_of_types_numpy_has_are_not_converted(self, tmp_path: Path) -> None:
        data = read_bin_data(written(tmp_path / "t.bin", torch.tensor([2**40])))
        assert convert_bin_data_to_npy(data).dtype == np.int64

    def test_a_type_numpy_cannot_hold_exactly_is_refused(self, tmp_path: Path) -> None:
        data = read_bin_data(
            written(tmp_path / "t.bin", torch.zeros(2, dtype=torch.int32).view(torch.complex32))
        )
        with pytest.raises(AccError, match=r"t\.bin: numpy has no type for torch\.complex32"):
            convert_bin_data_to_npy(data)

    def test_a_broken_file_is_refused_before_its_data_is_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "t.bin").write_bytes(b"nothing")
        with pytest.raises(
            FormatError,
            match=r"t\.bin: is not an ATB tensor: no \$End line in its first 7 bytes, which start",
        ):
            read_bin_data(tmp_path / "t.bin")


class TestGetBinDataFromDir:
    def test_all_bins_in_order_under_their_own_names(self, tmp_path: Path) -> None:
        first = written(tmp_path / "b" / "x.bin", torch.zeros(1))
        second = written(tmp_path / "a" / "deep" / "y.bin", torch.zeros(1))
        (tmp_path / "a" / "link.bin").symlink_to(first)
        (tmp_path / "a" / "loop").symlink_to(tmp_path)
        (tmp_path / "note.txt").write_text("")
        assert get_bin_data_from_dir(tmp_path) == [str(second), str(tmp_path / "a" / "link.bin"), str(first)]
        (tmp_path / "same").symlink_to(tmp_path / "b")
        assert get_bin_data_from_dir(tmp_path / "same") == [str(first)]

    def test_the_depth_is_bounded(self, tmp_path: Path) -> None:
        written(tmp_path / "1" / "2" / "x.bin", torch.zeros(1))
        assert len(get_bin_data_from_dir(tmp_path, max_depth=3)) == 1
        with pytest.raises(AccError, match="1: is 2 directories deep or deeper; give a larger max_depth"):
            get_bin_data_from_dir(tmp_path, max_depth=2)

    def test_what_is_no_directory(self, tmp_path: Path) -> None:
        with pytest.raises(AccError, match="gone: is not a directory"):
            get_bin_data_from_dir(tmp_path / "gone")

    def test_a_directory_that_may_not_be_listed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "shut").mkdir()
        scan = os.scandir

        def refuse(
            path: str,
        ) -> object:  # root may list everything, so the mode of a directory proves nothing
            if path.endswith("shut"):
                raise PermissionError(13, "Permission denied", path)
            return scan(path)

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(AccError, match="shut: cannot be listed"):
            get_bin_data_from_dir(tmp_path)


class TestSave:
    def test_a_view_is_saved_alone_into_directories_that_are_made(self, tmp_path: Path) -> None:
        whole = torch.zeros(1 << 20, requires_grad=True)
        path = save_torch_data(whole[5:7], tmp_path / "a" / "b" / "t.pth")
        assert path == str(tmp_path / "a" / "b" / "t.pth")
        assert os.path.getsize(path) < 4096
        loaded = torch.load(path, weights_only=True)
        assert (loaded.tolist(), loaded.requires_grad) == ([0.0, 0.0], False)

    def test_a_bare_file_name_is_enough(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert save_torch_data(torch.ones(1), "t.pt") == "t.pt"
        assert save_npy_data("t.npy", torch.ones(1)) == "t.npy"
        assert sorted(os.listdir()) == ["t.npy", "t.pt"]

    def test_dicts_of_tensors(self, tmp_path: Path) -> None:
        path = save_torch_data({"a": torch.ones(2)}, tmp_path / "t.pt")
        assert torch.load(path, weights_only=True)["a"].tolist() == [1.0, 1.0]

    def test_arrays_and_tensors_to_npy(self, tmp_path: Path) -> None:
        values = np.arange(6, dtype=np.int16).reshape(2, 3)
        assert np.array_equal(np.load(save_npy_data(tmp_path / "a.npy", values)), values)
        bf16 = torch.tensor([1.5], dtype=torch.bfloat16)
        loaded = np.load(save_npy_data(tmp_path / "b.npy", bf16))
        assert (loaded.dtype, loaded.tolist()) == (np.float32, [1.5])
        turned = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()
        assert np.load(save_npy_data(tmp_path / "c.npy", turned)).tolist() == [[1.0, 3.0], [2.0, 4.0]]

    def test_sparse_tensors_keep_their_layout(self, tmp_path: Path) -> None:
        path = save_torch_data(torch.eye(2).to_sparse(), tmp_path / "t.pt")
        assert torch.load(path, weights_only=True).to_dense().tolist() == [[1.0, 0.0], [0.0, 1.0]]

    def test_a_full_disk_is_named_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(torch, "save", full)
        with pytest.raises(AccError, match=r"t\.pth: cannot be written: No space left"):
            save_torch_data(torch.ones(1), tmp_path / "t.pth")
        assert os.listdir(tmp_path) == []

    def test_wrong_calls_leave_no_file(self, tmp_path: Path) -> None:
        target = tmp_path / "t.pth"
        with pytest.raises(
            AccError, match=r"t\.bin: save_torch_data\(data, path\): the path must end with \.pt or \.pth"
        ):
            save_torch_data(torch.ones(1), tmp_path / "t.bin")
        with pytest.raises(AccError, match=r"t\.pt: save_npy_data.* must end with \.npy"):
            save_npy_data(tmp_path / "t.pt", torch.ones(1))
        with pytest.raises(AccError, match="check the order of the arguments"):
            save_torch_data(str(target), torch.ones(1))  # type: ignore[arg-type]  # swapped
        with pytest.raises(AccError, match="check the order of the arguments"):
            save_npy_data(torch.ones(1), "t.npy")  # type: ignore[arg-type]  # swapped
        with pytest.raises(AccError, match=r"t\.pth: cannot be saved: "):
            save_torch_data(lambda: 0, target)
        with pytest.raises(AccError, match=r"t\.npy: data must be one tensor or array of numbers, got"):
            save_npy_data(tmp_path / "t.npy", {"a": 1})
        assert os.listdir(tmp_path) == []


# formats: a path finds its format by suffix, or by content where the suffix says nothing.


VALUES = torch.tensor([[1.0, -2.0, 3.5]])


def as_torch(path: Path) -> None:
    torch.save(VALUES, path)


def as_legacy_torch(path: Path) -> None:
    torch.save(VALUES, path, _use_new_zipfile_serialization=False)


def as_numpy(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, VALUES.numpy())


def as_safetensors(path: Path) -> None:
    safetensors.torch.save_file({"only": VALUES}, path)


def as_atb(path: Path) -> None:
    atb_bin.write(path, VALUES)


WRITERS: dict[str, Callable[[Path], None]] = {
    ".bin": as_atb,
    ".pth": as_torch,
    ".pt": as_legacy_torch,
    ".npy": as_numpy,
    ".safetensors": as_safetensors,
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", ["tensor{}", "TENSOR{}", "no suffix", "tensor.0", "größer 张量{}"])
def test_every_format_opens_under_its_suffix_and_without(tmp_path: Path, suffix: str, name: str) -> None:
    path = tmp_path / name.format(suffix.upper() if name.isupper() else suffix)
    WRITERS[suffix](path)
    ref = TensorRef(str(path))
    assert ref.header().shape == (1, 3)
    assert torch.equal(ref.open(), VALUES)


def test_statistics_files_are_found_by_their_first_line(tmp_path: Path) -> None:
    path = tmp_path / "statistics"
    path.write_text("NodeName,NodeType,InputOutput,Index,DataType,Shape,Max,Min,Mean,L2Norm\n")
    assert format_of(str(path)).name == "statistics"


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(80), b"{}"])
def test_an_unknown_format_lists_the_supported_ones(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(
        FormatError, match=r"known tensor format; supported: ATB \(\.bin\), torch \(\.pth \.pt\), numpy"
    ):
        format_of(str(path))


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_wrong_suffix_is_a_clear_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"this is a text file\n" * 10)
    with pytest.raises(FormatError, match="x" + suffix):
        TensorRef(str(path)).open()


# ref: references are cheap plain data; headers are remembered until their file changes.


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


# is_read_here: where the values of plain `.pth` files lie; it agrees with `torch.load` or says nothing.


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


def found_in(path: Path) -> TensorHeader | None:
    return header_of_member(Location(str(path))) if is_read_here(str(path)) else None


def same(path: Path, found: TensorHeader) -> bool:
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
