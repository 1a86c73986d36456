"""`Reason`: a sentence as data, its English template and what fills it, which every language renders.

It is a text, so that it goes wherever a text goes: rows, CSV, JUnit, a terminal, the message of an error.
`zh.json` has a Chinese template for each English one.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import SupportsIndex, Union

Argument = Union[str, int, float]
"""A reason, a name, or a number."""
_FIELD = re.compile(r"\{[^{}]*\}")
_JOINED = re.compile(r"\{\}(; \{\})+")


class Reason(str):
    """`Reason("{} of {} choices differ", 3, 8)`: a text that keeps its template (`code`) and arguments."""

    __slots__ = ("args", "code")
    code: str
    args: tuple[Argument, ...]

    def __new__(cls, code: str, *args: object) -> Reason:
        return cls.of(code.format(*args), code, args)

    @classmethod
    def of(cls, text: str, code: str, args: Iterable[object]) -> Reason:
        """The reason with this text, which may be cut."""
        reason = super().__new__(cls, text)
        reason.code = code
        reason.args = tuple([arg if isinstance(arg, (str, int, float)) else str(arg) for arg in args])
        return reason

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return Reason.of, (str(self), self.code, self.args)

    def __add__(self, text: str) -> Reason:
        return Reason("{}{}", self, text)

    def __radd__(self, text: str) -> Reason:
        return Reason("{}{}", text, self)

    @property
    def pieces(self) -> list[str]:
        """What fills the fields of the template, as texts."""
        fields = _FIELD.findall(self.code)
        return [arg if isinstance(arg, str) else field.format(arg) for field, arg in zip(fields, self.args)]


def joined(separator: str, texts: Iterable[str]) -> str:
    """`separator.join` of texts, each of which is rendered for itself."""
    items = tuple(texts)
    return items[0] if len(items) == 1 else Reason(separator.join(["{}"] * len(items)), *items)


def code_of(text: str) -> str:
    """The template of a reason, empty for a text that is none."""
    return text.code if isinstance(text, Reason) else ""


# What a sentence says, for programs. A text that is no reason is of an earlier file, which has no templates:
# there the words are asked.


def arguments(text: str, code: str) -> tuple[Argument, ...] | None:
    """The arguments of a reason with the template `code`; `None` for another text."""
    if isinstance(text, Reason):
        return text.args if text.code == code else None
    match = _pattern(code).fullmatch(text)
    return None if match is None else match.groups()


@functools.cache
def _pattern(code: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(map(re.escape, _FIELD.split(code))), re.DOTALL)


def contains(text: str, code: str) -> bool:
    """Whether a reason, or one that it is made of, has the template `code`."""
    if isinstance(text, Reason):
        inside = (arg for arg in text.args if isinstance(arg, Reason))
        return text.code == code or any(contains(arg, code) for arg in inside)
    return all(literal in text for literal in _FIELD.split(code))


def clauses(text: str) -> list[str]:
    """The sentences that a reason joins by semicolons."""
    if isinstance(text, Reason) and _JOINED.fullmatch(text.code):
        return [clause for arg in text.args for clause in clauses(arg if isinstance(arg, str) else str(arg))]
    return [text] if isinstance(text, Reason) else text.split("; ")


def reasons_in(value: object) -> dict[str, Reason]:
    """The reasons in a value of JSON by their texts, those inside of others before them."""
    reasons: dict[str, Reason] = {}
    if isinstance(value, Reason):
        reasons = reasons_in(value.args)
        if value not in value.args:
            reasons.setdefault(str(value), value)
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            reasons |= reasons_in(item)
    return reasons


def with_reasons(value: object, reasons: Mapping[str, Reason]) -> object:
    """A value of JSON with the reasons in the place of their texts. The inverse of `reasons_in`."""
    if isinstance(value, str):
        return reasons.get(value, value)
    if isinstance(value, dict):
        return {name: with_reasons(item, reasons) for name, item in value.items()}
    return [with_reasons(item, reasons) for item in value] if isinstance(value, list) else value


JOINTS = {"; ": "；", ", ": "，", ": ": "：", " and ": "、", " or ": " 或 ", " (": "（", ")": "）"}
"""Chinese signs between the fields of a template that has no word of its own, and none in the catalogue."""
LANGUAGE = "ACC_LANG"
"""The environment variable of the language of what people read: `zh`, else English. Files stay English."""


def rendered(text: str) -> str:
    """A text in the language that people asked for."""
    return _in_chinese(text) if os.environ.get(LANGUAGE) == "zh" else text


def sentence(code: str, *args: object) -> str:
    """The sentence of a template and its arguments, rendered."""
    return rendered(Reason(code, *args))


def _in_chinese(text: str) -> str:
    if not isinstance(text, Reason):
        return chinese().get(text, text)
    template = chinese().get(text.code, "")
    if not template:
        template = _FIELD.sub("{}", text.code)
        for english, sign in JOINTS.items():
            template = template.replace(english, sign)
    return template.format(*map(_in_chinese, text.pieces))


@functools.cache
def chinese() -> Mapping[str, str]:
    """The catalogue: a Chinese template for each English one."""
    catalogue: dict[str, str] = json.loads(Path(__file__).with_name("zh.json").read_text("utf-8"))
    return catalogue
