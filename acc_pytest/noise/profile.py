"""`Profile`: what noise runs are off by in every tensor of a golden dump, kept beside it.

Tensors are known by their files below the directory of the dump, so that a dump may be moved with its
profile. A fingerprint of golden's values tells a profile that was made of another golden.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ..base.forms import must, read, written
from ..base.reason import Reason, arguments
from ..base.vocabulary import NOISE_PROFILE
from ..errors import AccError, FormatError
from ..tensors.address import is_mirrored
from ..tensors.dtypes import by_name
from ..tensors.file_bytes import opened
from ..tensors.header import TensorHeader
from ..tensors.json_file import header, read_form, write_json
from ..tensors.location import is_directory
from ..tensors.ref import TensorRef
from ..tensors.source import TensorSource
from .errors import NoiseErrors

if TYPE_CHECKING:
    import torch


def _short(value: object, where: str) -> str:
    if type(value) is not str or len(value) > _LONGEST:
        raise must(where, "a short text", value)
    return value


def _float_type(value: object, where: str) -> str:
    """The name of a float type, or an empty text for whole numbers."""
    if type(value) is str and (not value or by_name(value).format is not None):
        return value
    raise must(where, "a float type such as bfloat16", value)


ATTENTION = "{} attention, {}"
"""How a noise run was made: with which attention, and what else."""


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """One noise run that a profile was made of: its float type, and how it was made, in words."""

    dtype: Annotated[str, _float_type]
    how: Annotated[str, _short] = ""

    def __str__(self) -> str:
        attention = arguments(self.how, ATTENTION)
        how = Reason(ATTENTION, *attention) if attention else self.how
        return Reason("{} ({})", self.dtype, how) if how else self.dtype


@dataclass(frozen=True, slots=True)
class ProfiledTensor:
    """One tensor of golden: a fingerprint of its values, and the largest errors of the noise runs."""

    fingerprint: str
    errors: NoiseErrors


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile in the file `path`; `tensors` are named by `key_of`."""

    path: str
    runs: tuple[ProfiledRun, ...]
    tensors: Mapping[str, ProfiledTensor]

    @property
    def summary(self) -> str:
        """`214 tensors, bfloat16 (sdpa), bfloat16 (eager)`."""
        return f"{len(self.tensors)} tensors, {', '.join(map(str, self.runs))}"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types of the noise runs, each once."""
        return tuple(dict.fromkeys(run.dtype for run in self.runs))


def profile_path(root: str) -> str:
    """The path of the profile of the dump `root`, if it has one: in its directory, or that of its one
    file."""
    return os.path.join(root if is_directory(root) else os.path.dirname(root), NOISE_PROFILE)


def key_of(ref: TensorRef, home: str) -> str:
    """The key of a tensor in the profile of the directory `home`."""
    path = os.path.relpath(ref.path, home).replace(os.sep, "/")
    return f"{path}:{ref.member}" if ref.member else path


# The profile as a file: JSON, a line for each tensor of golden, of 200 to 500 bytes.


FORMAT = "acc-pytest noise profile"
VERSION = 1
REMEDY = "make it again with `acc noise-profile GOLDEN NOISE_DUMP`, or leave it out with --acc-noise none"
DIGITS = 6
"""Significant digits of an error."""
_FINGERPRINT = "fingerprint"
_LONGEST = 200
"""Characters of a word in the file."""


def read_profile(path: str) -> Profile:
    """The profile in a file.

    Raises `FormatError` that names the file, what is wrong and how to get another, `AccError` where it cannot
    be read.
    """
    try:
        stated = read_form(_ProfileFile, path, FORMAT, VERSION)
        if not stated.runs:
            raise FormatError(f"{path}: must have a list of runs")
        return Profile(path, stated.runs, stated.tensors)
    except FormatError as error:
        raise FormatError(f"{error}; {REMEDY}") from None
    except AccError as error:
        raise AccError(f"{error}; {REMEDY}") from error


def write_profile(profile: Profile) -> None:
    """Write a profile, atomically; of a golden in a store, to the store. Raises `AccError`."""
    head = header(FORMAT, VERSION) | {"runs": [written(run) for run in profile.runs]}
    head["tensors"] = {key: _entry(tensor) for key, tensor in profile.tensors.items()}
    if not is_mirrored(profile.path):
        write_json(profile.path, head, "tensors")
        return
    from ..remote.stores.mirror import put_at

    with tempfile.TemporaryDirectory() as home:
        write_json(f"{home}/{NOISE_PROFILE}", head, "tensors")
        put_at(profile.path, f"{home}/{NOISE_PROFILE}")


def _entry(tensor: ProfiledTensor) -> dict[str, Any]:
    numbers = {name: value for name, value in written(tensor.errors).items() if name != "dtype"}
    short = {
        name: value
        if isinstance(value, int)
        else min(float(f"{float(value):.{DIGITS}g}"), sys.float_info.max)
        for name, value in numbers.items()
    }
    return {_FINGERPRINT: tensor.fingerprint, "dtype": tensor.errors.dtype} | short


def _tensor(value: object, where: str) -> ProfiledTensor:
    """The fingerprint and the errors of a tensor stand in one object."""
    if type(value) is not dict:
        raise must(where, "an object", value)
    mark = _short(value.get(_FINGERPRINT), f"{where}.{_FINGERPRINT}")
    numbers = {name: number for name, number in value.items() if name != _FINGERPRINT}
    errors = read(NoiseErrors, numbers, where)
    _float_type(errors.dtype, f"{where}.dtype")
    for name, number in numbers.items():
        if name != "dtype" and number is not None and not _is_error(number):
            raise must(f"{where}.{name}", "a number >= 0", number)
    return ProfiledTensor(mark, errors)


def _is_error(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class _ProfileFile:
    """The fields of a file."""

    runs: tuple[ProfiledRun, ...]
    tensors: Mapping[str, Annotated[ProfiledTensor, _tensor]]


# `fingerprint`: a few bytes that tell the tensor of one golden from that of another.


_LOOKED_AT = 16
"""Elements of a tensor in its fingerprint: a page of the file each, whatever the size of the tensor."""


def fingerprint(ref: TensorRef) -> str:
    """A check sum of what is dumped of a tensor: its type and shape, and a few values spread over it.

    Raises `AccError` or `OSError` where it cannot be read.
    """
    header = ref.header()
    check = zlib.crc32(f"{header.dtype.name} {list(header.shape)} {header.statistics}".encode())
    if header.payload != "statistics" and header.numel:
        lies_so = header.plain and header.dtype.itemsize is not None
        check = zlib.crc32(_in_file(ref, header) if lies_so else _sampled(ref.open()), check)
    return f"{check:08x}"


def _in_file(ref: TensorRef, header: TensorHeader) -> bytes:
    """The bytes of `_sampled`, of a tensor that lies in its file as it is read."""
    size, chunks = header.dtype.bits // 8, []
    with opened(ref.path, values=True) as (file, _):
        for place in _places(header.numel):
            file.seek(header.offset + place * size)
            chunks.append(file.read(size))
    return b"".join(chunks)


def _sampled(tensor: torch.Tensor) -> bytes:
    from ..metrics.python_blocks import raw  # with torch, which a run without a profile may do without

    places = _places(tensor.numel())
    source = TensorSource(tensor)
    if tensor.is_contiguous():  # read as a view
        return raw(source.read(0, tensor.numel())).reshape(tensor.numel(), -1)[places].tobytes()
    return b"".join(raw(source.read(place, place + 1)).tobytes() for place in places)


def _places(elements: int) -> list[int]:
    """First, last, and evenly spread between."""
    last = min(_LOOKED_AT, elements) - 1
    return [number * (elements - 1) // max(1, last) for number in range(last + 1)]
