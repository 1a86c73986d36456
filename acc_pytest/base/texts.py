"""`parsed`: JSON that a file holds, of which every way to be no JSON is one error with one reason.

Python's reader raises three kinds of errors, for bytes that are no text, for nesting beyond its stack and for
whole numbers of more than 4300 digits, and takes whole numbers that nothing else in a program takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import SettingsError

LONGEST_NUMBER = 20
"""Characters of a whole number: 64 bits have as many, with or without a sign."""
_SHOWN = 20


class NotJson(ValueError):
    """A mistake in JSON, in a few words; `line` is 0 where nobody knows it."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(f"{reason} (line {line})" if line else reason)
        self.line = line
        self.reason = reason


Pairs = Callable[[list[tuple[str, Any]]], Any]


def parsed(
    content: str | bytes, *, pairs: Pairs | None = None, constant: Callable[[str], Any] | None = None
) -> Any:
    """The value in `content`; bytes are UTF-8, with or without a byte order mark.

    `pairs` makes an object of its pairs, `constant` a value of NaN, Infinity and -Infinity. Raises `NotJson`.
    """
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg, error.lineno) from None
    except UnicodeDecodeError as error:
        raise NotJson(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise NotJson("its brackets are nested too deeply") from None


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise NotJson(f"a whole number of {len(digits.lstrip('-'))} digits, {digits[:_SHOWN]}...")
    return int(digits)


def is_index(text: str) -> bool:
    """Whether a text is a number such as positions in a list have."""
    return text.isascii() and text.isdecimal() and len(text) < 10


# TOML files: those of users, where every mistake is one kind of error, and those of this package.


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
        # Raise `ValueError` for a whole number that TOML has not, of more than 64 bits, and for deep
        # nesting. Dotted keys nest tables as deep as a line is long.
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
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML: {error}") from error
    except RecursionError:
        raise SettingsError(f"{path}: cannot be read as TOML: its brackets are nested too deeply") from None
    return content


def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """The tables of a file that ships inside `package`."""
    return tomllib.loads(resources.files(package).joinpath(name).read_text("utf-8"))
