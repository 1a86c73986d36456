"""The lock as a file: a line for each comparison, which names its thresholds by a hash of them.

Comparisons of one kind share their thresholds, so that 30,000 of them take two or three megabytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..errors import FormatError
from ..judging.nominal_bounds import NominalBound
from ..tensors.json_file import read_json, texts_of, write_json
from .lock import Bounds, Change, Lock

FORMAT = "acc-pytest lock"
VERSION = 1
LENGTH = 12
"""Hexadecimal digits of a hash: a collision among a million kinds has a chance of 0.002."""


def read_lock(path: str) -> Lock:
    """The lock in a file. Raises `FormatError` naming the file and what is wrong, else `AccError`."""
    content = read_json(path, FORMAT, VERSION)
    bounds = content.get("bounds")
    if type(bounds) is not dict:
        raise FormatError(f"{path}: bounds must be an object, got {bounds!r:.100}")
    kinds = {name: _bounds(path, name, texts) for name, texts in bounds.items()}
    tests = texts_of(path, content.get("tests"), "tests")
    for key, kind in tests.items():
        if kind not in kinds:
            raise FormatError(
                f"{path}: {key!r:.200} refers to bounds {kind!r:.100}, which the file does not have"
            )
    return Lock(
        path, _history(path, content.get("history")), {key: kinds[kind] for key, kind in tests.items()}
    )


def write_lock(path: str, history: tuple[Change, ...], tests: Mapping[str, Bounds]) -> None:
    """Write a lock, atomically. Raises `AccError` where the system refuses."""
    names: dict[str, str] = {}
    bounds: dict[str, dict[str, str]] = {}
    for key, bounds_of_test in tests.items():
        texts = {metric: str(bound) for metric, bound in sorted(bounds_of_test.items())}
        names[key] = name = _hash(texts)
        bounds[name] = texts
    changes = [{"date": change.date, "user": change.user, "reason": change.reason} for change in history]
    head = {"format": FORMAT, "version": VERSION, "history": changes, "bounds": dict(sorted(bounds.items()))}
    write_json(path, head, "tests", names.items())


def _hash(texts: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:LENGTH]


def _bounds(path: str, name: str, value: object) -> Bounds:
    texts = texts_of(path, value, f"bounds.{name:.100}")
    if _hash(texts) != name:
        raise FormatError(
            f"{path}: bounds {name:.100} were edited; change thresholds where they are set and "
            "update the lock with --acc-update-lock REASON"
        )
    try:
        return {metric: NominalBound.parse(text) for metric, text in texts.items()}
    except ValueError as error:
        raise FormatError(f"{path}: bounds {name:.100}: {error}") from None


def _history(path: str, value: Any) -> tuple[Change, ...]:
    if type(value) is not list:
        raise FormatError(f"{path}: history must be a list, got {value!r:.100}")
    changes = []
    for entry in value:
        texts = texts_of(path, entry, "an entry of history")
        if texts.keys() != {"date", "user", "reason"}:
            raise FormatError(
                f"{path}: an entry of history must have date, user and reason, got {sorted(texts)}"
            )
        changes.append(Change(**texts))
    return tuple(changes)
