"""The protobuf text format as syntax: nested lists of fields, whatever the messages mean.

Nothing is lost and nothing is interpreted: a scalar stays the text it was written as (`literals.py`
reads it), and a field that no schema knows is kept like any other. Files of graphs are large (weights are
written into them in octal), so they are read line by line and handed over field by field.

Most lines are what protobuf's printer makes (`name: value`, `name {`, `}`) and are taken in one match; the
rest of the grammar - several fields in a line, `<` `>`, `[a, b]`, comments, strings in pieces - takes a
slower path. Format: https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Union

from ...errors import FormatError
from .literals import shown

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
                parser.scalar(name, scalar)
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

    def scalar(self, name: str, lexeme: str) -> None:
        self._add(name, lexeme)

    def open(self, name: str, closing: str) -> None:
        if len(self._open) == DEPTH:
            raise self.error(f"messages are nested more than {DEPTH} deep")
        self._open.append((name, Message(), closing))

    def close(self, mark: str) -> None:
        if not self._open or self._open[-1][2] != mark:
            raise self.error(f"{mark} closes nothing")
        name, message, _ = self._open.pop()
        self._add(name, message)

    def finish(self) -> None:
        self._end_string()
        if self._name:
            raise self.error(f"the file ends in the middle of field {shown(self._name)}")
        if self._open:
            raise self.error(f"the file ends inside {shown(self._open[0][0])} {{")

    def error(self, problem: str) -> FormatError:
        return FormatError(f"{self.source}:{self.line}: {problem}; it is truncated or not a GE graph text")

    def _add(self, name: str, value: Value) -> None:
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
            self._between_fields(kind, text)

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

    def _between_fields(self, kind: str, text: str) -> None:
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

    def _last_is_string(self) -> bool:
        fields = self._open[-1][1].fields if self._open else self.done
        return bool(fields) and isinstance(fields[-1][1], str) and fields[-1][1][0] in "\"'"

    def _value(self, lexeme: str) -> None:
        self.scalar(self._name, lexeme)
        if not self._listed:
            self._name, self._colon = "", False

    def _end_string(self) -> None:
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._value(_joined(pieces))


def _joined(pieces: Sequence[str]) -> str:
    """Quoted strings as one, in the quotes of the first."""
    quote = pieces[0][0]

    def escaped(match: re.Match[str]) -> str:
        return f"\\{quote}" if match.group() == quote else match.group()

    inner = (piece[1:-1] if piece[0] == quote else _MARKED.sub(escaped, piece[1:-1]) for piece in pieces)
    return f"{quote}{''.join(inner)}{quote}"
