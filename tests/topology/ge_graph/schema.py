"""Fields of a GE graph: `ge_ir.proto`, read into tables; of these protobuf makes its class of a graph."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCALARS = ("string", "bytes", "int64", "float", "bool")


_BLOCK = re.compile(r"^(message|enum) (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^  (?:(repeated) )?(map<string, (\w+)>|\w+) (\w+) = (\d+);", re.MULTILINE)
_ENUM_VALUE = re.compile(r"^  (\w+) = (\d+);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `type` is a scalar's, an enum's or a message's; of a map, that of its values."""

    name: str
    number: int
    type: str
    repeated: bool = False
    map: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    messages: Mapping[str, Mapping[str, Field]]
    enums: Mapping[str, Mapping[str, int]]


@functools.cache
def schema() -> Schema:
    """The tables of `ge_ir.proto`."""
    text = Path(__file__).with_name("ge_ir.proto").read_text(encoding="utf-8")
    messages: dict[str, Mapping[str, Field]] = {}
    enums: dict[str, Mapping[str, int]] = {}
    for kind, name, body in _BLOCK.findall(text):
        if kind == "enum":
            enums[name] = {value: int(number) for value, number in _ENUM_VALUE.findall(body)}
            continue
        fields = [
            Field(field, int(number), value_type or type_, bool(repeated), bool(value_type))
            for repeated, type_, value_type, field, number in _FIELD.findall(body)
        ]
        messages[name] = {field.name: field for field in fields}
    return Schema(messages, enums)
