"""Mutations of bytes: flips, cuts, splices, and numbers of the widths that headers have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

Contents = Sequence[bytes]
Mutate = Callable[[Random, bytes, Contents], bytes]
"""Draws, the file's content, and the contents of other sound files of the format; returns the mutated one."""

_EDGES = (0, 1, 2, 7, 127, 128, 255, 256, 32767, 32768, 65535, 1 << 20, 1 << 24, (1 << 31) - 1, 1 << 31)
_WIDE = ((1 << 32) - 1, 1 << 32, 1 << 40, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_HEADER = 512
"""Where most formats say what follows; half of all changes are made there."""


def mutated(random: Random, content: bytes, others: Contents) -> bytes:
    """The bytes with one to four changes."""
    for _ in range(random.choice((1, 1, 2, 4))):
        content = _OPERATIONS[random.randrange(len(_OPERATIONS))](random, content, others)
    return content


def place(random: Random, content: bytes) -> int:
    """A place in the bytes, in every second case among the first or the last of them."""
    if not content or random.random() < 0.5:
        return random.randrange(len(content) + 1)
    near = random.randrange(min(_HEADER, len(content)))
    return near if random.random() < 0.7 else len(content) - 1 - near


def edge(random: Random, width: int) -> bytes:
    """A number at the edge of what `width` bytes hold, little-endian."""
    value = random.choice(_EDGES + (_WIDE if width == 8 else ((1 << 32) - 1,)))
    return (value % (1 << 8 * width)).to_bytes(width, "little")


def _flip(random: Random, content: bytes, _others: Contents) -> bytes:
    at = min(place(random, content), len(content) - 1)
    return (
        content
        if at < 0
        else content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]
    )


def _set(random: Random, content: bytes, _others: Contents) -> bytes:
    at = place(random, content)
    return content[:at] + random.randbytes(random.choice((1, 1, 2, 8))) + content[at + 1 :]


def _number(random: Random, content: bytes, _others: Contents) -> bytes:
    width = random.choice((1, 2, 4, 4, 8))
    at = place(random, content)
    return content[:at] + edge(random, width) + content[at + width :]


def _cut(random: Random, content: bytes, _others: Contents) -> bytes:
    return content[: place(random, content)]


def _without(random: Random, content: bytes, _others: Contents) -> bytes:
    start, length = place(random, content), random.choice((1, 2, 4, 8, 64, 1000))
    return content[:start] + content[start + length :]


def _repeat(random: Random, content: bytes, _others: Contents) -> bytes:
    start, length = place(random, content), random.choice((1, 4, 8, 64, len(content)))
    part = content[start : start + length]
    return (
        content[:start]
        + part * min(random.choice((2, 3, 200)), 200_000 // (len(part) + 1) + 1)
        + content[start:]
    )


def _splice(random: Random, content: bytes, others: Contents) -> bytes:
    other = random.choice(others or [content])
    return content[: place(random, content)] + other[place(random, other) :]


def _zeros(random: Random, content: bytes, _others: Contents) -> bytes:
    start, length = place(random, content), random.choice((4, 16, 100))
    return content[:start] + bytes([random.choice((0, 255))]) * length + content[start + length :]


_OPERATIONS = (_flip, _flip, _set, _number, _number, _cut, _without, _repeat, _splice, _zeros)
