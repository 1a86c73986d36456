"""Kinds of fields of JSON records: how a value is written, and how it is read and checked.

JSON knows no NaN and no infinity: in place of a number they are the texts `NaN`, `Infinity`, `-Infinity`.
A text that would read like one of these, where both may stand, gets an apostrophe in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from .row import Scalar

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PLAIN = frozenset((bool, int, float, type(None)))
"""Types that JSON itself says without ambiguity."""
_LARGEST_WHOLE = (1 << 53) - 1
"""The largest integer that every reader of JSON holds, the page's script too (RFC 8259, section 6)."""


class WrongField(ValueError):
    """A field of a record is not what it must be; the message names the field."""


def pack_scalar(value: Scalar) -> Scalar:
    """A value that may be a number or a text."""
    if type(value) is float:
        return value if math.isfinite(value) else _word(value)
    if type(value) is str and value.lstrip("'") in _WORDS:
        return "'" + value
    return value


def unpack_scalar(value: object, where: str) -> Scalar:
    """The scalar that `pack_scalar` packed. Raises `WrongField` for lists and objects."""
    if type(value) is str:
        if value in _WORDS:
            return _WORDS[value]
        return value[1:] if value[:1] == "'" and value.lstrip("'") in _WORDS else value
    if value is None or type(value) in (bool, int, float):
        return value  # type: ignore[return-value]
    raise WrongField(f"{where} must be a number, a string, true, false or null, got {value!r:.100}")


def _word(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def as_is(value: Any) -> Any:
    return value


def text(value: object, where: str) -> str:
    if type(value) is not str:
        raise WrongField(f"{where} must be a string, got {value!r:.100}")
    return value


def flag(value: object, where: str) -> bool:
    if type(value) is not bool:
        raise WrongField(f"{where} must be true or false, got {value!r:.100}")
    return value


def whole_number(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_WHOLE:
        raise WrongField(f"{where} must be a whole number from 0 to {_LARGEST_WHOLE}, got {value!r:.100}")
    return value


def whole_number_or_none(value: object, where: str) -> int | None:
    return None if value is None else whole_number(value, where)


def number_or_none(value: object, where: str) -> float | None:
    if value is None or type(value) in (int, float):
        return value  # type: ignore[return-value]
    if type(value) is str and value in _WORDS:
        return _WORDS[value]
    raise WrongField(f"{where} must be a number, got {value!r:.100}")


def number(value: object, where: str) -> float:
    read = number_or_none(value, where)
    if read is None:
        raise WrongField(f"{where} must be a number, got null")
    return read


def pack_number(value: Any) -> Any:
    return _word(value) if type(value) is float and not math.isfinite(value) else value


def pack_mapping(value: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: pack_scalar(scalar) for name, scalar in value.items()}


def mapping(value: object, where: str) -> dict[str, Scalar]:
    if type(value) is not dict:
        raise WrongField(f"{where} must be an object, got {value!r:.100}")
    if _PLAIN.issuperset(map(type, value.values())):
        return value  # most mappings hold numbers only, and there are four of them in a row
    return {name: unpack_scalar(item, f"{where}.{name:.100}") for name, item in value.items()}


def list_of(unpack_item: Callable[[object, str], Any]) -> Callable[[object, str], list[Any]]:
    def unpack(value: object, where: str) -> list[Any]:
        if type(value) is not list:
            raise WrongField(f"{where} must be a list, got {value!r:.100}")
        return [unpack_item(item, where) for item in value]

    return unpack


def tuple_of(unpack_item: Callable[[object, str], Any]) -> Callable[[object, str], tuple[Any, ...]]:
    listed = list_of(unpack_item)
    return lambda value, where: tuple(listed(value, where))


Field = tuple[str, Any, Callable[[Any], Any], Callable[[object, str], Any]]
"""The name of a field, its neutral value (`MISSING`: none), how it is written, how it is read."""


def record_fields(kind: type, special: Mapping[str, tuple[Any, Any]]) -> tuple[Field, ...]:
    """The fields of a dataclass or a named tuple; those that are not in `special` are texts."""
    return tuple((name, default, *special.get(name, (as_is, text))) for name, default in _neutral(kind))


def _neutral(kind: type) -> Iterator[tuple[str, Any]]:
    """The fields of `kind` by name, and their neutral values."""
    if not is_dataclass(kind):
        yield from ((name, kind._field_defaults.get(name, MISSING)) for name in kind._fields)  # type: ignore[attr-defined]
        return
    for field in fields(kind):
        factory = field.default_factory
        yield field.name, field.default if factory is MISSING else factory()


def packer(table: tuple[Field, ...]) -> Callable[[Any], dict[str, Any]]:
    def pack_(value: Any) -> dict[str, Any]:
        record = {}
        for name, default, pack, _ in table:
            content = getattr(value, name)
            if default is MISSING or content != default:
                record[name] = pack(content)
        return record

    return pack_


def unpacker(kind: type, table: tuple[Field, ...]) -> Callable[[object, str], Any]:
    unpackers = {name: unpack for name, _, _, unpack in table}
    needed = {name for name, default, _, _ in table if default is MISSING}

    def unpack_(value: object, where: str) -> Any:
        if type(value) is not dict:
            raise WrongField(f"{where} must be an object, got {value!r:.100}")
        if not needed <= value.keys():
            raise WrongField(f"{where} lacks {min(needed - value.keys())}")
        try:
            return kind(**{name: unpackers[name](content, name) for name, content in value.items()})
        except KeyError as error:
            raise WrongField(f"{where} has an unknown field {error.args[0]!r:.100}") from None
        except WrongField as error:
            raise WrongField(f"{where}.{error}") from None

    return unpack_


NUMBER = (pack_number, number)
NUMBER_OR_NONE = (pack_number, number_or_none)
WHOLE_OR_NONE = (as_is, whole_number_or_none)
FLAG = (as_is, flag)
SCALAR = (pack_scalar, unpack_scalar)
MAPPING = (pack_mapping, mapping)
TEXTS = (list, tuple_of(text))
WHOLES = (list, tuple_of(whole_number))
"""How a field of each kind is written and read."""
