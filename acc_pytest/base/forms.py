"""Forms of our files: values of JSON as frozen dataclasses or named tuples, and back.

    read(Change, value, "history")    an object of the form; raises `WrongField` naming the field
    sound(Change, value)              its sound parts only, `None` for what is not sound as a whole
    written(change)                   the value again, without fields that are as they are by default

The hints of the fields say what each must be. A field with a default may be absent. Checks of a domain are
`Annotated[type, reader]`, where the reader takes a value and the name of its field, as those here do. An
`int` is whole and >= 0, an `int` or `float` is no truth value.

JSON knows no NaN and no infinity: in place of a number they are the texts `NaN`, `Infinity`, `-Infinity`. A
text that would read like one of these, where a number may stand too, gets an apostrophe in front.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Scalar = Union[None, bool, int, float, str]
Reader = Callable[[object, str], Any]
Writer = Callable[[Any], Any]
T = TypeVar("T")

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PLAIN = frozenset((bool, int, float, NoneType))
"""Types that JSON itself says without ambiguity."""
LARGEST_WHOLE = (1 << 53) - 1
"""The largest integer that every reader of JSON holds, the page's script too (RFC 8259, section 6)."""


class WrongField(ValueError):
    """A field is not what it must be; the message names the field."""


def check_header(record: Mapping[str, Any], form: str, version: int, remedy: str = "") -> None:
    """Raise `WrongField` for what is not of this `format` and `version`, the first fields of every file."""
    if record.get("format") != form:
        raise WrongField(f"is not an {form} file{remedy}")
    if record.get("version") != version:
        stated = repr(record.get("version"))
        raise WrongField(f"has version {stated:.100}, but this acc-pytest reads version {version}{remedy}")


def must(where: str, what: str, value: object) -> WrongField:
    """The error for a field: `{where} must be {what}, got {value}`."""
    return WrongField(f"{where} must be {what}, got {value!r:.100}")


def read(kind: type[T], value: object, where: str = "", exact: bool = True) -> T:
    """An object of the form `kind`. Raises `WrongField`, if `exact` also for fields that the form has not."""
    return reader_of(kind, "exact" if exact else "open")(value, where)  # type: ignore[no-any-return,arg-type]


def sound(kind: type[T], value: object) -> T | None:
    """An object of what is sound in a value; `None` where a field without a default is not.

    What is unsound counts as absent: a field, an element of a list, an entry of a mapping.
    """
    try:
        return reader_of(kind, "sound")(value, "")  # type: ignore[no-any-return,arg-type]
    except WrongField:
        return None


def written(value: Any, *, full: bool = False) -> dict[str, Any]:
    """An object as JSON has it; `full`: also the fields that are as they are by default."""
    return _writer(type(value), full)(value)  # type: ignore[no-any-return,misc,arg-type]


