"""Parameters of operators: ATB's JSON keys, their types, defaults and allowed values.

A schema maps each key to a `Key` (or, for a nested struct, to another schema). `read` turns the JSON of
a dump into a complete mapping: missing keys take ATB's defaults, unknown keys and values of the wrong
type or outside an enumeration are errors that name the operator, the key and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from ..errors import OperatorError

Param = Mapping[str, Any]
_Reader = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One key: `kind` is `int`, `float`, `bool`, `str`, `ints` or `floats`.

    `allowed` lists the values of an enumeration with their meaning, empty for a free value. `alias` is
    another spelling (ATB's own CSV tests rename some keys).
    """

    kind: str
    default: Any
    allowed: Mapping[Any, str] | None = None
    alias: str = ""


Schema = Mapping[str, Union[Key, "Schema"]]


def integer(default: int = 0, alias: str = "") -> Key:
    """Any whole number."""
    return Key("int", default, alias=alias)


def choice(default: int, *names: str, start: int = 0, extra: Mapping[int, str] | None = None) -> Key:
    """An enumeration printed as a number: `names` count from `start`, `extra` adds values out of line."""
    values = {start + i: name for i, name in enumerate(names)}
    return Key("int", default, {**values, **(extra or {})})


def number(default: float = 0.0, alias: str = "") -> Key:
    """A float; ATB prints float32 widened to double."""
    return Key("float", default, alias=alias)


def flag(default: bool = False, alias: str = "") -> Key:
    """A truth value; 0 and 1 are taken too."""
    return Key("bool", default, alias=alias)


def text(default: str = "", *names: str) -> Key:
    """A string, of `names` when any are given."""
    return Key("str", default, {name: name for name in names} or None)


def integers(*default: int, alias: str = "") -> Key:
    """A list of whole numbers."""
    return Key("ints", tuple(default), alias=alias)


def floats(*default: float) -> Key:
    """A list of floats."""
    return Key("floats", tuple(default))


DATA_TYPE: Mapping[int, str] = {
    -1: "that of the input",
    0: "float32",
    1: "float16",
    2: "int8",
    3: "int32",
    4: "uint8",
    9: "int64",
    12: "bool",
    27: "bfloat16",
    34: "hifloat8",
    35: "float8_e5m2",
    36: "float8_e4m3fn",
}
"""The numbers that `outDataType` and `outTensorType` take."""


def data_type(default: int = -1, alias: str = "") -> Key:
    """A dtype by its ACL number."""
    return Key("int", default, DATA_TYPE, alias)


COMMUNICATION: Schema = {
    "rank": integer(),
    "rankSize": integer(),
    "rankRoot": integer(),
    "backend": text("hccl", "hccl", "lccl", "lcoc", "mc2"),
    "commMode": choice(0, "several processes", "several threads", start=0),
    "rankTableFile": text(),
    "commDomain": text(),
    "hcclComm": Key("any", 0),
}
"""The parameters of every operator between ranks."""


def read(operator: str, schema: Schema, param: Param) -> dict[str, Any]:
    """`param` checked against `schema` and completed with defaults. Raises `OperatorError`."""
    return _read(operator, schema, param, "")


def _read(operator: str, schema: Schema, param: Param, prefix: str) -> dict[str, Any]:
    aliases = {key.alias: name for name, key in schema.items() if isinstance(key, Key) and key.alias}
    values: dict[str, Any] = {}
    for name, value in param.items():
        schema_name = aliases.get(name, name)
        if schema_name not in schema:
            raise OperatorError(
                f"{operator}: unknown parameter {prefix}{name}{_near(name, schema)}; "
                f"known: {', '.join(sorted(schema)) or 'none'}"
            )
        values[schema_name] = value
    result: dict[str, Any] = {}
    for name, key in schema.items():
        if not isinstance(key, Key):
            inner = values.get(name)
            if inner is not None and not isinstance(inner, Mapping):
                raise OperatorError(
                    f"{operator}: parameter {prefix}{name} must be a struct, got {inner!r:.100}"
                )
            result[name] = _read(operator, key, inner or {}, f"{prefix}{name}.")
        elif name in values:
            result[name] = _value(operator, prefix + name, key, values[name])
        else:
            result[name] = key.default
    return result


def _value(operator: str, name: str, key: Key, value: Any) -> Any:
    called, reader = _KINDS[key.kind]
    checked = reader(value)
    if checked is None:
        raise OperatorError(f"{operator}: parameter {name} must be {called}, got {value!r:.100}")
    if key.allowed is not None and checked not in key.allowed:
        allowed = ", ".join(f"{v}" if v == m else f"{v} ({m})" for v, m in key.allowed.items())
        raise OperatorError(f"{operator}: parameter {name} must be one of {allowed}, got {value!r:.100}")
    return checked


def _any(value: Any) -> Any:
    return 0 if value is None else value


def _integer(value: Any) -> int | None:
    """ATB's own parameters have 64 bits at most."""
    fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value if fits else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, float) or _integer(value) is not None else None


def _truth(value: Any) -> bool | None:
    return bool(value) if isinstance(value, bool) or value in (0, 1) else None


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _list_of(read_item: _Reader) -> _Reader:
    def read_list(value: Any) -> tuple[Any, ...] | None:
        if not isinstance(value, (list, tuple)):
            return None
        items = [read_item(item) for item in value]
        return None if None in items else tuple(items)

    return read_list


_KINDS: Mapping[str, tuple[str, _Reader]] = {
    "int": ("a whole number of 64 bits", _integer),
    "float": ("a number", _float),
    "bool": ("true or false", _truth),
    "str": ("a string", _string),
    "ints": ("a list of whole numbers", _list_of(_integer)),
    "floats": ("a list of numbers", _list_of(_float)),
    "any": ("a value", _any),
}
"""The name of each kind, and a function that converts a value to its Python type, or gives `None`."""


def _near(name: str, schema: Schema) -> str:
    close = difflib.get_close_matches(name, list(schema), 1)
    return f" (did you mean {close[0]}?)" if close else ""
