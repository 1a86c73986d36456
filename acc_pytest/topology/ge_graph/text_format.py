"""The protobuf text format as syntax: nested lists of fields, whatever the messages mean.

Nothing is lost and nothing is interpreted: a scalar stays the text it was written as (`literals.py`
reads it), and a field that no schema knows is kept like any other. Files of graphs are large (weights are
written into them in octal), so they are read line by line and handed over field by field.

Most lines are what protobuf's printer makes (`name: value`, `name {`, `}`) and are taken in one match; the
rest of the grammar - several fields in a line, `<` `>`, `[a, b]`, comments, strings in pieces - takes a
slower path. Format: https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from ...errors import FormatError

DEPTH = 100
"""Messages in messages; protobuf's own parsers refuse more."""

_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|' + r"'[^'\\\n]*(?:\\.[^'\\\n]*)*'"
_REGULAR = re.compile(rf"\s*(?:([A-Za-z_]\w*)(?: (\{{)|: ({_STRING}|[\w.+-]+))|(\}}))\s*", re.ASCII)
_TOKEN = re.compile(
    rf"\s+|#[^\n]*|(?P<string>{_STRING})|(?P<word>-?\s*[\w.](?:[\w.]|(?<=[eE])[+-])*)|(?P<mark>[{{}}<>\[\]:,;/-])",
    re.ASCII,
)
_MARKED = re.compile(r"\\.|[\"']")
"""Characters that a backslash stands before, and quotes."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CLOSING = {"{": "}", "<": ">"}

Value = Union[str, "Message"]


@dataclass(slots=True)
class Message:
    """Fields in the order of the file. A scalar is the text that stands there, quotes included."""

    fields: list[tuple[str, Value]] = field(default_factory=list)

    def add(self, name: str, value: Value) -> None:
        self.fields.append((name, value))


def parse(lines: Iterable[str], source: str) -> Iterator[tuple[str, Value]]:
    """The fields of the outermost message, one after the other, each complete.

    `source` is named by errors. Raises `FormatError` with the number of the line.
    """
    parser = _Parser(source)
    for line in lines:
        parser.line += 1
        if parser.done and line.lstrip()[:1] not in ("", '"', "'"):
            yield from parser.done
            parser.done.clear()
        match = None if parser.busy else _REGULAR.fullmatch(line)
        if match is None:
            parser.slow(line)
        else:
            name, opened, scalar, closed = match.groups()
            if scalar is not None:
                parser.add(name, scalar)
            elif opened:
                parser.open(name, "}")
            else:
                parser.close(closed)
    parser.finish()
    yield from parser.done


def spell(name: str, value: Value, indent: int = 0) -> Iterator[str]:
    """The lines (with their ends) of one field, as protobuf prints them."""
    space = "  " * indent
    if isinstance(value, str):
        yield f"{space}{name}: {value}\n"
        return
    yield f"{space}{name} {{\n"
    for inner, content in value.fields:
        yield from spell(inner, content, indent + 1)
    yield f"{space}}}\n"


class _Parser:
    """Messages being filled, and (slow path) what has been read of a field that is not complete."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.line = 0
        self.done: list[tuple[str, Value]] = []
        self._open: list[tuple[str, Message, str]] = []
        self._name = ""
        self._colon = False
        self._pieces: list[str] = []
        self._listed = False

    @property
    def busy(self) -> bool:
        """Whether a field was begun that the next line goes on with."""
        return bool(self._name or self._pieces)

    def open(self, name: str, closing: str) -> None:
        if len(self._open) == DEPTH:
            raise self.error(f"messages are nested more than {DEPTH} deep")
        self._open.append((name, Message(), closing))

    def close(self, mark: str) -> None:
        if not self._open or self._open[-1][2] != mark:
            raise self.error(f"{mark} closes nothing")
        name, message, _ = self._open.pop()
        self.add(name, message)

    def finish(self) -> None:
        self._end_string()
        if self._name:
            raise self.error(f"the file ends in the middle of field {shown(self._name)}")
        if self._open:
            raise self.error(f"the file ends inside {shown(self._open[0][0])} {{")

    def error(self, problem: str) -> FormatError:
        return FormatError(f"{self.source}:{self.line}: {problem}; it is truncated or not a GE graph text")

    def add(self, name: str, value: Value) -> None:
        if self._open:
            self._open[-1][1].fields.append((name, value))
        else:
            self.done.append((name, value))

    def slow(self, line: str) -> None:
        """Take a line token by token."""
        position = 0
        while position < len(line):
            match = _TOKEN.match(line, position)
            if match is None:
                raise self.error(f"{shown(line[position:].strip())} is not protobuf text")
            position = match.end()
            kind = match.lastgroup
            if kind is not None:
                self._token(kind, match.group())

    def _token(self, kind: str, text: str) -> None:
        if kind == "string" and self._name and self._colon:
            # Strings side by side are one string.
            self._pieces.append(text)
            return
        self._end_string()
        if self._name:
            self._in_field(kind, text)
        else:
            if kind == "word" and _NAME.fullmatch(text):
                self._name, self._colon = text, False
            elif kind == "string" and self._last_is_string():
                # The field was complete at the end of its line, and yet goes on.
                fields = self._open[-1][1].fields if self._open else self.done
                self._name, begun = fields.pop()
                self._colon, self._pieces = True, [str(begun), text]
            elif text in ("}", ">"):
                self.close(text)
            elif text not in (",", ";"):
                raise self.error(f"{shown(text)} is where a field should begin")

    def _in_field(self, kind: str, text: str) -> None:
        """Take what comes after the name of a field."""
        if self._listed and text in (",", "]"):
            if text == "]":
                self._name, self._listed = "", False
        elif kind == "word" and self._colon:
            self._value(re.sub(r"\s", "", text))
        elif text == ":" and not self._colon:
            self._colon = True
        elif text in _CLOSING:
            name, listed = self._name, self._listed
            if listed:
                raise self.error(f"{shown(name)} is a list of messages in brackets, which no GE graph holds")
            self._name, self._colon = "", False
            self.open(name, _CLOSING[text])
        elif text == "[" and self._colon and not self._listed:
            self._listed = True
        else:
            raise self.error(f"{shown(text)} does not belong after {shown(self._name)}")

    def _last_is_string(self) -> bool:
        fields = self._open[-1][1].fields if self._open else self.done
        return bool(fields) and isinstance(fields[-1][1], str) and fields[-1][1][0] in "\"'"

    def _value(self, lexeme: str) -> None:
        self.add(self._name, lexeme)
        if not self._listed:
            self._name, self._colon = "", False

    def _end_string(self) -> None:
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._value(_joined(pieces))


