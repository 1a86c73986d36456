"""A line of ours as lines of a screen: words wrapped, paths whole where they can be, commands usable."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator

UNKNOWN = 80
"""Columns of a terminal that does not say how many it has, as pytest takes it."""
NARROWEST = 40
"""A terminal that says it has fewer columns is not believed, as pytest does not."""
LONGEST = 100
"""A word (a path) up to here stays whole on a line of its own: broken by us, it could not be copied."""
HANG = 4
TO_PASTE = "    "
"""The beginning of a line that is a piece of a file: broken, it would be none."""
_LABEL = 12
"""Columns of a label that the rest of its line is set under."""
_LABELLED = re.compile(r" *\S+ {2,}")
_WORD = re.compile(r"(\s*)(\S+)")
_FOLDS = re.compile(r"(?<=[/,;:=])")
"""Where a word too long for a line is folded: after what parts the names in it."""


_WORDS = re.compile(r"""(?:\$'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|\\.|[^ ])+""")
"""The words of a line of a shell, as they are quoted there."""


def terminal_width() -> int:
    """Columns of the terminal, 80 where that is unknown."""
    width = shutil.get_terminal_size((UNKNOWN, 24)).columns
    return width if width >= NARROWEST else UNKNOWN


def columns(text: str) -> int:
    """Columns that `text` takes: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_columns_of(character) for character in text)


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrapped(line: str, width: int) -> list[str]:
    """`line` in lines of at most `width` columns, those after the first indented.

    What follows a label (`golden  ...`) is set under it. A word that is longer than the width stays whole up
    to `LONGEST` columns; what is longer still is folded, after a slash where it has one.
    """
    if columns(line) <= width:
        return [line]
    hang = _hang(line)
    lines, current = [], ""
    for space, word in _WORD.findall(line):
        folds = columns(hang + word) > max(width, LONGEST) and columns(current + space) <= _LABEL
        if current.strip() and columns(current + space + word) > width and not folds:
            lines.append(current.rstrip())
            space, current = "", hang
        *full, last = _folded(current + space, word, max(width, LONGEST))
        current = last if not full else hang + last
        lines += [full[0], *(hang + piece for piece in full[1:])] if full else []
    return [*lines, current.rstrip()]


def _hang(line: str) -> str:
    """The beginning of the lines after the first."""
    label = _LABELLED.match(line)
    if label is not None and label.end() <= _LABEL:
        return " " * label.end()
    return " " * (len(line) - len(line.lstrip()) + HANG)


def _folded(before: str, word: str, width: int) -> list[str]:
    """`word` after `before` in pieces that each fit `width` with what stands before it (at most a hang)."""
    if columns(before + word) <= width:
        return [before + word]
    room = width - max(columns(before), _LABEL)
    pieces = [""]
    for piece in _FOLDS.split(word):
        if pieces[-1] and columns(pieces[-1] + piece) > room:
            pieces.append("")
        pieces[-1] += piece
        while columns(pieces[-1]) > room:
            cut = _cut(pieces[-1], room)
            pieces[-1:] = [pieces[-1][:cut], pieces[-1][cut:]]
    return [before + pieces[0], *pieces[1:]]


def _cut(text: str, room: int) -> int:
    """The number of characters of `text` that take at most `room` columns, at least one."""
    width = 0
    for place, character in enumerate(text):
        width += _columns_of(character)
        if width > room:
            return max(1, place)
    return len(text)


def wrapped_command(line: str, width: int) -> list[str]:
    """A command of a POSIX shell in lines that each end in a backslash, so that it can be copied whole.

    A word longer than the width stays whole.
    """
    if columns(line) <= width:
        return [line]
    lines = [""]
    for word in _WORDS.findall(line):
        if lines[-1] and columns(f"{lines[-1]} {word} \\") > width:
            lines[-1] += " \\"
            lines.append(" " * HANG + word)
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines


def on_screen(lines: Iterable[str], width: int | None = None) -> Iterator[str]:
    """All the lines wrapped, by default to the terminal; but not what is to be pasted (`TO_PASTE`)."""
    for line in lines:
        yield from [line] if line.startswith(TO_PASTE) else wrapped(line, width or terminal_width())


def paragraph(text: str, before: str = "", width: int | None = None) -> str:
    """`text` wrapped for where `before` stands in front of it already."""
    if columns(before) > (width or terminal_width()) - _LABEL:
        return "\n".join(("", *on_screen([" " * (HANG - 1) + text], width)))
    lines = "\n".join(on_screen(f"{before}{text}".split("\n"), width))
    return lines[len(before) :] if lines.startswith(before) else lines[len(before.rstrip()) :]


def near(path: str) -> str:
    """`path` from the working directory where it lies below it, else as it is."""
    base = os.path.join(os.getcwd(), "")
    return path[len(base) :] if path.startswith(base) else path
