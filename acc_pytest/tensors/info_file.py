"""Info files: what a conversion leaves of tensors of TorchAir dumps, minimum and maximum at least.

`{FX file without .npy}_min_max.npy` is a row of numbers of one tensor, `{GE file}_min_max.npz` has arrays
`inputs` and `outputs` with a row per tensor. A row is minimum, maximum and then, where the writer says more,
mean, l2norm, number of elements and type (its code in GE records); NaN stands for what it does not know.
Scripts around the old tool wrote the first two in the tensor's own type.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..base.imports import torch
from ..errors import CannotDecode, FormatError
from .dtypes import DType, by_torch
from .file_bytes import content_within
from .ge_message import by_ge_code, ge_code
from .header import Location, Statistics, TensorHeader, WithoutValues, member_of, until_changed
from .numpy_file import described
from .statistics import statistics_of
from .whole_file import whole_file

SUFFIX = "_min_max"
_COLUMNS = 6
_LONGEST = 1 << 24
_ARRAYS = ("inputs", "outputs")
_REFUSALS = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, LookupError, RuntimeError, OSError)


@dataclass(frozen=True, slots=True)
class Info:
    """Entry of an info file for a tensor; `None` where its writer did not say."""

    statistics: Statistics
    numel: int | None = None
    dtype: DType | None = None


class InfoFile(WithoutValues):
    """The format object of info files; `TensorRef.member` is `inputs/0` in a `.npz`, empty in a `.npy`."""

    name = "info"
    lacking = "holds only minimum and maximum of its tensor; dump again with its data"

    def matches(self, head: bytes) -> bool:
        """Never: only the name tells an info file from a tensor."""
        return False

    def header(self, place: Location) -> TensorHeader:
        """The statistics of one tensor; its shape is its number of elements, () where that is not known.

        Raises `FormatError`.
        """
        info = member_of(place, read_info(place.path), "row")
        shape = () if info.numel is None else (info.numel,)
        dtype = info.dtype or by_torch(torch.float64)
        counted = info.numel is not None
        return TensorHeader(dtype, shape, "statistics", statistics=info.statistics, counted=counted)


FORMAT = InfoFile()


def info_of(tensor: torch.Tensor) -> Info:
    """Everything an info file can keep of a tensor."""
    return Info(statistics_of(tensor), tensor.numel(), by_torch(tensor.dtype))


@until_changed(maxsize=4096)
def read_info(path: str) -> Mapping[str, Info]:
    """The rows of an info file: one under the empty name, or `inputs/0`, `outputs/0`, ...

    Raises `FormatError`.
    """
    content = content_within(path, _LONGEST, "an info file")
    if not path.lower().endswith(".npz"):
        rows, dtype = _array(path, content)
        if rows.dim() != 1:
            raise _no_info(path, tuple(rows.shape))
        return MappingProxyType({"": _info(path, rows.tolist(), dtype)})
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            arrays = {name: _member(archive, name) for name in _ARRAYS}
    except _REFUSALS as error:
        raise FormatError(f"{path}: is not a valid .npz info file: {str(error)[:200]}") from error
    infos: dict[str, Info] = {}
    for name, data in arrays.items():
        rows, dtype = _array(f"{path}:{name}", data)
        if rows.numel() and rows.dim() != 2:
            raise _no_info(f"{path}:{name}", tuple(rows.shape))
        for index, row in enumerate(rows.tolist()):
            infos[f"{name}/{index}"] = _info(f"{path}:{name}/{index}", row, _narrowest(row, dtype))
    return MappingProxyType(infos)


def _narrowest(row: Sequence[float], dtype: DType) -> DType:
    """The type of the tensor behind a row of an array that holds the rows of several.

    Such an array has the widest type of all of them, so a row may be of a narrower one: of the narrowest in
    which its numbers are exact.
    """
    if dtype.kind != "float":
        return dtype
    exact = torch.tensor(row, dtype=torch.float64)
    for narrow in (torch.float16, torch.bfloat16, torch.float32):
        if narrow.itemsize < (dtype.itemsize or 0) and torch.equal(exact.to(narrow).double(), exact):
            return by_torch(narrow)
    return dtype


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(f"{name}.npy") as file:
        # Not what the archive says of the size: a small file may unpack to any.
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise ValueError(f"{name} unpacks to more than {_LONGEST} bytes")
    return data


def _array(name: str, data: bytes) -> tuple[torch.Tensor, DType]:
    header, fortran, swapped = described(name, data, len(data))
    if fortran or swapped or header.dtype.kind not in ("float", "int", "uint", "bool"):
        raise FormatError(f"{name}: holds {header.dtype} in an order or of a kind that info files never have")
    dtype = header.dtype.torch_dtype(name)
    if not header.nbytes:
        return torch.zeros(header.shape, dtype=torch.float64), header.dtype
    values = torch.frombuffer(bytearray(data[header.offset :]), dtype=dtype).view(header.shape)
    return values.to(torch.float64), header.dtype


def _info(name: str, row: list[float], dtype: DType) -> Info:
    if not 2 <= len(row) <= _COLUMNS:
        raise _no_info(name, (len(row),))
    low, high, mean, norm, count, code = (
        None if math.isnan(value) else value for value in (*row, *[math.nan] * (_COLUMNS - len(row)))
    )
    if code is not None:
        element_type: DType | None = by_ge_code(int(code)) if math.isfinite(code) else None
    else:
        element_type = dtype if len(row) == 2 else None
    numel = int(count) if count is not None and 0 <= count < 2**62 else None
    return Info(Statistics(high, low, mean, norm), numel, element_type)


def _no_info(name: str, shape: tuple[int, ...]) -> FormatError:
    return FormatError(
        f"{name}: holds an array {list(shape)} instead of a row of 2 to {_COLUMNS} numbers per tensor, "
        f"minimum and maximum first; a tensor needs a name without {SUFFIX}"
    )


def write_fx_info(path: str | os.PathLike[str], info: Info | Statistics) -> None:
    """Write the info file of one FX tensor, whole or not at all. Raises `AccError` where it cannot be."""
    with whole_file(path) as file:
        np.lib.format.write_array(file, _rows([info])[0], allow_pickle=False)


def write_ge_info(
    path: str | os.PathLike[str], inputs: Sequence[Info | Statistics], outputs: Sequence[Info | Statistics]
) -> None:
    """Write the info file of a GE record. It is whole or not there; raises `AccError` where it cannot be."""
    with whole_file(path) as file:
        np.savez(file, inputs=_rows(inputs), outputs=_rows(outputs))


def _rows(infos: Sequence[Info | Statistics]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """A row per tensor; the last two columns are left out where no tensor has them."""
    short = all(isinstance(info, Statistics) or (info.numel is None and info.dtype is None) for info in infos)
    rows = np.full((len(infos), _COLUMNS), np.nan)
    for row, info in zip(rows, infos):
        record = info if isinstance(info, Info) else Info(info)
        statistics = record.statistics
        code = None if record.dtype is None else _code(record.dtype)
        for place, value in enumerate(
            (statistics.min, statistics.max, statistics.mean, statistics.l2norm, record.numel, code)
        ):
            row[place] = math.nan if value is None else value
    return rows[:, :4] if short else rows


def _code(dtype: DType) -> int | None:
    try:
        return ge_code(dtype)
    except CannotDecode:
        return None
