"""Small shapes and the values of tensors, for the rules of the families. Imports hypothesis.

Values come from torch's generator: hypothesis draws the seed and the kind of numbers. A failing case
so shrinks to small shapes and to small whole numbers, and drawing costs the same for any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st

from ...operators.registry import Key, Schema

Draw = Callable[[Any], Any]
"""The function that hypothesis hands to a composite strategy."""

Drawn = tuple[Mapping[str, Any], Sequence["torch.Tensor | None"]]
"""The result of a rule: parameters, and inputs in ATB's order."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
SHORT = (torch.float16, torch.bfloat16)

LARGE = -10000.0
"""The number that hides a key in a mask; small enough for float16, and exp of it is 0 in every dtype."""

T = TypeVar("T")


def one_of(draw: Draw, *choices: T) -> T:
    """One of `choices`; a failing case shrinks toward the first."""
    chosen: T = draw(st.sampled_from(choices))
    return chosen


def integer(draw: Draw, low: int, high: int) -> int:
    """A whole number from `low` to `high`; shrinks toward `low`."""
    return int(draw(st.integers(low, high)))


def numbers(draw: Draw, min_count: int, max_count: int, low: int, high: int) -> list[int]:
    """Between `min_count` and `max_count` whole numbers from `low` to `high`."""
    return list(draw(st.lists(st.integers(low, high), min_size=min_count, max_size=max_count)))


def shape(draw: Draw, min_dims: int = 1, max_dims: int = 4, largest: int = 6) -> list[int]:
    """Dimensions, none of them empty."""
    return numbers(draw, min_dims, max_dims, 1, largest)


def flag(draw: Draw) -> bool:
    """True or false; shrinks toward false."""
    return bool(draw(st.booleans()))


def order(draw: Draw, count: int) -> list[int]:
    """The numbers below `count` in any order."""
    return list(draw(st.permutations(range(count))))


def axis(draw: Draw, ndim: int) -> int:
    """An axis of a tensor, counted from either end."""
    return integer(draw, -ndim, ndim - 1)


def head_counts(draw: Draw) -> tuple[int, int, int]:
    """Query heads, key heads, size of one."""
    groups, share = integer(draw, 1, 3), integer(draw, 1, 3)
    return groups * share, groups, integer(draw, 1, 12)


def generator(draw: Draw) -> torch.Generator:
    """A source of numbers with a drawn seed."""
    return torch.Generator().manual_seed(integer(draw, 0, 2**16))


def floats(draw: Draw, size: Sequence[int], dtype: torch.dtype, *, positive: bool = False) -> torch.Tensor:
    """Values of one kind: small whole numbers, normal ones, or normal ones of very different sizes.

    `positive` ones are at least 1/16. All are at most about 50 in size, so that no product of two
    overflows float16.
    """
    kind = one_of(draw, "whole", "normal", "uneven")
    source = generator(draw)
    if kind == "whole":
        value = torch.randint(-3, 4, tuple(size), generator=source).float()
    else:
        value = torch.randn(tuple(size), generator=source)
        if kind == "uneven":
            value = value * torch.exp2(torch.randint(-8, 4, tuple(size), generator=source).float())
    return ((value.abs() + 0.0625) if positive else value).to(dtype)


def uniform(draw: Draw, size: Sequence[int], low: float, high: float) -> torch.Tensor:
    """float32 values between `low` and `high` with all their bits, so that products of them are no ties."""
    return low + (high - low) * torch.rand(tuple(size), generator=generator(draw))


def integers(draw: Draw, size: Sequence[int], low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """Whole numbers from `low` to `high`."""
    return torch.randint(low, high + 1, tuple(size), generator=generator(draw)).to(dtype)


def distinct(draw: Draw, count: int, limit: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """`count` different whole numbers from 0 on."""
    return torch.randperm(limit, generator=generator(draw))[:count].to(dtype)


def block_tables(draw: Draw, lengths: Sequence[int], block: int) -> tuple[torch.Tensor, int]:
    """Blocks of `block` rows for sequences of these lengths, in any order, and how many blocks there are."""
    columns = max(1, max(-(-n // block) for n in lengths))
    used = len(lengths) * columns
    blocks = used + integer(draw, 0, 2)
    return distinct(draw, used, blocks).reshape(len(lengths), columns), blocks


def counts(numbers: Sequence[int]) -> torch.Tensor:
    """Host tensors of lengths and offsets."""
    return torch.tensor(list(numbers), dtype=torch.int32)


# The table of shape rules: which function draws the cases of which operator.


Rule = Callable[[Draw], Drawn]

RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the one that draws cases of operator `name`."""

    def add(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return add


# Parameters from a schema: any of its keys, with values of their kind or enumeration. Imports hypothesis.


_SMALL = st.integers(-8, 64)
_NUMBER = st.floats(-8, 8, width=32)
_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": _SMALL,
    "float": _NUMBER,
    "bool": st.booleans(),
    "str": st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=8),
    "ints": st.lists(_SMALL, max_size=4),
    "floats": st.lists(_NUMBER, max_size=4),
    "any": st.just(0),
}


def of_schema(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings that `operators.param.read` takes for `schema`; a key may be missing."""
    optional = {
        name: _of_key(key) if isinstance(key, Key) else of_schema(key) for name, key in schema.items()
    }
    return st.fixed_dictionaries({}, optional=optional)


def _of_key(key: Key) -> st.SearchStrategy[Any]:
    if key.allowed is not None:
        return st.sampled_from(list(key.allowed))
    return _KINDS[key.kind]