def _joined(pieces: Sequence[str]) -> str:
    quote = pieces[0][0]

    def escaped(match: re.Match[str]) -> str:
        return f"\\{quote}" if match.group() == quote else match.group()

    inner = (piece[1:-1] if piece[0] == quote else _MARKED.sub(escaped, piece[1:-1]) for piece in pieces)
    return f"{quote}{''.join(inner)}{quote}"


# Scalars of the protobuf text format: from their spelling to Python values and back.
#
# Written as protobuf's own printer writes them, so that a file read and written again keeps its bytes:
# text in UTF-8, bytes outside ASCII as three octal digits, floats with the fewest of 6 or 9 digits that
# give the same float32.


_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.)|$)", re.DOTALL
)
_PRINTED = re.compile(rb"[^\\]*(?:\\(?:[0-3][0-7]{2}|[nrt'\"\\])[^\\]*)*", re.DOTALL)
"""Escapes of protobuf's printer."""
_SIMPLE = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_SIMPLE |= {mark: mark for mark in (b"\\", b"'", b'"', b"?")}
_SPELLED = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_SPELLED |= {ord(mark): "\\" + mark for mark in "\"'\\"}
_CONTROLS = {code: f"\\{code:03o}" for code in (*range(32), 127)} | _SPELLED
_BYTES = _CONTROLS | {code: f"\\{code:03o}" for code in range(128, 256)}

_INTEGER = re.compile(r"-?\s*(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)", re.ASCII)
_FLOAT = re.compile(
    r"-?\s*(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?|inf(?:inity)?f?|nan)", re.I | re.ASCII
)
_BOOLS = {
    "true": True,
    "True": True,
    "t": True,
    "1": True,
    "false": False,
    "False": False,
    "f": False,
    "0": False,
}


