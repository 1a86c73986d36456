r"""Text from dumps made safe to write and to show: names come from files, and files from anyone.

One escape, which `plain` reads back. It is that of bash's `$'...'`, where what is shown can be pasted:

- a backslash is `\\`, a tab `\t`, a line end `\n` or `\r`;
- `\x1b` is a control character, below 80; from `\x80` on it is a byte of a path that is not UTF-8;
- `\u202e`, `\U000e0001` is any other character that shows nothing or steers the display, or half of a pair.
"""

from __future__ import annotations

import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable

from ..errors import AccError

NAME = 300
"""Characters of one name that people are shown; what is longer is cut in its middle."""

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
