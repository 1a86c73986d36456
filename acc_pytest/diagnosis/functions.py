"""Functions of torch called again by the names that dumps of functions give them: `Functional.linear`,
`Torch.matmul`, `Tensor.__add__`.

A function is called as the operator of aten that it stands for, so what holds for these holds here: only
operators that a file may name (`named_operators`), with arguments that fit the schema of an overload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import OperatorError
from ..named_operators import operator_of, overloads
from .aten import WRITTEN_HOW, Results

_PREFIXES = frozenset({"Functional", "Torch", "Tensor", "Aten", "VF"})
_CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type_as"})
_IGNORED = WRITTEN_HOW | {"inplace", "_stacklevel", "requires_grad", "out"}
"""Arguments that an operator may lack: they say nothing of what it gives."""
_RENAMED = {"input": "self", "axis": "dim", "keepdims": "keepdim"}
"""Arguments that torch calls otherwise than aten."""
_KINDS: Mapping[str, Any] = {
    "Tensor": torch.Tensor,
    "number": (int, float, complex),
    "int": (int, torch.dtype, torch.layout, torch.memory_format),
    "float": (int, float),
    "bool": bool,
    "str": str,
    "Device": (torch.device, str),
}
"""Types of values, by those of schemas, where dtypes are whole numbers."""
Bound = tuple[torch._ops.OpOverload, list[Any], dict[str, Any]]


def function_results(
    prefix: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
) -> Results:
    """The results of a function for its arguments. `shapes` are those of its dumped results.

    Raises `OperatorError` for a function, or a way to call it, that is not known.
    """
    if prefix not in _PREFIXES:
        raise OperatorError(f"{prefix}.{name} is not a function of torch that is called again")
    refused = OperatorError(f"{prefix}.{name} is no operator of aten that is called again")
    for overload, positional, named in bindings(*_as_operator(name, list(args), dict(kwargs))):
        try:
            return Results(overload, positional, named, (), tuple(shapes))
        except OperatorError as error:
            refused = error
    raise refused


def _as_operator(name: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    """The operator that a function stands for, and its arguments as that takes them."""
    if name in _REARRANGED:
        return _REARRANGED[name](args, kwargs)
    return ("_to_copy", args[:1], {}) if name in _CASTS else (operator_of(name)[0], args, kwargs)


def _embedding(args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    names = ("input", "weight", "padding_idx", "max_norm")
    arguments = dict(zip(names, args)) | kwargs
    if arguments.get("max_norm") is not None or not {"input", "weight"} <= arguments.keys():
        raise OperatorError("an embedding that renormalises its weight is not computed again")
    return "embedding", [arguments["weight"], arguments["input"]], {}


def _dropout(args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    arguments = dict(zip(("input", "p", "training"), args)) | kwargs
    if (arguments.get("p", 0.5) and arguments.get("training", True)) or "input" not in arguments:
        raise OperatorError("a dropout that drops gives other values each time")
    return "clone", [arguments["input"]], {}


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


def bindings(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Bound]:
    """The overloads of an operator that take these arguments, and those by position and by name, as their
    schemas have them.

    Raises `OperatorError` where there is none.
    """
    refused = None
    for overload in overloads(operator):
        try:
            bound = _bound(overload, args, kwargs)
        except OperatorError as error:
            refused = error
        else:
            yield overload, *bound
    if refused is not None:
        raise refused


def _bound(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments by position and by name, as an overload's schema has them. Raises `OperatorError`."""
    arguments = overload._schema.arguments
    values = _by_name(overload, args, kwargs)
    for argument in arguments:
        value = values.get(argument.name, argument.default_value)
        if argument.name not in values and not argument.has_default_value():
            raise OperatorError(f"{overload}: argument {argument.name} was not dumped")
        value = [value] if _is_list(argument) and isinstance(value, int) else value
        if argument.name in values and not _fits(str(argument.type), value):
            raise OperatorError(f"{overload}: argument {argument.name} is no {argument.type}")
        values[argument.name] = value
    named = {argument.name for argument in arguments if argument.kwarg_only} - (WRITTEN_HOW - {"dtype"})
    return [values[argument.name] for argument in arguments if not argument.kwarg_only], {
        name: value for name, value in values.items() if name in named
    }


def _by_name(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The values given, by the names of a schema's arguments. Raises `OperatorError` for any other."""
    arguments = overload._schema.arguments
    positional = [argument for argument in arguments if not argument.kwarg_only]
    last = len(positional) - 1
    if (
        len(args) > last >= 0
        and _is_list(positional[last])
        and all(isinstance(size, int) for size in args[last:])
    ):
        args = [*args[:last], list(args[last:])]  # sizes, or dimensions, one by one
    if len(args) > len(positional):
        raise OperatorError(f"{overload}: takes {len(positional)} arguments, {len(args)} were dumped")
    argument_names = {argument.name for argument in arguments}
    values = {argument.name: value for argument, value in zip(positional, args)}
    for name, value in kwargs.items():
        argument_name = name if name in argument_names else _RENAMED.get(name, name)
        if argument_name not in argument_names and argument_name not in _IGNORED:
            raise OperatorError(f"{overload}: takes no argument {name}")
        values[argument_name] = value
    return values


def _is_list(argument: Any) -> bool:
    return "List[int]" in str(argument.type)


def _fits(kind: str, value: Any) -> bool:
    """Whether a value is of a type of schemas."""
    inner = kind.partition("[")[2][:-1]
    if kind.startswith("Optional["):
        return value is None or _fits(inner, value)
    if kind.startswith("List["):
        return isinstance(value, (list, tuple)) and all(_fits(inner, element) for element in value)
    return isinstance(value, _KINDS.get(kind, ()))
