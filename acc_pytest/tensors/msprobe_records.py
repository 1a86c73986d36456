"""`dump.json` and `debug.json` of msprobe: what it recorded of each call, with the statistics of each tensor.

    {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": null, "data": {
      "Module.model.norm.RMSNorm.forward.0": {"input_args": [...], "input_kwargs": {...}, "output": [...]}}}

A tensor is an object with `type`, `dtype`, `shape`, `Max`, `Min`, `Mean`, `Norm`, perhaps `md5` and
`data_name`. Its member is named as its file is or would be, without the suffix:
`Module.model.norm.RMSNorm.forward.0.output.0`. NaN and Infinity stand bare in these files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Union

from ..base.imports import torch
from ..base.texts import is_index, parsed
from ..errors import FormatError, NoPayload
from .dtypes import by_name
from .file_bytes import byte_count, content_within
from .header import Location, Statistics, TensorHeader, member_of, until_changed

Key = tuple[Union[int, str], ...]
Stated = Union[None, bool, int, float]

HEAD = re.compile(rb'\s*\{\s*"task"\s*:')
"""The first bytes of such a file."""
_LONGEST = 1 << 30
_DEEPEST = 16
_MOST_DIMENSIONS = 64
_LARGEST_SIZE = 1 << 63
_LONGEST_NAME = 255
_SECTIONS = {"input_args": "input", "input_kwargs": "kwargs"}
"""Words of the file that are others in the names of tensor files."""
_NESTED = frozenset({dict, list})
_INTEGERS = frozenset({int})
_NUMBERS = frozenset({type(None), bool, int, float})
_UNFIT = re.compile(r"[\x00-\x1f\x7f]|[\ud800-\udfff]")
_SUMMED = 2.0**-24
"""Unit roundoff of float32."""
_NOT_COMPUTED = Statistics(None, None, None, None)


class RecordedTensor(NamedTuple):
    """Record of one tensor. `stated` are Max, Min, Mean and Norm as they stand there; `digest` is the
    `md5` (a CRC-32 or an exclusive or), `file` the name of its file, each empty where there is none."""

    dtype: str
    shape: tuple[int, ...]
    stated: tuple[Stated, Stated, Stated, Stated]
    digest: str = ""
    file: str = ""
    placements: tuple[str, ...] = ()


class CallTensor(NamedTuple):
    """A tensor of a call: under which word it stands (`input_args`, `output`, ...), where in that, and its
    member."""

    part: str
    key: Key
    member: str
    tensor: RecordedTensor


@dataclass(frozen=True, slots=True)
class Records:
    """The content of a file: `calls` by their names in the order in which they ended, with their tensors.

    `broken` counts records that are none.
    """

    task: str
    level: str
    framework: str
    calls: Mapping[str, tuple[CallTensor, ...]]
    tensors: Mapping[str, RecordedTensor]
    broken: int = 0


class MsprobeRecords:
    """The format object of tensors of which msprobe kept statistics only."""

    name = "msprobe statistics"

    def matches(self, head: bytes) -> bool:
        """Whether these first bytes start such a file."""
        return HEAD.match(head) is not None

    def header(self, place: Location) -> TensorHeader:
        """Dtype, shape, statistics and digest of one member. Raises `FormatError`."""
        return header_of(member_of(place, records_in(place.path).tensors, "tensor"), str(place))

    def open(self, place: Location, header: TensorHeader) -> torch.Tensor:
        """Never a tensor: raises `NoPayload`."""
        contents = (
            "only the statistics" if header.payload == "statistics" else "neither values nor statistics"
        )
        raise NoPayload(f"{place}: holds {contents} of its tensor; dump again with task tensor")


FORMAT = MsprobeRecords()


@until_changed(maxsize=256)  # a file for each step and rank
def records_in(path: str) -> Records:
    """All records of a file, remembered until it changes. Raises `FormatError`."""
    content = json_of(path)
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(data, dict):
        raise FormatError(f"{path}: is no dump.json of msprobe: it has no object `data`")
    tensors: dict[str, RecordedTensor] = {}
    calls = {
        fit(name): _call(fit(name), value, tensors)
        for name, value in data.items()
        if value is None or isinstance(value, (dict, list))  # of level debug; nothing where no gradient came
    }
    task, level, framework = (fit(content.get(name)) for name in ("task", "level", "framework"))
    broken = len(data) - len(calls)
    return Records(task, level, framework, MappingProxyType(calls), MappingProxyType(tensors), broken)


def json_of(path: str) -> Any:
    """The value in a JSON file of msprobe. Raises `FormatError`."""
    content = content_within(path, _LONGEST, "records")
    try:
        return parsed(content)
    except ValueError as error:
        raise FormatError(
            f"{path}: is not readable JSON ({error}); was the program killed while msprobe wrote it?"
        ) from error


def _call(name: str, value: Any, tensors: dict[str, RecordedTensor]) -> tuple[CallTensor, ...]:
    sections = value.items() if isinstance(value, dict) and not _is_tensor(value) else [("", value)]
    entries = []
    for section, content in sections:
        leaves: list[tuple[Key, RecordedTensor]] = []
        _look(content, (), leaves)
        if not leaves:
            continue
        section = fit(section)
        word = f"{name}.{_SECTIONS.get(section, section)}" if section else name
        for key, tensor in leaves:
            member = ".".join([word, *map(str, key)])
            if member in tensors:
                member = f"{member}#{len(tensors)}"
            tensors[member] = tensor
            entries.append(CallTensor(section, key, member, tensor))
    return tuple(entries)


def _look(value: Any, key: Key, leaves: list[tuple[Key, RecordedTensor]]) -> None:
    """Add all tensors in a value, each with the positions and names that lead to it."""
    if len(key) > _DEEPEST:
        return
    if type(value) is list:
        for index, item in enumerate(value):
            if item:
                _look(item, (*key, index), leaves)
    elif type(value) is dict:
        if _is_tensor(value):
            leaves.append((key, _tensor(value)))
            return
        for name, item in value.items():
            if type(item) in _NESTED:
                _look(item, (*key, int(name) if is_index(name) else fit(name)), leaves)


def _is_tensor(value: Mapping[str, Any]) -> bool:
    """An object of the user's may have fields of these names, but then they are objects."""
    shape = value.get("shape")
    if type(shape) is not list or type(value.get("type")) is not str or type(value.get("dtype")) is not str:
        return False
    if not shape:
        return True
    if len(shape) > _MOST_DIMENSIONS or set(map(type, shape)) != _INTEGERS:
        return False
    return bool(min(shape) >= 0 and max(shape) < _LARGEST_SIZE)


