"""Files that are read again by later versions: JSON, sorted, one entry a line, checked when read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..base.texts import NotJson, parsed
from ..errors import AccError, FormatError
from .location import on_disk
from .whole_file import whole_file

LARGEST = 256 * 1024 * 1024
"""Bytes of a file that is read; 30,000 comparisons take some megabytes."""


def write_json(path: str, head: Mapping[str, Any], name: str, entries: Iterable[tuple[str, Any]]) -> None:
    """Write `head` and, under `name`, the entries sorted by key; the file is whole or as it was before.

    Raises `AccError` naming the file where the system refuses.
    """
    lines = [f"  {_line(key)}: {_several(value)}" for key, value in head.items()]
    body = ",\n".join(f"    {_line(key)}: {_line(value)}" for key, value in sorted(entries))
    lines.append(f"  {_line(name)}: {{\n{body}\n  }}" if body else f"  {_line(name)}: {{}}")
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


def read_json(
    path: str, form: str, version: int, retired: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The object in a file whose `format` is `form` and whose version is `version`.

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
    except _Wrong as error:
        raise FormatError(f"{path}: {error}") from None
    if type(record) is not dict or record.get("format") != form:
        sentence = retired.get(str(record.get("format"))) if type(record) is dict else None
        raise FormatError(f"{path}: {sentence or f'is not an {form} file'}")
    if record.get("version") != version:
        raise FormatError(
            f"{path}: has version {record.get('version')!r:.100}, but this acc-pytest reads version {version}"
        )
    return record


class _Wrong(ValueError):
    """A fault that JSON allows and these files do not."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _Wrong(f"{twice!r:.200} is there twice; keep one")
    return mapping


def _refuse(name: str) -> Any:
    raise _Wrong(f"the number {name} is not allowed")


def texts_of(path: str, value: object, where: str) -> dict[str, str]:
    """An object of texts. Raises `FormatError`."""
    if type(value) is not dict or not all(type(text) is str for text in value.values()):
        raise FormatError(f"{path}: {where} must be an object of strings, got {value!r:.100}")
    return value
