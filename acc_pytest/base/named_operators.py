"""Operators of torch that a file may name: one rule, read from what torch says of each overload.

A name is looked up among those that torch has registered for `aten`; it is never an attribute of anything. An
overload may be called that

* is given tensors, numbers and words only, and writes to none of them;
* gives tensors, truth values or numbers, and takes a word only beside a tensor: alone it may name a file;
* does work that the sizes of its tensors bound: not as many steps as a number says (`_STEPS`);
* is public: others check their arguments less, and `_PRIVATE` has those that traced graphs hold;
* gives values that its arguments determine: neither chance nor memory (`_MEMORY`) does. Some draw numbers
  only where they are told to leave something out (`draws`).

How much a call may take is bounded where it is made (`operators.room`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import OperatorError

_NAMESPACE = "aten"
_PRIVATE = frozenset({"_softmax", "_log_softmax", "_safe_softmax", "_to_copy", "_unsafe_view"})
_PRIVATE |= {"_unsafe_index", "_is_all_true"}
_MEMORY = re.compile("empty|resize|as_strided|sparse|quantize|fbgemm|mkldnn|cudnn|miopen")
"""Operators that hand out memory as it is, walk it, or lay it out as a library does; no schema tells."""
_STEPS = re.compile("_polynomial_")
"""Operators that go through a recurrence, of the degree that they are given, for each element."""
_SHARES = ("dropout_p", "dropout")
"""Arguments that say how much is left out at random."""
_OF_FUNCTIONS = {
    "__add__": "add", "__radd__": "add", "__sub__": "sub", "__rsub__": "rsub", "__mul__": "mul",
    "__rmul__": "mul", "__truediv__": "div", "__div__": "div", "__floordiv__": "floor_divide",
    "__mod__": "remainder", "__pow__": "pow", "__matmul__": "matmul", "__neg__": "neg", "__abs__": "abs",
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "__invert__": "bitwise_not",
    "__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift", "__eq__": "eq", "__ne__": "ne",
    "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge", "concat": "cat", "T": "numpy_T",
    "H": "matrix_H", "logsigmoid": "log_sigmoid",
}  # fmt: skip
"""Operators of Python, and functions that are called otherwise."""
_WRAPPING = re.compile(r"(Optional|List)\[|\]")
_GIVEN = frozenset({"Tensor", "number", "int", "float", "bool", "str", "Device", "Generator"})
_MADE = frozenset({"Tensor", "number", "bool"})


def operator_named(target: str) -> torch._ops.OpOverload:
    """The overload that a target as `aten.add.Tensor` names. Raises `OperatorError` for one that is not
    called."""
    namespace, _, name = target.partition(".")
    operator, _, kind = name.partition(".")
    if namespace != _NAMESPACE or kind not in _registered().get(operator, ()):
        raise OperatorError(f"{target:.80} is not an aten operator")
    refusal = _refusal(operator, kind)
    if refusal:
        raise OperatorError(f"{target} {refusal}")
    return _overload(operator, kind)


def overloads(operator: str) -> tuple[torch._ops.OpOverload, ...]:
    """The overloads of an operator of aten that may be called. Raises `OperatorError` where there is none."""
    kinds = _registered().get(operator)
    if kinds is None:
        raise OperatorError(f"{operator:.80} is no operator of aten")
    refusals = {kind: _refusal(operator, kind) for kind in kinds}
    allowed = tuple(_overload(operator, kind) for kind, refusal in refusals.items() if not refusal)
    if not allowed:
        raise OperatorError(f"aten.{operator} {next(iter(refusals.values()))}")
    return allowed


@functools.cache
def is_random(operator: str) -> bool:
    """Whether calls of an operator give other values each time, whatever they are given."""
    return any(_is_undetermined(_overload(operator, kind)) for kind in _registered().get(operator, ()))


def operator_of(function: str) -> tuple[str, bool]:
    """The operator of aten that a function of torch stands for, and whether what that gives is written to the
    function's first argument (`add_`, `__iadd__`)."""
    python = function.endswith("__")
    base = function.replace("__i", "__", 1) if python else function.removesuffix("_")
    writes = base != function and (not python or base in _OF_FUNCTIONS)
    name = base if writes else function
    return _OF_FUNCTIONS.get(name, name), writes


def draws(overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call makes random numbers. Arguments that say how much is left out may say: nothing."""
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        return False
    arguments = overload._schema.arguments
    values = {argument.name: argument.default_value for argument in arguments}
    values |= {**dict(zip(values, args)), **kwargs}
    shares = [values[name] for name in _SHARES if name in values]
    return values.get("train") is not False and (not shares or any(shares))


@functools.cache
def _registered() -> Mapping[str, Sequence[str]]:
    """The names of the overloads of each operator."""
    kinds: dict[str, list[str]] = {}
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = full.partition("::")
        operator, _, kind = name.partition(".")
        if namespace == _NAMESPACE:
            kinds.setdefault(operator, []).append(kind or "default")
    return kinds


def _overload(operator: str, kind: str) -> torch._ops.OpOverload:
    overload: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, operator), kind)
    return overload


@functools.cache
def _refusal(operator: str, kind: str) -> str:
    """Why an overload is not called; empty where it may be."""
    overload = _overload(operator, kind)
    arguments = overload._schema.arguments
    argument_types = {_WRAPPING.sub("", str(argument.type)) for argument in arguments}
    result_types = {_WRAPPING.sub("", str(result.type)) for result in overload._schema.returns}
    if any(argument.alias_info is not None and argument.alias_info.is_write for argument in arguments):
        return "writes to its arguments"
    if _is_undetermined(overload):
        return "may give other values each time"
    if _STEPS.search(operator):
        return "takes as many steps as it is told"
    if operator.startswith("_") and operator not in _PRIVATE:
        return "is not a public aten operator"
    if (
        not argument_types <= _GIVEN
        or not result_types
        or not result_types <= _MADE
        or ("str" in argument_types and "Tensor" not in argument_types)
    ):
        return "does more than compute"
    return ""


def _is_undetermined(overload: torch._ops.OpOverload) -> bool:
    arguments = {argument.name: str(argument.type) for argument in overload._schema.arguments}
    drawn = torch.Tag.nondeterministic_seeded in overload.tags and not arguments.keys() & set(_SHARES)
    generated = any("Generator" in kind for kind in arguments.values())
    return drawn or generated or _MEMORY.search(overload._schema.name) is not None
