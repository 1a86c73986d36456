"""The pickle in a `.pth` file: what it says of one plain tensor. Nothing is called or imported.

Pickles of one dtype and shape are equal byte for byte, so that each is read once for thousands of files.
"""

from __future__ import annotations

import functools
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .torch_archive import LEGACY_STORAGES

LONGEST = 4096
"""Bytes; the pickle of one tensor has less than 1,000."""
_UNTYPED = "UntypedStorage"


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """What a pickle says: the entry and the bytes of its storage, and the tensor's first element in it."""

    key: str
    stored: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


class _Unusual(Exception):
    """The pickle is not that of one plain tensor."""


@functools.lru_cache(maxsize=4096)
def declared(pickled: bytes) -> DeclaredTensor | None:
    """What the pickle of a dense row-major tensor says; `None` for every other."""
    try:
        tensor = _evaluated(pickled)
    except (_Unusual, ValueError, LookupError, TypeError, AttributeError):
        return None
    return tensor if isinstance(tensor, DeclaredTensor) else None


def _evaluated(pickled: bytes) -> object:
    """The value of a pickle in the opcodes that `torch.save` needs for one tensor."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(pickled):
        name = opcode.name
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in _TAKEN:
            count = _TAKEN[name](stack, marks)
            taken = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            stack.append(tuple(taken))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name](argument))
        elif name == "BINPERSID":
            stack.append(_storage(*stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_called(stack.pop(), arguments))
        elif name not in ("PROTO", "STOP"):
            raise _Unusual
    return stack.pop()


_TAKEN: dict[str, Callable[[list[Any], list[int]], int]] = {
    "EMPTY_TUPLE": lambda stack, marks: 0,
    "TUPLE1": lambda stack, marks: 1,
    "TUPLE2": lambda stack, marks: 2,
    "TUPLE3": lambda stack, marks: 3,
    "TUPLE": lambda stack, marks: len(stack) - marks.pop(),
}
"""How many values of the stack an opcode makes a tuple of."""

_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "GLOBAL": _Global,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"), lambda argument: argument),
}


def _storage(kind: str, storage: _Global, key: str, device: str, count: int) -> tuple[str, str, int]:
    """Entry, type and bytes or elements of what a persistent id names."""
    module, _, name = storage.name.partition(" ")
    if kind != "storage" or device == "meta" or module not in ("torch", "torch.storage"):
        raise _Unusual
    return key, name, count


def _called(function: object, arguments: tuple[Any, ...]) -> object:
    if function == _Global("collections OrderedDict") and not arguments:
        return None  # the hooks of gradients
    if function == _Global("torch._utils _rebuild_parameter"):
        return arguments[0]
    if function == _Global("torch._utils _rebuild_tensor_v2"):
        return _tensor(*arguments)
    if function == _Global("torch._utils _rebuild_tensor_v3"):
        return _tensor(*arguments[:6], dtype=arguments[6].name.removeprefix("torch "))
    raise _Unusual


def _tensor(
    storage: tuple[str, str, int],
    first: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    gradient: bool,
    hooks: None,
    *,
    dtype: str = "",
) -> DeclaredTensor:
    key, name, count = storage
    known = getattr(torch, dtype or LEGACY_STORAGES.get(name, ""), None)
    if not isinstance(known, torch.dtype) or hooks is not None:
        raise _Unusual
    if any(type(number) is not int or number < 0 for number in (first, *shape)):
        raise _Unusual
    if not _is_row_major(shape, strides):
        raise _Unusual
    return DeclaredTensor(key, count * (1 if name == _UNTYPED else known.itemsize), known, shape, first)


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != expected:
            return 0 in shape
        expected *= size
    return len(shape) == len(strides)