def unquote(lexeme: str) -> bytes:
    """The bytes of a string, given with its quotes. Raises `ValueError`."""
    if len(lexeme) < 2 or lexeme[0] not in "\"'" or lexeme[-1] != lexeme[0]:
        raise ValueError(f"{shown(lexeme)} is not a quoted string")
    content = lexeme[1:-1].encode("utf-8", "surrogateescape")
    if _PRINTED.fullmatch(content):  # weights by the megabyte: Python's own decoder knows these escapes
        return content.decode("unicode_escape").encode("latin-1")
    return _ESCAPE.sub(_unescaped, content) if b"\\" in content else content


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short, long, simple = match.groups()
    if octal:
        return bytes((int(octal, 8) & 0xFF,))
    if hexadecimal:
        return bytes((int(hexadecimal, 16),))
    if short or long:
        code = int(short or long, 16)
        if code > 0x10FFFF:
            raise ValueError(f"\\U{code:08x} is not a character")
        return chr(code).encode("utf-8", "surrogatepass")
    if simple not in _SIMPLE:
        raise ValueError(f"{match.group().decode('ascii', 'replace')} is not an escape of protobuf")
    return _SIMPLE[simple]


def quote_text(text: str) -> str:
    """A `string` field: what is not ASCII stays as it is."""
    return f'"{text.translate(_CONTROLS)}"'


def quote_bytes(content: bytes) -> str:
    """A `bytes` field: what is not ASCII is written in octal."""
    return f'"{content.decode("latin-1").translate(_BYTES)}"'


def integer(lexeme: str) -> int:
    """A whole number: decimal, octal (leading 0) or hexadecimal. Raises `ValueError`."""
    if not _INTEGER.fullmatch(lexeme) or len(lexeme) > 25:
        raise ValueError(f"{shown(lexeme)} is not a whole number")
    digits = lexeme.lstrip("-").lstrip()
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") and digits != "0" else 10
    value = int(digits, base)
    return -value if lexeme.startswith("-") else value


def floating(lexeme: str) -> float:
    """A float32, `inf` or `nan`. Raises `ValueError`."""
    if not _FLOAT.fullmatch(lexeme):
        raise ValueError(f"{shown(lexeme)} is not a number")
    text = lexeme.replace(" ", "").lower()
    return _float32(float(text[:-1] if text.endswith("f") and not text.endswith("inf") else text))


def boolean(lexeme: str) -> bool:
    """A truth value. Raises `ValueError`."""
    if lexeme not in _BOOLS:
        raise ValueError(f"{shown(lexeme)} is neither true nor false")
    return _BOOLS[lexeme]


def spell_float(value: float) -> str:
    """A float32, as short as it can be without becoming another one."""
    if math.isnan(value):
        return "nan"
    rounded = _float32(value)
    if math.isinf(rounded):
        return "inf" if rounded > 0 else "-inf"
    short = f"{rounded:.6g}"
    return short if _float32(float(short)) == rounded else f"{rounded:.9g}"


def _float32(value: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def shown(lexeme: str) -> str:
    """A lexeme for a message, cut where it is long."""
    return lexeme if len(lexeme) <= 40 else f"{lexeme[:37]}..."


# Fields of a GE graph: `ge_ir.proto`, read into tables.
#
# The file is the one place that names fields, their numbers (the order in which they are printed) and types.
# It is small enough to be read by a few patterns, so that nobody needs protobuf to read a graph.


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


READ: Mapping[str, Callable[[str], object]] = {
    "string": lambda lexeme: unquote(lexeme).decode("utf-8", "surrogateescape"),
    "bytes": unquote,
    "int64": integer,
    "float": floating,
    "bool": boolean,
}
"""Converters of a scalar's text, by its type; each raises `ValueError`."""

SPELL: Mapping[str, Callable[..., str]] = {
    "string": quote_text,
    "bytes": quote_bytes,
    "int64": str,
    "float": spell_float,
    "bool": lambda value: "true" if value else "false",
}
"""The way back."""