def text(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    raise must(where, "a string", value)


def flag(value: object, where: str) -> bool:
    if type(value) is bool:
        return value
    raise must(where, "true or false", value)


def whole_number(value: object, where: str) -> int:
    if type(value) is int and 0 <= value <= LARGEST_WHOLE:
        return value
    raise must(where, f"a whole number from 0 to {LARGEST_WHOLE}", value)


def number(value: object, where: str) -> float:
    if type(value) in (int, float):
        return value  # type: ignore[return-value]
    if type(value) is str and value in _WORDS:
        return _WORDS[value]
    raise must(where, "a number", value)


def scalar(value: object, where: str) -> Scalar:
    if isinstance(value, str):
        if value in _WORDS:
            return _WORDS[value]
        return value[1:] if value[:1] == "'" and value.lstrip("'") in _WORDS else value
    if type(value) in _PLAIN:
        return value  # type: ignore[return-value]
    raise must(where, "a number, a string, true, false or null", value)


def pack_number(value: Any) -> Any:
    """A number as JSON has it."""
    if type(value) is not float or math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def pack_scalar(value: Scalar) -> Scalar:
    """A value that may be a number or a text, as JSON has it."""
    return "'" + value if type(value) is str and value.lstrip("'") in _WORDS else pack_number(value)


_READERS: dict[Any, Reader] = {
    str: text,
    bool: flag,
    int: whole_number,
    float: number,
    Scalar: scalar,
    object: lambda value, _: value,
    Any: lambda value, _: value,
}
_WRITERS: dict[Any, Writer] = {float: pack_number, float | None: pack_number, Scalar: pack_scalar}


@functools.cache
def reader_of(hint: Any, mode: Literal["exact", "open", "sound"]) -> Reader:
    """The reader of what a hint says; of an `exact` form, one with further fields, or of what is sound."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in _READERS:
        return _READERS[hint]
    if origin is Annotated:
        return args[1]  # type: ignore[no-any-return]
    if origin is Literal:
        return functools.partial(_choice, args)
    if origin in (Union, UnionType):
        (inner,) = (reader_of(arg, mode) for arg in args if arg is not NoneType)
        return lambda value, where: None if value is None else inner(value, where)
    if origin in (tuple, list):
        return functools.partial(_listed, origin, reader_of(args[0], mode), mode == "sound")
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return functools.partial(_mapping, reader_of(args[1], mode), args[1] == Scalar, mode == "sound")
    return _object_reader(hint, mode)


def _choice(choices: tuple[Any, ...], value: object, where: str) -> Any:
    if type(value) is str and value in choices:
        return value
    raise must(where, " or ".join(choices), value)


def _listed(kind: Callable[..., Any], inner: Reader, lenient: bool, value: object, where: str) -> Any:
    if type(value) is not list:
        raise must(where, "a list", value)
    if lenient:
        return kind(item for _, item in _sound_items(enumerate(value), inner))
    return kind([inner(item, where) for item in value])


def _mapping(inner: Reader, scalars: bool, lenient: bool, value: object, where: str) -> Any:
    if type(value) is not dict:
        raise must(where, "an object", value)
    if scalars and _PLAIN.issuperset(map(type, value.values())):
        return value  # most mappings hold numbers only, and there are four of them in a row
    if lenient:
        return dict(_sound_items(value.items(), inner))
    return {name: inner(item, f"{where}.{name:.100}") for name, item in value.items()}


def _sound_items(items: Any, inner: Reader) -> Iterator[tuple[Any, Any]]:
    for name, item in items:
        try:
            yield name, inner(item, "")
        except WrongField:
            continue


def _object_reader(kind: Any, mode: Literal["exact", "open", "sound"]) -> Reader:
    neutral = dict(_neutral(kind))
    readers = {name: reader_of(hint, mode) for name, hint in _hints(kind).items() if name in neutral}
    needed = {name for name, default in neutral.items() if default is MISSING}

    def read_object(value: object, where: str) -> Any:
        if type(value) is not dict:
            raise must(where or "it", "an object", value)
        values: dict[str, Any] = {}
        for name, content in value.items():
            if name in readers:
                try:
                    values[name] = readers[name](content, name)
                except WrongField as error:
                    if mode != "sound":
                        raise WrongField(f"{where}.{error}" if where else str(error)) from None
            elif mode == "exact":
                raise WrongField(f"{where} has an unknown field {name!r:.100}".removeprefix(" has an "))
        if lacking := needed - values.keys():
            raise WrongField(f"{where or 'it'} lacks {min(lacking)}")
        return kind(**values)

    return read_object


def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _neutral(kind: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a form by name, and what they are by default."""
    if not is_dataclass(kind):
        yield from ((name, kind._field_defaults.get(name, MISSING)) for name in kind._fields)
        return
    for field in fields(kind):
        factory = field.default_factory
        yield field.name, field.default if factory is MISSING else factory()


@functools.cache
def _writer(hint: Any, full: bool) -> Writer | None:
    """What writes a value of a hint; `None` where JSON has it as it is."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in _WRITERS or hint in _READERS:
        return _WRITERS.get(hint)
    if origin is Annotated:
        return _writer(args[0], full)
    if origin in (Union, UnionType):
        (inner,) = (_writer(arg, full) for arg in args if arg is not NoneType)
        return inner and (lambda value: None if value is None else inner(value))
    if origin in (tuple, list):
        item = _writer(args[0], full)
        return list if item is None else lambda value: list(map(item, value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        entry = _writer(args[1], full)
        return dict if entry is None else lambda value: {name: entry(item) for name, item in value.items()}
    if origin is Literal:
        return None
    hints = _hints(hint)
    table = [(name, default, _writer(hints[name], full)) for name, default in _neutral(hint)]

    def write_object(value: Any) -> dict[str, Any]:
        record = {}
        for name, default, write in table:
            content = getattr(value, name)
            if full or default is MISSING or content != default:
                record[name] = content if write is None else write(content)
        return record

    return write_object
