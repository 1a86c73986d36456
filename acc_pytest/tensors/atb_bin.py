"""ATB `.bin` tensors: a text header, then raw row-major bytes. Reader and byte-exact writer.

The header is `NAME=VALUE` lines ending with `$End=1` (`$END=1` in the first builds); the probe writes
`$Version`, `$Object.Count`, `$Object.Length`, `format`, `dtype`, `dims`, then statistics, an alias or
the place of the payload. Only `dtype` and `dims` are always there: other tools leave out the rest.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ..base.imports import torch
from ..errors import CannotDecode, FormatError, NoPayload
from .dtypes import DType, by_atb_code, by_torch, layout_code, layout_name
from .file_bytes import byte_count, mapped, opened
from .header import Location, Statistics, TensorHeader, version_of
from .kept_dump import kept_version, names_in
from .location import is_there, names_at
from .torch_archive import memory_of
from .whole_file import whole_file

_FIRST_READ = 4096
_LONGEST_HEADER = 64 * 1024
_MOST_RECORDS = 4096
_LONGEST_CHAIN = 16
_SIGNATURE = b"$Version="
_END = re.compile(rb"^\$(?:End|END)=1\n", re.MULTILINE)
_NATURAL = re.compile(r"\d{1,19}")
_INTEGER = re.compile(r"-?\d{1,9}")
_WITHOUT = {
    "description": "only the dtype and shape of its tensor (dumped with -sd)",
    "statistics": "only the statistics of its tensor (dumped with stats)",
}


class _Cut(FormatError):
    """The file ends inside a record."""


class AtbBin:
    """The format object of ATB `.bin` files."""

    name = "ATB"

    def matches(self, head: bytes) -> bool:
        """Whether these first bytes start an ATB header, full or minimal."""
        return head.startswith((_SIGNATURE, b"dtype=", b"format=", b"dims="))

    def header(self, place: Location) -> TensorHeader:
        """Dtype, dims, layout and where the payload lies. Raises `FormatError`.

        The probe appends: a path written twice holds two records, and a run killed meanwhile leaves a
        third that is cut. The last complete one counts, because it is the newest run's.
        """
        path = located(place.path, place.root)
        with opened(path) as (file, size):
            header, end = _record(path, file, 0, size)
            for _ in range(_MOST_RECORDS):
                if end == size:
                    return header if path == place.path else replace(header, plain=False)
                file.seek(end)
                head = file.read(len(_SIGNATURE))
                if not (_SIGNATURE.startswith(head) or head == _SIGNATURE):
                    raise FormatError(
                        f"{path}: {size - end} bytes follow the declared payload of {header.nbytes} bytes "
                        f"({header.dtype} {list(header.shape)}) and are not another record; "
                        "the header does not belong to this payload"
                    )
                try:
                    header, end = _record(path, file, end, size)
                except _Cut:
                    return replace(header, plain=False)
        raise FormatError(f"{path}: holds more than {_MOST_RECORDS} records; dump into an empty directory")

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """The tensor, mapped, through aliases. Raises `FormatError`, `CannotDecode` or `NoPayload`."""
        holder, stored = resolve(place, header)
        if stored.payload != "data":
            raise NoPayload(f"{holder.path}: holds {_WITHOUT[stored.payload]}; dump again with its data")
        if (stored.dtype, stored.numel) != (header.dtype, header.numel):
            raise FormatError(
                f"{place.path}: declares {header.dtype} {list(header.shape)} but is an alias of "
                f"{holder.path}, which holds {stored.dtype} {list(stored.shape)}"
            )
        path = located(holder.path, holder.root)
        return mapped(path, stored.dtype.torch_dtype(path), header.shape, stored.offset)


FORMAT = AtbBin()


def resolve(place: Location, header: TensorHeader) -> tuple[Location, TensorHeader]:
    """The location of the values of `place`, and the header there: over any number of aliases.

    Raises `NoPayload` for an alias of itself (the probe drops the values then) and for one whose
    target is not in the dump, `FormatError` for aliases that go in circles.
    """
    target, passed = place, [place.path]
    while header.payload == "alias":
        name = header.alias
        path = alias_target(name, target.path, target.root)
        if path is None:
            raise NoPayload(f"{target.path}: is an alias of {name}, which is not in its execution directory")
        if os.path.realpath(path) == os.path.realpath(target.path):
            raise NoPayload(
                f"{target.path}: is an alias of itself: its values were not dumped (filter_level=2)"
            )
        if path in passed or len(passed) > _LONGEST_CHAIN:
            raise FormatError(f"{place.path}: its chain of aliases is a loop: {name} in {target.path}")
        passed.append(path)
        target = Location(path, root=target.root)
        header = FORMAT.header(target)
    return target, header


def _record(path: str, file: BinaryIO, offset: int, size: int) -> tuple[TensorHeader, int]:
    """The record at `offset`, and the offset right after it."""
    attributes, start = _attributes(path, file, offset, size)
    code = attributes.get("dtype", attributes.get("type"))
    if code is None or "dims" not in attributes:
        raise FormatError(f"{path}: its header lacks dtype or dims, so it is not an ATB tensor")
    dtype = by_atb_code(_number(path, "dtype", code, _INTEGER))
    dims = attributes["dims"]
    shape = tuple(_number(path, "dims", dim) for dim in dims.split(",")) if dims else ()
    layout = layout_name(_number(path, "format", attributes.get("format", "2"), _INTEGER))
    needed = byte_count(path, shape, dtype.bits)
    statistics = from_attributes(attributes)
    is_described = attributes.get("$Object.Count") == "0" or "data" in attributes
    if "$Object.data" not in attributes and is_described:
        kind = "description" if needed or not dtype.itemsize else "data"
        kind = "statistics" if statistics else kind
        kind = "alias" if "data" in attributes else kind
        alias = attributes.get("data", "")
        return TensorHeader(dtype, shape, kind, start, 0, layout, statistics, alias), start
    where, length, total = _payload(path, attributes, dtype, needed, size - start)
    if dtype.itemsize and length != needed:
        raise FormatError(
            f"{path}: declares {length} payload bytes, but {dtype} {list(shape)} takes {needed}; "
            f"the file has {size - start} bytes after the header"
        )
    if total > size - start:
        raise _Cut(
            f"{path}: is truncated: the header declares {total} payload bytes ({dtype} {list(shape)}), "
            f"the file has {size - start}; was the dump interrupted or the disk full?"
        )
    header = TensorHeader(dtype, shape, "data", start + where, length, layout, statistics, plain=True)
    return header, start + total


def _payload(
    path: str, attributes: Mapping[str, str], dtype: DType, needed: int, rest: int
) -> tuple[int, int, int]:
    """Offset and length of the tensor behind the header, and the length of all that belongs to the record."""
    declared = attributes.get("$Object.Length")
    total = None if declared is None else _number(path, "$Object.Length", declared)
    place = attributes.get("$Object.data")
    if place is None:
        # A minimal header. Types without a whole number of bytes may be packed: all that is there is theirs.
        length = total if total is not None else needed if dtype.itemsize else rest
        return 0, length, length
    fields = place.split(",")
    if len(fields) != 2:
        raise FormatError(f"{path}: $Object.data={place[:80]!r} is not OFFSET,LENGTH")
    where, length = (_number(path, "$Object.data", field) for field in fields)
    if total is not None and where + length > total:
        raise FormatError(
            f"{path}: contradicts itself: $Object.data={place} reaches beyond $Object.Length={total}"
        )
    return where, length, total if total is not None else where + length


def _attributes(path: str, file: BinaryIO, offset: int, size: int) -> tuple[dict[str, str], int]:
    """The header at `offset` as a mapping, and the offset of the first byte after it."""
    file.seek(offset)
    text = file.read(_FIRST_READ)
    end = _END.search(text)
    if end is None and len(text) == _FIRST_READ:
        text += file.read(_LONGEST_HEADER - _FIRST_READ)
        end = _END.search(text)
    if end is None:
        if offset + len(text) >= size and (FORMAT.matches(text) or _SIGNATURE.startswith(text)):
            raise _Cut(f"{path}: is truncated inside its header: {len(text)} bytes without an $End line")
        raise FormatError(
            f"{path}: is not an ATB tensor: no $End line in its first {len(text)} bytes, which start with "
            f"{text[:16]!r}; a file of another format needs its own suffix"
        )
    attributes: dict[str, str] = {}
    for line in text[: end.start()].splitlines():
        # Values may contain '='; later ATB versions add attributes that we need not know.
        name, separator, value = line.decode("ascii", "replace").partition("=")
        if not separator or not name.isprintable():
            raise FormatError(
                f"{path}: header line {line[:40]!r} is not NAME=VALUE, so this is not an ATB tensor"
            )
        attributes[name] = value
    return attributes, offset + end.end()


def _number(path: str, name: str, text: str, pattern: re.Pattern[str] = _NATURAL) -> int:
    if not pattern.fullmatch(text):
        raise FormatError(f"{path}: {name} holds {text[:80]!r}, which is not a whole number")
    return int(text)


def write(path: str | os.PathLike[str], tensor: torch.Tensor, *, layout: str = "nd") -> None:
    """Write a tensor as the probe does, replacing what is there (the probe would append to it).

    Any dtype with an ATB code, any strides; the file holds the row-major bytes. It is whole or not
    there, and its directory is made where it is missing. An empty tensor gets a header too, although
    the probe writes no file for one. Raises `CannotDecode` for a dtype ATB has no code for, `AccError`
    where the system refuses.
    """
    values = memory_of(tensor.detach().cpu().contiguous())
    header = _header_text(tensor.dtype, tuple(tensor.shape), layout, values.nbytes)
    with whole_file(path) as file:
        file.writelines([header, values])


def write_description(
    path: str | os.PathLike[str],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    *,
    layout: str = "nd",
    extra: Mapping[str, str] | None = None,
) -> None:
    """Write what a dump leaves of a tensor without its values: dtype and dims, as `-sd` does.

    `extra` has more to say: statistics, or as `data` the file that has the values (`1_0_outtensor0.bin`).
    """
    with whole_file(path) as file:
        file.write(_header_text(dtype, shape, layout, extra=extra))


def write_statistics(path: str | os.PathLike[str], tensor: torch.Tensor) -> None:
    """Write what statistics mode leaves of a tensor."""
    write_description(path, tensor.dtype, tuple(tensor.shape), extra=text_of(tensor.cpu()))


def attributes_of(dtype: torch.dtype, shape: tuple[int, ...], *, layout: str = "nd") -> dict[str, str]:
    """The attributes that the header of every tensor has, in their order.

    Raises `CannotDecode` for a dtype ATB has no code for.
    """
    element_type = by_torch(dtype)
    if element_type.atb_code is None:
        raise CannotDecode(
            f"dtype {element_type} has no ATB code; cast the tensor to a dtype of ATB before writing"
        )
    dims = ",".join(map(str, shape))
    return {"format": str(layout_code(layout)), "dtype": str(element_type.atb_code), "dims": dims}


def _header_text(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    layout: str = "nd",
    nbytes: int | None = None,
    extra: Mapping[str, str] | None = None,
) -> bytes:
    attributes = {**attributes_of(dtype, shape, layout=layout), **(extra or {})}
    lines = [
        "$Version=1.0",
        f"$Object.Count={0 if nbytes is None else 1}",
        f"$Object.Length={nbytes or 0}",
        *(f"{name}={value}" for name, value in attributes.items()),
    ]
    if nbytes is not None:
        lines.append(f"$Object.data=0,{nbytes}")
    return "\n".join([*lines, "$End=1", ""]).encode("ascii")


# Location of the values of an ATB file: aliases, and links that a move has broken.
#
# Paths below an execution directory are `{id}_{name}/{id}_{name}/.../{before|after}/{tensor}.bin`. Nothing
# here joins a name found in a file to a path, except the name of a file in the same directory; all else
# is looked up by number among the entries that exist, or checked to lie inside the dump.


_REFERENCE = re.compile(r"((?:\d+_)+)(intensor|outtensor)(\d+)(?:_[^/\\]*)?\.bin")
_NODE = re.compile(r"\d+_.+")
_TARGET = re.compile(r"(?:^|/)(?:tensors|data)/(-?\d+_\d+)/(\d+)/(.+)$")


def execution_directory(path: str, root: str) -> str:
    """The directory `{device}_{pid}/{N}` a tensor file belongs to: `root`, or else what its path shows."""
    if root:
        return root
    directory = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    while _NODE.fullmatch(os.path.basename(directory)):
        directory = os.path.dirname(directory)
    return directory


def located(path: str, root: str) -> str:
    """The path to read a file from: `path`, or for a link to nowhere its target within this dump.

    The probe replaces repeated tensors by links to absolute paths, which break when the dump is moved.
    A target `.../tensors/{device}_{pid}/{N}/rest` is looked up beside the execution directory that holds
    the link. Raises `FormatError` where that finds nothing.
    """
    if version_of(path) or not os.path.islink(path):
        return path
    target = os.readlink(path)
    execution = execution_directory(path, root)
    process = os.path.dirname(execution)
    match = _TARGET.search(target.replace(os.sep, "/"))
    if match is not None and ".." not in match[3].split("/"):
        worker, number, rest = match.groups()
        candidates = [
            os.path.join(os.path.dirname(process), worker, number, rest),
            os.path.join(process, number, rest),  # the process directory was renamed
        ]
        if number == os.path.basename(execution):
            candidates.append(os.path.join(execution, rest))
        boundary = os.path.realpath(os.path.dirname(process))
        for candidate in candidates:
            if os.path.exists(candidate) and Path(os.path.realpath(candidate)).is_relative_to(boundary):
                return candidate
    raise FormatError(
        f"{path}: is a link to {target}, which does not exist, nor does its counterpart in this dump; "
        "copy the whole dump, with the execution directory the link points into"
    )


def alias_target(name: str, path: str, root: str) -> str | None:
    """The file that an alias `data=name` of the file `path` means, or `None` where there is none.

    `{ids}_{intensor|outtensor}{i}.bin` is a tensor of the node with these ids in the same execution
    directory, written before (inputs) or after (outputs) it ran; any other name is a neighbour's.
    """
    reference = _REFERENCE.fullmatch(name)
    if reference is None:
        neighbour = os.path.join(os.path.dirname(path), name)
        plain = name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)
        return neighbour if plain and (is_there(neighbour) or kept_version(neighbour)) else None
    ids = reference[1].rstrip("_").split("_")
    side = "before" if reference[2] == "intensor" else "after"
    for directory in _nodes(execution_directory(path, root), ids):
        for entry in _entries(os.path.join(directory, side)):
            # Newer ATB adds the parameter's name: outtensor0_y.bin.
            if re.fullmatch(rf"{reference[2]}{reference[3]}(_.+)?\.bin", entry):
                return os.path.join(directory, side, entry)
    return None


def _nodes(directory: str, ids: list[str]) -> Iterator[str]:
    if not ids:
        yield directory
        return
    for entry in _entries(directory):
        if entry.startswith(ids[0] + "_"):
            yield from _nodes(os.path.join(directory, entry), ids[1:])


def _entries(directory: str) -> list[str]:
    try:
        return sorted((*names_at(directory), *names_in(directory)))
    except OSError:
        return []


# The statistics text of ATB dumps: what C++ `std::to_string` prints, read and written.
#
# An ATB tensor in statistics mode is a header whose attributes `max`, `min`, `mean` and `l2norm` hold
# `4.000000`, `-7`, `nan`, `(1.000000,-2.000000)` for complex numbers, or `N/A`.


KEYS = ("max", "min", "mean", "l2norm")
_COMPLEX = re.compile(r"\(([^,()]+),([^,()]+)\)")
_LONGEST = 400  # the longest %f, of -1.8e308, takes 317 characters; a complex one is never that long


def number(text: str) -> float | None:
    """The value of one statistics cell; `None` for `N/A` and for text that is no number.

    A complex number gives its modulus: ATB orders complex values by modulus, and `Statistics` is real.
    """
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    pair = _COMPLEX.fullmatch(text)
    if pair is not None:
        real, imaginary = number(pair[1]), number(pair[2])
        return None if real is None or imaginary is None else math.hypot(real, imaginary)
    try:
        return float(text)
    except ValueError:
        return None


def from_attributes(attributes: Mapping[str, str]) -> Statistics | None:
    """The statistics of a `.bin` header, or `None` where it has none."""
    if not any(key in attributes for key in KEYS):
        return None
    values = [number(attributes.get(key, "")) for key in KEYS]
    return Statistics(*values)


def text_of(tensor: torch.Tensor, *, wide_squares: bool = False) -> dict[str, str]:
    """The statistics that the probe would write for a tensor: four texts in header order.

    Types the probe cannot sum (bool, fp8, complex128, ...) and empty tensors give `N/A` four times.
    NaN never becomes a maximum or minimum; a tensor of nothing else shows the type's own limits,
    with which the search starts. Up to 2026 the probe squared in the element type before it summed
    in double, which rounds and overflows in float32; `wide_squares` squares in double as it does now.
    """
    dtype = by_torch(tensor.dtype)
    flat = tensor.detach().reshape(-1)
    if flat.numel() and dtype.name == "complex64":
        return _complex_text(flat, wide_squares)
    if flat.numel() and dtype.name in ("float16", "bfloat16", "float32", "float64"):
        # The probe widens half precision to float32; squares of doubles are wide already.
        return _float_text(flat.to(torch.promote_types(flat.dtype, torch.float32)), wide_squares)
    if flat.numel() and dtype.kind in ("int", "uint"):
        # torch cannot order unsigned 16 to 64 bit numbers; their bits as signed ones, shifted by half the
        # range, keep the order.
        values = flat.to(torch.float64)
        shift = 0
        if flat.dtype in _signed_twins():
            twin = _signed_twins()[flat.dtype]
            shift = -int(torch.iinfo(twin).min)
            flat = flat.view(twin) ^ torch.iinfo(twin).min
        largest, smallest = int(flat.max()) + shift, int(flat.min()) + shift
        mean = float(values.sum()) / flat.numel()
        norm = math.sqrt(float((values * values).sum()))
        return {"max": str(largest), "min": str(smallest), "mean": f"{mean:f}", "l2norm": f"{norm:f}"}
    return dict.fromkeys(KEYS, "N/A")


def _float_text(flat: torch.Tensor, wide_squares: bool) -> dict[str, str]:
    wide = flat.to(torch.float64)
    squares = wide * wide if wide_squares else (flat * flat).to(torch.float64)
    ordered = flat[~torch.isnan(flat)]
    limits = torch.finfo(flat.dtype)
    largest = float(ordered.max()) if ordered.numel() else limits.min
    smallest = float(ordered.min()) if ordered.numel() else limits.max
    values = (largest, smallest, float(wide.sum()) / flat.numel(), math.sqrt(float(squares.sum())))
    return {key: f"{value:f}" for key, value in zip(KEYS, values)}


def _signed_twins() -> dict[torch.dtype, torch.dtype]:
    pairs = (("uint16", torch.int16), ("uint32", torch.int32), ("uint64", torch.int64))
    return {getattr(torch, name): twin for name, twin in pairs if hasattr(torch, name)}


def _complex_text(flat: torch.Tensor, wide_squares: bool) -> dict[str, str]:
    components = torch.view_as_real(flat)
    moduli = components.square().sum(-1)
    squares = components.to(torch.float64).square() if wide_squares else moduli.to(torch.float64)
    largest, smallest = flat[moduli.argmax()], flat[moduli.argmin()]
    mean = flat.to(torch.complex128).sum() / flat.numel()
    pairs = [complex(value.item()) for value in (largest, smallest, mean)]
    texts = [f"({value.real:f},{value.imag:f})" for value in pairs]
    return dict(zip(KEYS, [*texts, f"{math.sqrt(float(squares.sum())):f}"]))
