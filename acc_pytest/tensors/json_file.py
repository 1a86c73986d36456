"""Files of ours in JSON, which later versions read again: a `format`, a `version`, and the fields of a form.

Files that people keep (baselines, profiles, indexes) are refused where they are wrong. What lies beside the
tensors of a dump only makes exact what file names leave open: a part of it that is not sound counts as
absent.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from ..base.forms import WrongField, check_header, must, read, sound
from ..base.texts import NotJson, parsed
from ..errors import AccError, FormatError
from .location import on_disk
from .whole_file import whole_file

T = TypeVar("T")
LARGEST = 256 * 1024 * 1024
"""Bytes of a file that is read; 30,000 comparisons take some megabytes."""


def header(form: str, version: int = 1) -> dict[str, Any]:
    """The first fields of every file."""
    return {"format": form, "version": version}


def write_compact(path: str | os.PathLike[str], content: object) -> int:
    """Write a file as JSON in one line; returns the CRC-32 of its bytes. Raises as `write_json`."""
    data = json.dumps(content, separators=(",", ":")).encode()
    with whole_file(path) as file:
        file.write(data)
    return zlib.crc32(data)


def write_json(path: str, content: Mapping[str, Any], last: str) -> None:
    """Write an object, the entries of its field `last` sorted at the end; the file is whole or as it was.

    Raises `AccError` naming the file where the system refuses.
    """
    lines = [f"  {_line(key)}: {_several(value)}" for key, value in content.items() if key != last]
    body = ",\n".join(f"    {_line(key)}: {_line(value)}" for key, value in sorted(content[last].items()))
    lines.append(f"  {_line(last)}: {{\n{body}\n  }}" if body else f"  {_line(last)}: {{}}")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    with whole_file(path) as file:
        file.write(text.encode("ascii"))


def _several(value: Any) -> str:
    """A list or an object with one entry a line."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {_line(entry)}" for entry in value) + "\n  ]"
    if isinstance(value, dict) and any(isinstance(entry, dict) for entry in value.values()):
        return (
            "{\n" + ",\n".join(f"    {_line(key)}: {_line(entry)}" for key, entry in value.items()) + "\n  }"
        )
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def sound_file(kind: type[T], path: str, form: str) -> T | None:
    """What is sound in a file of version 1 of a format; `None` for any other file.

    Older ones call the version `schema`.
    """
    try:
        with open(on_disk(path), "rb") as file:
            data = file.read(LARGEST + 1)
        content = parsed(data) if len(data) <= LARGEST else None
    except (OSError, ValueError, AccError):
        return None
    if not isinstance(content, dict) or content.get("format") != form:
        return None
    return sound(kind, content) if content.get("version", content.get("schema")) == 1 else None


def read_form(
    kind: type[T], path: str, form: str, version: int, retired: Mapping[str, str] = MappingProxyType({})
) -> T:
    """The fields of a file whose `format` is `form` and whose version is `version`.

    `retired` has a sentence for each format of earlier releases that such a file may be taken for.

    Raises `FormatError` naming the file (and line, where JSON itself is broken) and what is wrong: also for
    a key that stands twice, as after a merge that kept both sides. `AccError` for one that cannot be read.
    """
    try:
        with open(on_disk(path), "rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise AccError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > LARGEST:
        raise FormatError(f"{path}: is larger than {LARGEST >> 20} MiB, so it is not an {form} file")
    try:
        record = parsed(content, pairs=_once, constant=_refuse)
    except NotJson as error:
        where = f"{path}:{error.line}" if error.line else path
        raise FormatError(f"{where}: is not JSON: {error.reason}") from None
    except WrongField as error:
        raise FormatError(f"{path}: {error}") from None
    record = record if type(record) is dict else {}
    if sentence := retired.get(str(record.get("format"))):
        raise FormatError(f"{path}: {sentence}")
    try:
        check_header(record, form, version)
        return read(kind, {name: value for name, value in record.items() if name not in header(form)})
    except WrongField as error:
        raise FormatError(f"{path}: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise WrongField(f"{twice!r:.200} is there twice; keep one")
    return mapping


def _refuse(name: str) -> Any:
    raise WrongField(f"the number {name} is not allowed")


# Fields that describe tensors: `None` is no tensor's.


LARGEST_NUMBER = (1 << 63) - 1
_MOST_DIMENSIONS = 64


def natural(value: object, where: str, largest: int = LARGEST_NUMBER) -> int:
    if type(value) is int and 0 <= value <= largest:
        return value
    raise must(where, f"a whole number from 0 to {largest}", value)


def finite(value: object, where: str) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and abs(value) <= LARGEST_NUMBER:
        return float(value)
    raise must(where, "a finite number", value)


def sizes(value: object, where: str) -> tuple[int, ...]:
    """A natural number for each dimension."""
    if type(value) is not list or len(value) > _MOST_DIMENSIONS:
        raise must(where, f"a list of at most {_MOST_DIMENSIONS} whole numbers", value)
    return tuple(natural(size, where) for size in value)


def shape(value: object, where: str) -> tuple[int, ...]:
    """The shape of a tensor that can exist."""
    lengths = sizes(value, where)
    natural(math.prod(length or 1 for length in lengths), where)
    return lengths


Natural = Annotated[int, natural]
Crc32 = Annotated[int, partial(natural, largest=(1 << 32) - 1)]
Finite = Annotated[float, finite]
Sizes = Annotated[tuple[int, ...], sizes]
Shape = Annotated[tuple[int, ...], shape]
