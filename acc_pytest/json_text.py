"""`parsed`: JSON that a file holds, of which every way to be no JSON is one error with one reason.

Python's reader raises three kinds of errors, for bytes that are no text, for nesting beyond its stack and for
whole numbers of more than 4300 digits, and takes whole numbers that nothing else in a program takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

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
    content: str | bytes,
    *,
    pairs: Pairs | None = None,
    constant: Callable[[str], Any] | None = None,
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
