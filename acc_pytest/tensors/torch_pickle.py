"""The pickle in a `.pth` file: what it says of the tensors in it. Nothing is called or imported.

Pickles of one dtype and shape are equal byte for byte, so that each is read once for thousands of files.
"""

from __future__ import annotations

import functools
import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .dtypes import DType, by_name
from .torch_archive import LEGACY_STORAGES

_UNTYPED = "UntypedStorage"
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """A tensor in a pickle: the entry and the bytes of its storage, and the places of its elements there.

    `dtype` is one of a whole number of bytes. `first` and `strides` count elements.
    """

    key: str
    stored: int
    dtype: DType
    shape: tuple[int, ...]
    first: int
    strides: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.bits // 8

    @property
    def row_major(self) -> bool:
        """Whether the elements lie one behind the other."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != expected:
                return 0 in self.shape
            expected *= size
        return True


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


class OtherObject:
    """Stands for what a pickle makes by calling something: no tensor, and not made here."""


OTHER = OtherObject()


class PickledValue(NamedTuple):
    """The value of a pickle, and the identities of the storages that it names, as they stand there."""

    value: object
    storages: tuple[Any, ...]


class _Unusual(Exception):
    """An object that is not made here."""


# Tensors of one dtype and shape have the same pickle; that of a forward pass may list thousands of tensors.
@functools.lru_cache(maxsize=256)
def content(pickled: bytes) -> PickledValue:
    """The content of a pickle: dicts, lists and tuples of texts, numbers, `DeclaredTensor`s and `OTHER`.

    Raises `ValueError` for a pickle that is damaged, or has what `torch.save` does not write.
    """
    try:
        return _quietly(pickled)
    except _DAMAGE as error:
        raise ValueError(f"{type(error).__name__}: {error}"[:200]) from error


def storages_in(pickled: bytes) -> dict[str, int | None]:
    """Bytes of each storage that a pickle names, by its key; `None` where the type of its elements has no
    dtype here.

    Raises `ValueError` as `content`, and for a storage that has no key or two sizes.
    """
    sizes: dict[str, int | None] = {}
    for identity in content(pickled).storages:
        if type(identity) is not tuple or len(identity) < 5 or type(identity[1]) is not _Global:
            raise ValueError("a storage without a key")
        _, storage, key, _, count = identity[:5]
        kind = storage.name.rpartition(" ")[2]
        itemsize = 1 if kind == _UNTYPED else by_name(LEGACY_STORAGES.get(kind, "")).itemsize
        nbytes = None if itemsize is None or type(count) is not int else count * itemsize
        if type(key) is not str or sizes.setdefault(key, nbytes) != nbytes:
            raise ValueError("a storage with two sizes")
    return sizes


def _quietly(pickled: bytes) -> PickledValue:
    """Python warns of odd texts in a pickle, which nobody wrote by hand."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack: list[Any] = []
        storages: list[Any] = []
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
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name](argument))
            elif name in _OPERATIONS:
                count, build = _OPERATIONS[name]
                first = marks.pop() if count is None else len(stack) - count
                operands = stack[first:] if first >= 0 else []
                del stack[first:]
                if name == "BINPERSID":
                    storages += operands
                build(stack, operands)
            elif name not in ("PROTO", "STOP"):
                raise ValueError(f"opcode {name}")
        return PickledValue(stack.pop(), tuple(storages))


def _pushed(make: Callable[[list[Any]], Any]) -> Callable[[list[Any], list[Any]], None]:
    return lambda stack, operands: stack.append(make(operands))


def _set_items(stack: list[Any], operands: list[Any]) -> None:
    if isinstance(stack[-1], dict):
        stack[-1].update(zip(operands[::2], operands[1::2], strict=True))


def _append(stack: list[Any], operands: list[Any]) -> None:
    if isinstance(stack[-1], list):
        stack[-1].extend(operands)


def _result_of(make: Callable[..., Any], operands: list[Any]) -> Any:
    """The result of a call, `OTHER` where nobody knows it."""
    try:
        return make(*operands)
    except (_Unusual, ValueError, LookupError, TypeError, AttributeError):
        return OTHER


_OPERATIONS: dict[str, tuple[int | None, Callable[[list[Any], list[Any]], None]]] = {
    "TUPLE1": (1, _pushed(tuple)),
    "TUPLE2": (2, _pushed(tuple)),
    "TUPLE3": (3, _pushed(tuple)),
    "TUPLE": (None, _pushed(tuple)),
    "BINPERSID": (1, _pushed(lambda operands: _result_of(lambda identity: _storage(*identity), operands))),
    "REDUCE": (2, _pushed(lambda operands: _result_of(_called, operands))),
    "NEWOBJ": (2, _pushed(lambda operands: OTHER)),
    # The state of an object: that of a tensor could change it.
    "BUILD": (2, _pushed(lambda operands: operands[0] if isinstance(operands[0], dict) else OTHER)),
    "SETITEM": (2, _set_items),
    "SETITEMS": (None, _set_items),
    "APPEND": (1, _append),
    "APPENDS": (None, _append),
    "POP": (1, lambda stack, operands: None),
    "POP_MARK": (None, lambda stack, operands: None),
}
"""Number of values that an opcode takes from the stack (`None`: all behind the mark), and its effect."""

_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "GLOBAL": _Global,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "NONE": lambda _: None,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_SET": lambda _: set(),
    **dict.fromkeys(
        ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINSTRING"),
        lambda argument: argument,
    ),
}


def _storage(kind: str, storage: _Global, key: str, device: str, count: int) -> tuple[str, str, int]:
    """Entry, type and bytes or elements of what a persistent id names."""
    module, _, name = storage.name.partition(" ")
    if kind != "storage" or device == "meta" or module not in ("torch", "torch.storage"):
        raise _Unusual
    return key, name, count


def _called(function: object, arguments: tuple[Any, ...]) -> object:
    if function == _Global("collections OrderedDict") and not arguments:
        return {}
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
    hooks: dict[Any, Any],
    *,
    dtype: str = "",
) -> DeclaredTensor:
    """A dense tensor; `hooks` are those of its gradient, of which a file has none."""
    key, name, count = storage
    element_type = by_name(dtype or LEGACY_STORAGES.get(name, ""))
    if element_type.itemsize is None or hooks != {} or len(shape) != len(strides):
        raise _Unusual
    if any(type(number) is not int or number < 0 for number in (first, count, *shape, *strides)):
        raise _Unusual
    stored = count * (1 if name == _UNTYPED else element_type.itemsize)
    return DeclaredTensor(key, stored, element_type, shape, first, strides)
