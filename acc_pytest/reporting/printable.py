"""Text from dumps made safe to show in one line: names come from files, and files from anyone."""

from __future__ import annotations

import unicodedata

_PICTURES = 0x2400
"""First of Unicode's pictures of control characters: U+2400 stands for NUL, U+241B for ESC."""
_UNSEEN = frozenset(("Cc", "Cf", "Co", "Cs", "Zl", "Zp"))
"""Categories that show nothing or steer the display: controls, bidirectional marks, surrogates, line ends."""


def printable(text: str, width: int) -> str:
    """`text` in one line of at most `width` characters, what cannot be seen replaced by what can.

    Control characters become their pictures (ESC is U+241B), other invisible ones U+FFFD; spaces of any kind
    become blanks. What is cut ends in `...`. (Only the beginning of a text of megabytes is looked at.)
    """
    cut = len(text) > width
    shown = text[:width]
    if not shown.isprintable():
        shown = "".join([_shown(one) for one in shown])
    return shown[: max(0, width - 3)] + "..." if cut else shown


def _shown(one: str) -> str:
    if " " <= one <= "~":
        return one
    if one == "\x7f":
        return "\u2421"
    if one < " ":
        return " " if one in "\t\n\r" else chr(_PICTURES + ord(one))
    if one.isspace():
        return " "
    return "\ufffd" if unicodedata.category(one) in _UNSEEN else one
