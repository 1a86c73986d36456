"""Functions of torch called again by the names that dumps of functions give them: `Functional.linear`,
`Torch.matmul`, `Tensor.__add__`.

A function is called as the operator of aten that it stands for, so what holds for these (`aten.py`) holds
here: only functional operators whose values are determined, and never by a name that is not one of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import OperatorError
from .aten import WRITTEN_HOW, Results, operator_named

_PREFIXES = frozenset({"Functional", "Torch", "Tensor", "Aten", "VF"})
_OPERATORS = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "__isub__": "sub",
    "__rsub__": "rsub", "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "__truediv__": "div",
    "__itruediv__": "div", "__floordiv__": "floor_divide", "__mod__": "remainder", "__pow__": "pow",
    "__matmul__": "matmul", "__neg__": "neg", "__abs__": "abs", "__and__": "bitwise_and",
    "__or__": "bitwise_or", "__xor__": "bitwise_xor", "__invert__": "bitwise_not", "__eq__": "eq",
    "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge", "concat": "cat",
}  # fmt: skip
"""Operators of Python, and other names of one function."""
_CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type_as"})
_SIZES_APART = frozenset({"reshape", "view", "expand", "permute", "repeat", "tile"})
"""Methods that take sizes or dimensions as one list or one by one."""
_NOT_OF_THE_RESULT = frozenset({"inplace", "_stacklevel"})
_RENAMED = {"input": "self", "axis": "dim", "keepdims": "keepdim"}
"""Arguments that torch calls otherwise than aten."""


def function_results(
    prefix: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
) -> Results:
    """What a function makes of its arguments. `shapes` are those of its dumped results.

    Raises `OperatorError` for a function, or a way to call it, that is not known.
    """
    if prefix not in _PREFIXES:
        raise OperatorError(f"{prefix}.{name} is not a function of torch that is called again")
    given = {key: value for key, value in kwargs.items() if key not in _NOT_OF_THE_RESULT}
    operator, positional, given = _as_operator(name, list(args), given)
    refused = OperatorError(f"{prefix}.{name} is no operator of aten that is called again")
    for overload in _overloads(operator):
        try:
            return Results(overload, *_bound(overload, positional, given), (), tuple(shapes))
        except OperatorError as error:
            refused = error
    raise refused


def _as_operator(name: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    """The operator that a function stands for, and its arguments as that takes them."""
    if name in _REARRANGED:
        return _REARRANGED[name](args, kwargs)
    if name in _CASTS:
        return "_to_copy", args[:1], {}
    if name in _SIZES_APART and len(args) > 1 and not isinstance(args[1], list):
        return name, [args[0], args[1:]], kwargs
    in_place = name.endswith("_") and not name.endswith("__")
    return _OPERATORS.get(name, name.removesuffix("_") if in_place else name), args, kwargs


def _embedding(args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    names = ("input", "weight", "padding_idx", "max_norm")
    given = dict(zip(names, args)) | kwargs
    if given.get("max_norm") is not None or not {"input", "weight"} <= given.keys():
        raise OperatorError("an embedding that renormalises its weight is not computed again")
    return "embedding", [given["weight"], given["input"]], {}


def _dropout(args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    given = dict(zip(("input", "p", "training"), args)) | kwargs
    if (given.get("p", 0.5) and given.get("training", True)) or "input" not in given:
        raise OperatorError("a dropout that drops gives other values each time")
    return "clone", [given["input"]], {}


def _einsum(args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    operands = args[1] if len(args) == 2 and isinstance(args[1], list) else args[1:]
    return "einsum", [*args[:1], operands], kwargs


_REARRANGED: Mapping[
    str, Callable[[list[Any], dict[str, Any]], tuple[str, list[Any], dict[str, Any]]]
] = {
    "embedding": _embedding,
    "dropout": _dropout,
    "einsum": _einsum,
}  # fmt: skip


def _overloads(operator: str) -> Iterator[torch._ops.OpOverload]:
    """The overloads of an operator that may be called. Raises `OperatorError` where there is no operator."""
    packet = getattr(torch.ops.aten, operator, None) if operator.isidentifier() else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise OperatorError(f"{operator} is no operator of aten")
    for kind in packet.overloads():
        try:
            yield operator_named(f"aten.{operator}.{kind}")
        except OperatorError:
            continue


def _bound(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments by position and by name, as an overload's schema has them. Raises `OperatorError`."""
    arguments = overload._schema.arguments
    values = _by_name(overload, args, kwargs)
    positional = [argument for argument in arguments if not argument.kwarg_only]
    given = [place for place, argument in enumerate(positional) if argument.name in values]
    bound = []
    for argument in positional[: max(given, default=-1) + 1]:
        if argument.name not in values and not argument.has_default_value():
            raise OperatorError(f"{overload}: argument {argument.name} was not dumped")
        bound.append(values.get(argument.name, argument.default_value))
    named = {argument.name for argument in arguments if argument.kwarg_only} - (WRITTEN_HOW - {"dtype"})
    return bound, {name: value for name, value in values.items() if name in named}


def _by_name(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The values given, by the names of a schema's arguments. Raises `OperatorError` for any other."""
    arguments = overload._schema.arguments
    positional = [argument for argument in arguments if not argument.kwarg_only]
    known = {argument.name for argument in arguments}
    values = {argument.name: value for argument, value in zip(positional, args)}
    for name, value in kwargs.items():
        own = name if name in known else _RENAMED.get(name, name)
        if own not in known and own not in WRITTEN_HOW:
            raise OperatorError(f"{overload}: takes no argument {name}")
        values[own] = value
    if len(args) > len(positional):
        raise OperatorError(f"{overload}: takes {len(positional)} arguments, {len(args)} were dumped")
    return values
