"""Scalars of the protobuf text format: from their spelling to Python values and back.

Written as protobuf's own printer writes them, so that a file read and written again keeps its bytes:
text in UTF-8, bytes outside ASCII as three octal digits, floats with the fewest of 6 or 9 digits that
give the same float32.
"""

from __future__ import annotations

import math
import re
import struct

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
