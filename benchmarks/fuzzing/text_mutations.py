"""Mutations of texts by their tokens: CSV, TOML, Python literals, protobuf text, the headers of ATB files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from . import hostile
from .byte_mutations import mutated as bytes_mutated

_TOKEN = re.compile(
    rb'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|[^\W\d]\w*|\s+|.',
    re.DOTALL,
)
_OPEN = {b"{": b"}", b"[": b"]", b"(": b")", b"<": b">"}


def mutated(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """The text with one to three of its tokens or lines changed; one in ten is torn."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content = _lines(random, content, others) if random.random() < 0.25 else _token(random, content)
    return torn(random, content, others) if random.random() < 0.1 else content


def torn(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Cut at a token, in another encoding, with bytes that no text has, or changed as any bytes are."""
    choice = random.randrange(6)
    if choice == 0:
        ends = [found.end() for found in _TOKEN.finditer(content)]
        return content[: random.choice(ends)] if ends else content
    if choice == 1:
        return content.decode("utf-8", "replace").encode(random.choice(["utf-16", "utf-8-sig", "utf-32"]))
    if choice == 2:
        at = random.randrange(len(content) + 1)
        bad = random.choice(
            [b"\xff", b"\xed\xa0\x80", b"\0", b"\r", b"\x1b[2J", b"\xc4\xe3", b"\xe2\x80\xa8"]
        )
        return content[:at] + bad + content[at:]
    if choice == 3:
        return random.choice([b"", b"\n", b"{}", b"[]", b"null", b'"', b"\xef\xbb\xbf", b"PK\x03\x04", b"0"])
    return bytes_mutated(random, content, others)


def _token(random: Random, content: bytes) -> bytes:
    tokens = list(_TOKEN.finditer(content))
    if not tokens:
        return content
    kind = random.choice(("number", "word", "any", "any"))
    chosen = [one for one in tokens if _is(kind, one.group())] or tokens
    token = random.choice(chosen)
    return content[: token.start()] + _changed(random, token.group(), tokens) + content[token.end() :]


def _is(kind: str, token: bytes) -> bool:
    if kind == "number":
        return token.lstrip(b"-+")[:1].isdigit()
    return kind == "any" or token[:1] in (b'"', b"'") or token[:1].isalpha()


def _changed(random: Random, token: bytes, tokens: Sequence[re.Match[bytes]]) -> bytes:
    chance = random.random()
    if chance < 0.1:
        return b""
    if chance < 0.2:
        return token * random.choice((2, 3, 1000))
    if chance < 0.3:
        return random.choice(tokens).group()
    if token in _OPEN and chance < 0.6:
        depth = random.choice(hostile.DEPTHS)
        return token * depth + (_OPEN[token] * (depth - 1) if chance < 0.45 else b"")
    if _is("number", token) and chance < 0.85:
        return hostile.number(random, token.decode("ascii")).encode()
    if token[:1] in (b'"', b"'"):
        inner = hostile.name(random, token[1:-1].decode("utf-8", "replace"))
        return token[:1] + inner.encode("utf-8", "surrogatepass") + token[-1:]
    if chance < 0.7:
        return hostile.name(random, token.decode("utf-8", "replace")).encode("utf-8", "surrogatepass")
    return hostile.number(random).encode()


def _lines(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    split = content.splitlines(keepends=True) or [content]
    at = random.randrange(len(split))
    choice = random.randrange(5)
    if choice == 0:
        del split[at]
    elif choice == 1:
        split.insert(random.randrange(len(split) + 1), split[at] * random.choice((1, 1, 50)))
    elif choice == 2:
        other = random.randrange(len(split))
        split[at], split[other] = split[other], split[at]
    elif choice == 3:
        found = random.choice(others or [content]).splitlines(keepends=True) or [b""]
        split.insert(at, random.choice(found))
    else:
        return b"".join(split[:at])
    return b"".join(split)
