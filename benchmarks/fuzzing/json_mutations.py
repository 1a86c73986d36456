"""Mutations of JSON as a tree: types, numbers, names, keys that repeat or are missing, depth, splices.

Objects are kept as lists of pairs, so that a key may stand twice; numbers that Python would refuse are kept
as the text they have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from . import hostile
from .text_mutations import torn


@dataclass
class Object:
    """A JSON object with its pairs in order."""

    pairs: list[list[Any]]


@dataclass(frozen=True)
class Raw:
    """A value as it stands in the text."""

    text: str


Spot = tuple[list[Any], int]
"""A place in the tree: a list (of items, or the pair of a key) and an index."""


def mutated(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """The document with one to three changes; one in six is then torn as text."""
    root = [_parsed(content)]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        spots = list(_spots(root))
        _OPERATIONS[random.randrange(len(_OPERATIONS))](random, random.choice(spots), spots, others)
    text = _text(root[0]).encode("utf-8", "surrogatepass")
    return torn(random, text, others) if random.random() < 0.16 else text


def lines(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """The same of a file with a document a line: one is changed, or lines are moved and repeated."""
    split = content.splitlines(keepends=True)
    at = random.randrange(len(split))
    chance = random.random()
    if chance < 0.75:
        split[at] = mutated(random, split[at], [line for other in others for line in other.splitlines()])
        if not split[at].endswith(b"\n"):
            split[at] += b"\n"
    elif chance < 0.8:
        split.insert(random.randrange(len(split) + 1), split[at])
    elif chance < 0.85:
        split[at : at + 1] = []
    elif chance < 0.9:
        other = random.choice(others or [content]).splitlines(keepends=True)
        split = split[:at] + other[random.randrange(len(other)) :]
    else:
        return torn(random, content, others)
    return b"".join(split)


def _parsed(content: bytes) -> Any:
    return json.loads(content, object_pairs_hook=lambda pairs: Object([list(pair) for pair in pairs]))


def _spots(holder: list[Any]) -> Iterator[Spot]:
    todo = [holder]
    while todo:
        items = todo.pop()
        for index, value in enumerate(items):
            yield items, index
            if isinstance(value, list):
                todo.append(value)
            elif isinstance(value, Object):
                todo += [_Value(pair) for pair in value.pairs]
                yield value.pairs, -1


class _Value(list[Any]):
    """The value of a pair as a list of one, which writes through to the pair."""

    def __init__(self, pair: list[Any]) -> None:
        super().__init__(pair[1:])
        self.pair = pair

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self.pair[1] = value


def _replace(random: Random, spot: Spot, _spots: Sequence[Spot], _others: Sequence[bytes]) -> None:
    """Another value: a hostile one of the same type, or of any."""
    items, index = spot
    if index < 0:
        items.append([hostile.name(random), _any(random)])
    elif isinstance(items[index], str) and random.random() < 0.7:
        items[index] = hostile.name(random, items[index])
    elif type(items[index]) in (int, float) and random.random() < 0.7:
        items[index] = Raw(hostile.number(random, str(items[index])) or "null")
    else:
        items[index] = _any(random)


def _any(random: Random) -> Any:
    values: tuple[Callable[[], Any], ...] = (
        lambda: Raw(hostile.number(random) or "null"),
        lambda: hostile.name(random),
        lambda: hostile.number(random),
        lambda: random.choice([True, False, None]),
        lambda: random.choice([Object([]), [], [[]], [None], Object([["", None]]), [Object([])]]),
        lambda: _deep(random),
        lambda: [0] * random.choice((1, 9, 300, 10_000)),
    )
    return random.choice(values)()


def _deep(random: Random) -> Raw:
    depth = random.choice(hostile.DEPTHS)
    if random.random() < 0.5:
        return Raw("[" * depth + "]" * depth)
    return Raw('{"nodes":[' * depth + "]}" * depth)


def _edit(random: Random, spot: Spot, _spots: Sequence[Spot], _others: Sequence[bytes]) -> None:
    """Items and keys taken away, doubled, renamed, swapped."""
    items, index = spot
    if index < 0 and items:
        pair = random.choice(items)
        choice = random.randrange(5)
        if choice == 0:
            items.remove(pair)
        elif choice == 1:
            items.insert(random.randrange(len(items) + 1), [pair[0], random.choice([pair[1], _any(random)])])
        elif choice == 2:
            pair[0] = hostile.name(random, pair[0])
        elif choice == 3:
            other = random.choice(items)
            pair[1], other[1] = other[1], pair[1]
        else:
            random.shuffle(items)
    elif index >= 0 and isinstance(items[index], list) and items[index]:
        inner = items[index]
        choice = random.randrange(4)
        if choice == 0:
            inner.pop(random.randrange(len(inner)))
        elif choice == 1:
            inner.insert(random.randrange(len(inner) + 1), random.choice(inner))
        elif choice == 2:
            items[index] = inner * min(random.choice((2, 20, 300)), max(2, 2000 // len(inner)))
        else:
            random.shuffle(inner)
    else:
        _replace(random, spot, _spots, _others)


def _move(random: Random, spot: Spot, spots: Sequence[Spot], others: Sequence[bytes]) -> None:
    """A value from elsewhere: of this document or another."""
    items, index = spot
    source = spots
    if others and random.random() < 0.5:
        try:
            source = list(_spots([_parsed(random.choice(others))]))
        except ValueError:
            source = spots
    taken = [(there, at) for there, at in source if at >= 0]
    if index < 0 or not taken:
        return
    there, at = random.choice(taken)
    text = _text(there[at])
    items[index] = Raw(text)


def _wrap(random: Random, spot: Spot, _spots: Sequence[Spot], _others: Sequence[bytes]) -> None:
    """A value one level deeper, or thousands, or in place of what holds it."""
    items, index = spot
    if index < 0:
        return
    value = items[index]
    choice = random.randrange(4)
    if choice == 0:
        items[index] = [value]
    elif choice == 1:
        items[index] = Object([[hostile.name(random), value]])
    elif choice == 2 and isinstance(value, list) and value:
        items[index] = value[0]
    else:
        depth, text = random.choice(hostile.DEPTHS), _text(value)
        if len(text) < 100_000:
            items[index] = Raw("[" * depth + text + "]" * depth)


_OPERATIONS = (_replace, _replace, _replace, _edit, _edit, _move, _wrap)


def _text(value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Object):
        return "{" + ",".join(f"{_text(key)}:{_text(one)}" for key, one in value.pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)
