"""api: the old tool's functions to read and save single tensors."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import acc_pytest
from acc_pytest.errors import AccError, CannotDecode, FormatError, NoPayload
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.api import (
    convert_bin_data_to_npy,
    convert_bin_data_to_pt,
    get_bin_data_from_dir,
    read_atb_data,
    read_bin_data,
    save_npy_data,
    save_torch_data,
)
from acc_pytest.tensors.dtypes import DTYPES


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
