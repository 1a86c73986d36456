"""TOML files: those of users, where every mistake is one kind of error, and those of this package."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from .errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEEPEST = 64
"""Tables within tables that any file of ours needs are fewer."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. Raises `SettingsError` naming it and what is wrong."""
    try:
        with path.open("rb") as stream:
            content = tomllib.load(stream)
        _check(content)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML: {error}") from error
    except RecursionError:
        raise SettingsError(f"{path}: cannot be read as TOML: its brackets are nested too deeply") from None
    return content


def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """The tables of a file that ships inside `package`."""
    return tomllib.loads(resources.files(package).joinpath(name).read_text("utf-8"))


def _check(content: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a whole number that TOML has not, of more than 64 bits, and for deep nesting.

    Dotted keys nest tables as deep as a line is long.
    """
    todo: list[tuple[Any, int]] = [(content, 0)]
    while todo:
        value, depth = todo.pop()
        if depth > DEEPEST:
            raise ValueError(f"its tables are nested more than {DEEPEST} deep")
        if isinstance(value, Mapping):
            todo += ((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            todo += ((inner, depth + 1) for inner in value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"a whole number has more than 64 bits: {str(value)[:20]}...")
