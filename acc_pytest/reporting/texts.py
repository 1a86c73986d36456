r"""Text from dumps made safe to write and to show: names come from files, and files from anyone.

One escape, which `plain` reads back. It is that of bash's `$'...'`, where what is shown can be pasted:

- a backslash is `\\`, a tab `\t`, a line end `\n` or `\r`;
- `\x1b` is a control character, below 80; from `\x80` on it is a byte of a path that is not UTF-8;
- `\u202e`, `\U000e0001` is any other character that shows nothing or steers the display, or half of a pair.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator

from ..base.reason import Reason, rendered
from ..errors import AccError

NAME = 300
"""Characters of one name that people are shown; what is longer is cut in its middle."""

REASON = 2000
"""Characters of why a test is skipped or may fail: names in it come from files."""
_UNSEEN = frozenset(("Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"))
"""Categories that show nothing or steer the display: controls, bidirectional marks, surrogates, line ends."""
_SHORT = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_BYTES = range(0xDC80, 0xDD00)
"""Characters that `os.fsdecode` makes of bytes that are not UTF-8: the value above U+DC00."""
_ESCAPE = re.compile(r"\\(?:([\\tnr])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_LETTERS = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}
_LINE, _PATH = 4000, 1000
"""Characters of a message, and of a path in it."""
_LEAST_NAME = 80
"""Characters of a word that is left whole in a short line too."""
_LEAST = 4
"""Characters that are kept on each side of a cut that says how much it leaves out."""


def escaped(text: str) -> str:
    """`text` whole, in one line of characters that can be seen and written in any Unicode encoding."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join([_escape(character) for character in text])


def plain(text: str) -> str:
    """The text that `escaped` escaped. A backslash that begins no escape stands for itself."""
    return _ESCAPE.sub(_read, text)


def printable(text: str, width: int, name: int = NAME) -> str:
    """`text` escaped and cut (`_printable`); a reason stays one, for other languages."""
    if isinstance(text, Reason):
        args = [printable(arg, width, name) if isinstance(arg, str) else arg for arg in text.args]
        return Reason.of(_printable(str(text), width, name), text.code, args)
    return _printable(text, width, name)


def _printable(text: str, width: int, name: int) -> str:
    """`text` escaped, in at most `width` characters, and no name in it in more than `name`, nor half of them.

    A word that is too long is cut in its middle, and says how many characters it leaves out, for what is told
    of it comes after it; a sentence is cut at its end. (Of what is cut only the ends are looked at.)
    """
    if " " not in text:
        return escaped(shortened(text, width))
    longest = min(name, max(width // 2, _LEAST_NAME))
    if len(text) > longest:
        text = " ".join(
            [shortened(word, longest) if len(word) > longest else word for word in text.split(" ")]
        )
    if len(text) <= width and len(safe := escaped(text)) <= width:
        return safe
    return escaped(_beginning(text, max(0, width - 3))) + "..."[:width]


def message(text: str) -> str:
    """A sentence, or a line, which may name files by their whole paths."""
    return printable(text, _LINE, _PATH)


def error_text(error: AccError, before: str = "") -> str:
    """An error and what it lists, each in a line of its own; `before` begins the first."""
    return "\n".join([message(f"{'' if place else before}{line}") for place, line in enumerate(error.lines)])


def quoted(word: str) -> str:
    """`word` for a line of bash, ksh or zsh (and any POSIX shell where it holds nothing unseen)."""
    safe = escaped(word)
    if safe.count("\\") == 2 * word.count("\\"):
        return shlex.quote(word)
    return "$'" + safe.replace("'", "\\'") + "'"


def shell(arguments: Iterable[str]) -> str:
    """The words as one line that a shell splits into the same words."""
    return " ".join(map(quoted, arguments))


def shortened(text: str, width: int) -> str:
    """`text` cut in its middle, so that it has at most `width` characters when it is escaped later."""
    if len(text) <= width and len(escaped(text)) <= width:
        return text
    room = width - len(_left_out(len(text)))
    if room < 2 * _LEAST:
        return _beginning(text, max(0, width - 3)) + "..."[:width]
    first, last = _beginning(text, room - room // 2), _end(text, room // 2)
    return first + _left_out(len(text) - len(first) - len(last)) + last


def _left_out(count: int) -> str:
    return f"[...{count:,} characters...]"


def _beginning(text: str, room: int) -> str:
    used = 0
    for place, character in enumerate(text):
        used += len(_escape(character))
        if used > room:
            return text[:place]
    return text


def _end(text: str, room: int) -> str:
    used = 0
    for place in range(len(text) - 1, -1, -1):
        used += len(_escape(text[place]))
        if used > room:
            return text[place + 1 :]
    return text


def _escape(character: str) -> str:
    if " " <= character <= "~":
        return "\\\\" if character == "\\" else character
    if character in _SHORT:
        return _SHORT[character]
    number = ord(character)
    if number < 0x80:
        return f"\\x{number:02x}"
    if number in _BYTES:
        return f"\\x{number - 0xDC00:02x}"
    # U+FFFE and its like are no characters, and XML has no place for them.
    if unicodedata.category(character) not in _UNSEEN and number & 0xFFFE != 0xFFFE:
        return character
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _read(match: re.Match[str]) -> str:
    letter, byte, *numbers = match.groups()
    if letter:
        return _LETTERS[letter]
    if byte:
        number = int(byte, 16)
        return chr(number if number < 0x80 else number + 0xDC00)
    number = int(numbers[0] or numbers[1], 16)
    return chr(number) if number <= sys.maxunicode else match[0]


# A line of ours as lines of a screen: words wrapped, paths whole where they can be, commands usable.


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
    # The beginning of the lines after the first.
    label = _LABELLED.match(line)
    hang = " " * (len(line) - len(line.lstrip()) + HANG)
    if label is not None and label.end() <= _LABEL:
        hang = " " * label.end()
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
        yield from [line] if line.startswith(TO_PASTE) else wrapped(rendered(line), width or terminal_width())


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