def _tensor(value: Mapping[str, Any]) -> RecordedTensor:
    get = value.get
    digest, file, placements = get("md5"), get("data_name"), get("placements")
    stated: Any = get("Max"), get("Min"), get("Mean"), get("Norm")
    if not _NUMBERS.issuperset(map(type, stated)):
        stated = tuple(number if type(number) in _NUMBERS else None for number in stated)
    return RecordedTensor(
        value["dtype"],
        tuple(value["shape"]),
        stated,
        digest if isinstance(digest, str) and len(digest) < 64 else "",
        file if isinstance(file, str) and is_plain_name(file) else "",
        tuple(map(_placement, placements)) if isinstance(placements, list) else (),
    )


def _placement(value: object) -> str:
    """`{"Shard": {"dim": 2}}` as `Shard(2)`, of a mesh dimension."""
    if not isinstance(value, dict) or len(value) != 1:
        return "?"
    ((kind, fields),) = value.items()
    arguments = ", ".join(str(field)[:20] for field in fields.values()) if isinstance(fields, dict) else ""
    return fit(f"{kind}({arguments})" if arguments else kind)


def is_plain_name(name: str) -> bool:
    """Whether this names a tensor file in a directory and nothing outside of it."""
    if not name.endswith((".pt", ".npy")) or _UNFIT.search(name) or "/" in name or "\\" in name:
        return False
    return len(os.fsencode(name)) <= _LONGEST_NAME


def fit(name: object) -> str:
    """A name out of a file without what cannot be printed; empty for what is no text."""
    if not isinstance(name, str):
        return ""
    return name if name.isprintable() else _UNFIT.sub("_", name)


def header_of(tensor: RecordedTensor, place: str) -> TensorHeader:
    """The header of a tensor without a file. Raises `FormatError` for a shape that no tensor can have."""
    element_type = by_name(tensor.dtype)
    byte_count(place, tensor.shape, element_type.bits)
    statistics = statistics_of(tensor)
    payload = "statistics" if tensor.digest or statistics != _NOT_COMPUTED else "description"
    return TensorHeader(element_type, tensor.shape, payload, statistics=statistics, digest=tensor.digest)


def statistics_of(tensor: RecordedTensor) -> Statistics:
    """The statistics of a tensor as they can be compared with those of other writers.

    msprobe computes mean and norm in the dtype of the tensor, so they are rounded to it, and overflow in it:
    infinite ones beside finite extremes are not known. Sums are those of float32 at best, of which the
    roundings of n terms come to about sqrt(n). Where there is a NaN, all four are NaN. The mean of a
    complex tensor is that of the moduli, which nobody else computes. One value is its own mean and norm.
    """
    element_type = by_name(tensor.dtype)
    largest, smallest, mean, norm = (None if value is None else float(value) for value in tensor.stated)
    if largest is None and smallest is None and mean is None and norm is None:
        return _NOT_COMPUTED
    extremes = [value for value in (largest, smallest) if value is not None]
    if any(map(math.isnan, extremes)):
        return Statistics(None, None, math.nan, math.nan)
    if extremes and all(map(math.isfinite, extremes)):
        mean, norm = _unless_overflown(mean), _unless_overflown(norm)
    if element_type.kind == "complex":
        mean = None
    if norm is not None:
        norm = abs(norm)
    # By how much of itself a mean or norm is off; none of whole numbers.
    unit = element_type.roundoff
    rounding = unit + math.sqrt(math.prod(tensor.shape)) * _SUMMED if unit else 0.0
    return Statistics(largest, smallest, mean, norm, rounding=rounding)


def _unless_overflown(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
