"""Reading and saving single tensors by hand: the functions that scripts around the old tool were built on.

`read_atb_data`, `get_bin_data_from_dir`, `read_bin_data`, `convert_bin_data_to_pt`,
`convert_bin_data_to_npy`, `save_torch_data` and `save_npy_data` keep their names and the order of their
arguments (which differs between the last two). What was wrong is an `AccError` that names the file.
`read_dump_data` of the old tool read records of CANN's adump, which are no ATB files; `ge_record.read_record`
and `TensorRef(path, "outputs/0")` read those.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import AccError
from .dtypes import layout_code
from .ref import TensorRef
from .whole_file import whole_file

FilePath = str | os.PathLike[str]

_SUFFIX = ".bin"
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class BinData:
    """An ATB `.bin` file whose header was read; the values are read when asked for."""

    ref: TensorRef

    @property
    def path(self) -> str:
        return self.ref.path

    @property
    def dtype(self) -> int:
        """ATB's number of the element type."""
        code = self.ref.header().dtype.atb_code
        assert code is not None  # read from the file
        return code

    @property
    def format(self) -> int:
        """ATB's number of the layout, -1 for one that no table knows."""
        return layout_code(self.ref.header().layout)

    @property
    def dims(self) -> list[int]:
        return list(self.ref.header().shape)

    def get_data(self) -> torch.Tensor:
        """The tensor, as `read_atb_data` gives it."""
        return self.ref.open()


def read_atb_data(path: FilePath) -> torch.Tensor:
    """The tensor in an ATB `.bin` file of any era, on the CPU, in its own dtype and shape.

    Large files are mapped, not read, so there is no limit to their size; writing to the tensor leaves
    the file alone. Links and aliases are followed inside the dump that the file lies in. Raises
    `FormatError` for a broken file, `NoPayload` for one without values (statistics, `-sd`),
    `CannotDecode` for a type torch has not.
    """
    return read_bin_data(path).get_data()


def get_bin_data_from_dir(directory: FilePath, max_depth: int = _DEEPEST) -> list[str]:
    """Absolute paths of the `.bin` files below a directory, sorted.

    Links to files are listed under their own names, for these say which operator a tensor belongs to;
    links to directories are not followed. Raises `AccError` for what is no directory, cannot be listed
    or is nested `max_depth` deep or more.
    """
    top = os.path.realpath(directory)
    if not os.path.isdir(top):
        raise AccError(f"{os.fspath(directory)}: is not a directory")
    paths: list[str] = []
    for home, names, files in os.walk(top, onerror=_refuse):
        depth = home[len(top) :].count(os.sep)
        if names and depth + 1 >= max_depth:
            raise AccError(f"{home}: is {max_depth} directories deep or deeper; give a larger max_depth")
        paths += [os.path.join(home, name) for name in files if name.endswith(_SUFFIX)]
    return sorted(paths)


def read_bin_data(path: FilePath) -> BinData:
    """The header of an ATB `.bin` file, with `get_data()` for the tensor. Raises `FormatError`."""
    text = os.fspath(path)
    if not text.endswith(_SUFFIX):
        raise AccError(f"{text}: is not a {_SUFFIX} file; read .pth with torch.load and .npy with numpy.load")
    data = BinData(TensorRef(os.path.abspath(text)))
    data.ref.header()
    return data


def convert_bin_data_to_pt(tensor_bin: BinData) -> torch.Tensor:
    """The tensor of what `read_bin_data` gave; raises what `read_atb_data` raises."""
    return tensor_bin.get_data()


def convert_bin_data_to_npy(tensor_bin: BinData) -> np.ndarray[Any, np.dtype[Any]]:
    """The tensor as an array. Types numpy has not (bfloat16, fp8) become float32, which holds them exactly.

    The old function of this name took what `read_dump_data` gave, which was no ATB file.
    """
    return array_of(tensor_bin.get_data(), tensor_bin.path)


def save_torch_data(data: Any, path: FilePath) -> str:
    """Save a tensor (or what holds tensors) to `.pt` or `.pth` and return the path.

    A tensor is saved alone, on the CPU, without gradient and without the rest of the memory it is a
    view of. Missing directories are made; the file appears when it is whole.
    """
    target = _target(path, (".pt", ".pth"), "save_torch_data(data, path)")
    plain = compact(data) if isinstance(data, torch.Tensor) else data
    with whole_file(target) as file:
        try:
            torch.save(plain, file)
        except OSError:
            raise
        except Exception as error:  # torch and pickle document no errors of theirs
            raise AccError(f"{target}: cannot be saved: {type(error).__name__}: {error}") from error
    return target


def save_npy_data(path: FilePath, data: Any) -> str:
    """Save an array or tensor to `.npy` and return the path; as `save_torch_data` otherwise.

    A tensor of a type numpy has not is saved as float32.
    """
    target = _target(path, (".npy",), "save_npy_data(path, data)")
    array = array_of(compact(data), target) if isinstance(data, torch.Tensor) else np.asarray(data)
    if array.dtype.hasobject:
        raise AccError(f"{target}: data must be one tensor or array of numbers, got {type(data).__name__}")
    with whole_file(target) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
    return target


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU, detached, row-major, in memory of exactly its size; a copy where it must be."""
    plain = tensor.detach().to("cpu").resolve_conj().resolve_neg()
    if plain.layout != torch.strided or plain.is_quantized:
        return plain
    plain = plain.contiguous()
    alone = plain.untyped_storage().nbytes() == plain.numel() * plain.element_size()
    return plain if alone else plain.clone()


def _target(path: FilePath, suffixes: tuple[str, ...], signature: str) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise AccError(
            f"{signature}: the path must be a str or a Path, got {type(path).__name__}; "
            "check the order of the arguments"
        )
    text = os.fspath(path)
    if not text.endswith(suffixes):
        raise AccError(f"{text}: {signature}: the path must end with {' or '.join(suffixes)}")
    return text


def array_of(tensor: torch.Tensor, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return tensor.numpy()
    except TypeError:
        if not tensor.is_floating_point():
            raise AccError(f"{name}: numpy has no type for {tensor.dtype}") from None
        return tensor.to(torch.float32).numpy()


def _refuse(error: OSError) -> None:
    raise AccError(f"{error.filename}: cannot be listed: {error.strerror}") from error
