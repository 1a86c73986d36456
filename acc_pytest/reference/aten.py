"""Operators of aten called again by the names and arguments that FX dumps give them.

Operators that a file may name are called (`named_operators`), by an exact name. Arguments are told by the
operator's schema; one that a file does not hold for certain (None, a dtype or a device, which would have to
be unpickled) is taken only where the schema leaves no choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

import torch

from ..base.named_operators import draws, operator_named, operator_of, overloads
from ..base.reason import Reason
from ..errors import OperatorError
from ..ge_operators import Unrounded, compute
from ..mapping.pair import Pair
from ..operators.room import Room, on_meta, tensors_in
from .executor import CaseRecomputer, OperatorCase
from .recomputation import LOOKING, Recomputation, RecomputeBudget, attempted
from .twice import Twice

_MOVING = frozenset({"cat", "stack", "index", "gather", "index_select", "embedding", "clone", "copy"})
_MOVING |= {"repeat", "flip", "roll", "where", "masked_fill", "scatter", "slice_scatter", "select_scatter"}
_MOVING |= {"index_put", "tril", "triu", "constant_pad_nd", "_unsafe_view", "contiguous"}
"""Operators that move values and are no views."""
_SUMMING = frozenset(["mm", "bmm", "addmm", "baddbmm", "matmul", "sum", "mean", "cumsum", "linear"])
_SINGLE = frozenset(["add", "sub", "mul", "div", "neg", "abs", "maximum", "minimum"])
_NUMBERS: Mapping[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "number": lambda value: value,
}
WRITTEN_HOW = frozenset({"dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"})
"""Keywords that say how a result is stored, not what it is."""
_CHOICES: Mapping[str, tuple[object, ...]] = {
    "approximate": ("none", "tanh"),
    "rounding_mode": (None, "trunc", "floor"),
}
"""Keywords of few values, any of which may have been given."""

Stored = Mapping[tuple[Union[int, str], ...], Union[torch.Tensor, None]]
"""What the files of one call hold, by argument and, for a list of tensors, item; `None` is no number."""


def results(target: str, stored: Stored, shapes: Sequence[tuple[int, ...]], *, keywords: bool) -> Results:
    """The results of an operator for its arguments. `shapes` are those of its dumped results.

    `keywords` says that the dump holds arguments given by name. Raises `OperatorError` for what is not known.
    """
    overload = operator_named(target)
    positional = [arg for arg in overload._schema.arguments if not arg.kwarg_only]
    count = 1 + max((key[0] for key in stored if isinstance(key[0], int)), default=-1)
    if count > len(positional):
        raise OperatorError(Reason("{}: takes {} arguments, {} were dumped", target, len(positional), count))
    args = [_argument(positional[place], place, stored) for place in range(count)]
    named = [arg for arg in overload._schema.arguments if arg.kwarg_only]
    values = {arg.name: _argument(arg, arg.name, stored) for arg in named if (arg.name,) in stored}
    telling = [arg.name for arg in named if arg.name not in WRITTEN_HOW]
    options = {name: values[name] for name in telling if name in values}
    return Results(overload, args, options, () if keywords else tuple(telling), tuple(shapes))


class Results:
    """The results of one call. `certain` is false where an argument given by name may be missing."""

    def __init__(
        self,
        overload: torch._ops.OpOverload,
        args: Sequence[Any],
        options: Mapping[str, Any],
        unknown: tuple[str, ...],
        shapes: tuple[tuple[int, ...], ...],
    ) -> None:
        self._overload = overload
        self._args = args
        self._choices = [name for name in unknown if name in _CHOICES]
        self._options = {**{name: _CHOICES[name][0] for name in self._choices}, **options}
        self._elements = sum(map(math.prod, shapes))
        if draws(overload, args, self._options):
            raise OperatorError(Reason("{}: drops numbers at random", overload))
        self._check_shapes(shapes)
        self.certain = all(name in _CHOICES for name in unknown)

    @property
    def doubt(self) -> str:
        """What may not be known of the call; empty where all is."""
        return "" if self.certain else "arguments given by name are not in the dump"

    @property
    def description(self) -> tuple[str, list[Any], Mapping[str, Any]]:
        """The operator and everything that it is told beside tensors."""
        return str(self._overload), [_without_tensors_in(argument) for argument in self._args], self._options

    @property
    def _name(self) -> str:
        return self._overload._schema.name.removeprefix("aten::")

    def output(self, index: int) -> Unrounded:
        """The values of output `index`. Raises `OperatorError` where the operator has no such output."""
        if self._name in _BY_REFERENCE:
            return _BY_REFERENCE[self._name](*self._args)[index]
        views = any(result.alias_info is not None for result in self._overload._schema.returns)
        moves = views or self._name in _MOVING
        outputs = self._outputs_of(self._options, wide=not moves)
        if index >= len(outputs):
            raise OperatorError(
                Reason("{}: has {} results, {} were dumped", self._overload, len(outputs), index + 1)
            )
        alternatives = [
            self._outputs_of({**self._options, name: value}, wide=True)[index]
            for name in self._choices
            for value in _CHOICES[name][1:]
        ]
        magnitude = self._sizes if self._name in _SUMMING else None
        single = self._name in _SINGLE and not alternatives
        lengths = (int(tensor.shape[-1]) for tensor in tensors_in(self._args) if tensor.ndim)
        return Unrounded(
            outputs[index], max(lengths, default=1), magnitude, moves, tuple(alternatives), single
        )

    def rounded(
        self, index: int, dtype: torch.dtype, narrow: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Output `index` as the operator itself computes it in `dtype`. `narrow` makes of an argument what it
        was before it was dumped. Raises `OperatorError` where it is not computed so.
        """
        output = self._computed(_changed(self._args, narrow), self._options)[index]
        if output.dtype != dtype:
            raise OperatorError(
                Reason("{}: gives {} here, {} was dumped", self._overload, output.dtype, dtype)
            )
        return output

    def _sizes(self) -> torch.Tensor:
        return self._computed(_wide(_changed(self._args, torch.abs)), self._options)[0]

    def _outputs_of(self, options: Mapping[str, Any], wide: bool) -> list[torch.Tensor]:
        if not wide:
            return self._computed(self._args, options)
        names = [argument.name for argument in self._overload._schema.arguments]
        finest = [_finest(argument) for argument in _wide(self._args)]
        args = [False if name == "half_to_float" else argument for name, argument in zip(names, finest)]
        return self._computed(args, {name: _finest(value) for name, value in options.items()})

    def _check_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Run it without values first: what a file asks for must not be larger than what was dumped."""
        described = list(map(on_meta, self._args))
        options = dict(self._options)
        if not tensors_in(self._args):
            # What makes a tensor of numbers takes the device by name; without that it is not called.
            options["device"] = "meta"
        outputs = _called(self._overload, described, options)
        if [tuple(value.shape) for value in outputs[: len(shapes)]] != list(shapes):
            raise OperatorError(Reason("{}: its results have other shapes than were dumped", self._overload))

    def _computed(self, args: Sequence[Any], options: Mapping[str, Any]) -> list[torch.Tensor]:
        with Room(str(self._overload), tensors_in(args), self._elements, pairs=True):
            return _called(self._overload, args, options)


def _finest(value: Any) -> Any:
    """A float type that a call asks for, as it is where nothing is rounded."""
    floats = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if floats else value


def _called(
    overload: torch._ops.OpOverload, args: Sequence[Any], options: Mapping[str, Any]
) -> list[torch.Tensor]:
    try:
        with torch.no_grad():
            returned = overload(*args, **options)
    except (RuntimeError, IndexError, TypeError, ValueError, ArithmeticError) as error:
        raise OperatorError(
            Reason("{}: cannot be called: {}", overload, str(error).partition(chr(10))[0])
        ) from error
    results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    if not all(isinstance(result, torch.Tensor) for result in results):
        raise OperatorError(Reason("{}: makes no tensors", overload))
    return results


def _argument(argument: Any, place: int | str, stored: Stored) -> Any:
    """The value of an argument of a schema, from its files. Raises `OperatorError` for one not known."""
    kind = str(argument.type)
    if (place,) in stored:
        return _value(kind, stored[place,], argument.name)
    items = sorted((key for key in stored if key[0] == place), key=lambda key: key[1])
    if not items or not kind.startswith("List["):
        raise OperatorError(Reason("argument {} was not dumped", argument.name))
    return [_value(kind[5:-1], stored[key], argument.name) for key in items]


def _value(kind: str, stored: torch.Tensor | None, name: str) -> Any:
    inner = kind[9:-1] if kind.startswith("Optional[") else kind
    if stored is None:
        # What is no number, where a tensor or a number may be left out, can only be None.
        if inner != kind and inner in ("Tensor", *_NUMBERS, "List[int]"):
            return None
    elif inner == "Tensor":
        return stored
    elif inner in _NUMBERS and not stored.ndim:
        return _NUMBERS[inner](stored.item())
    elif inner.startswith("List[") and inner[5:-1] in _NUMBERS and stored.ndim == 1:
        return [_NUMBERS[inner[5:-1]](value) for value in stored.tolist()]
    raise OperatorError(Reason("its file does not hold argument {} of type {}", name, kind))


def _without_tensors_in(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_tensors_in(item) for item in value]
    return None if isinstance(value, torch.Tensor) else value


def _wide(values: Sequence[Any]) -> list[Any]:
    def wide(tensor: torch.Tensor) -> torch.Tensor:
        fractional = tensor.is_floating_point() or tensor.is_complex()
        return tensor.to(torch.promote_types(tensor.dtype, torch.float64)) if fractional else tensor

    return _changed(values, wide)


def _changed(values: Sequence[Any], change: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    return [
        _changed(value, change)
        if isinstance(value, list)
        else change(value)
        if isinstance(value, torch.Tensor)
        else value
        for value in values
    ]


_BY_REFERENCE: Mapping[str, Callable[..., tuple[Unrounded, ...]]] = {
    "native_layer_norm": lambda x, shape, weight, bias, epsilon: compute(
        "LayerNormV4", {"epsilon": epsilon}, [x, torch.tensor(shape), weight, bias]
    ),
    "topk": lambda x, count, *how: compute(
        "TopKV2", dict(zip(("dim", "largest", "sorted"), how)), [x, torch.tensor(count)]
    ),
    "sort": lambda x, *how: compute("Sort", dict(zip(("axis", "descending"), how)), [x]),
}
"""Operators with results that cancel or choose, which the references of GE know more of."""


# Functions of torch called again by the names that dumps of functions give them: `Functional.linear`,
# `Torch.matmul`, `Tensor.__add__`.
#
# A function is called as the operator of aten that it stands for, so what holds for these holds here: only
# operators that a file may name (`named_operators`), with arguments that fit the schema of an overload.


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
        raise OperatorError(Reason("{}.{} is not a function of torch that is called again", prefix, name))
    refused = OperatorError(Reason("{}.{} is no operator of aten that is called again", prefix, name))
    if name in _REARRANGED:
        call = _REARRANGED[name](list(args), dict(kwargs))
    elif name in _CASTS:
        call = "_to_copy", list(args[:1]), {}
    else:
        call = operator_of(name)[0], list(args), dict(kwargs)
    for overload, positional, named in bindings(*call):
        try:
            return Results(overload, positional, named, (), tuple(shapes))
        except OperatorError as error:
            refused = error
    raise refused


_Call = tuple[str, list[Any], dict[str, Any]]
"""An operator, and its arguments by position and by name."""


def _embedding(args: list[Any], kwargs: dict[str, Any]) -> _Call:
    names = ("input", "weight", "padding_idx", "max_norm")
    arguments = dict(zip(names, args)) | kwargs
    if arguments.get("max_norm") is not None or not {"input", "weight"} <= arguments.keys():
        raise OperatorError("an embedding that renormalises its weight is not computed again")
    return "embedding", [arguments["weight"], arguments["input"]], {}


def _dropout(args: list[Any], kwargs: dict[str, Any]) -> _Call:
    arguments = dict(zip(("input", "p", "training"), args)) | kwargs
    if (arguments.get("p", 0.5) and arguments.get("training", True)) or "input" not in arguments:
        raise OperatorError("a dropout that drops gives other values each time")
    return "clone", [arguments["input"]], {}


def _einsum(args: list[Any], kwargs: dict[str, Any]) -> _Call:
    operands = args[1] if len(args) == 2 and isinstance(args[1], list) else args[1:]
    return "einsum", [*args[:1], operands], kwargs


_REARRANGED: Mapping[str, Callable[[list[Any], dict[str, Any]], _Call]] = {
    "embedding": _embedding, "dropout": _dropout, "einsum": _einsum,
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
            raise OperatorError(Reason("{}: argument {} was not dumped", overload, argument.name))
        value = [value] if _is_list(argument) and isinstance(value, int) else value
        if argument.name in values and not _fits(str(argument.type), value):
            raise OperatorError(Reason("{}: argument {} is no {}", overload, argument.name, argument.type))
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
        raise OperatorError(
            Reason("{}: takes {} arguments, {} were dumped", overload, len(positional), len(args))
        )
    argument_names = {argument.name for argument in arguments}
    values = {argument.name: value for argument, value in zip(positional, args)}
    for name, value in kwargs.items():
        argument_name = name if name in argument_names else _RENAMED.get(name, name)
        if argument_name not in argument_names and argument_name not in _IGNORED:
            raise OperatorError(Reason("{}: takes no argument {}", overload, name))
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


class CallRecomputer(CaseRecomputer[Results]):
    """Computes calls of operators or functions of torch (as `_how` says) again. `narrow` is the type in which
    they may have been computed though the dump holds them as float32."""

    _how = "the operator in {} against float64"

    def __init__(
        self, pairs: Sequence[Pair], budget: RecomputeBudget = LOOKING, narrow: torch.dtype | None = None
    ) -> None:
        super().__init__(pairs, budget)
        self._narrow = narrow

    def of_golden(self, number: int) -> Recomputation:
        """Whether the call of a pair makes golden's result of golden's inputs: golden made the same call."""
        pair = self._pairs[number]
        mine, golden = pair.mine.refs[0], pair.golden.refs[0]

        def compared() -> Recomputation:
            calls = (self.case(ref).call.description for ref in (mine, golden))
            unlike = next(calls) != next(calls)
            return Recomputation(why="golden makes another call") if unlike else self._of_operand(pair.golden)

        return attempted(compared, Reason("reading the calls of {} and {}", mine, golden))

    def before(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as it was before it was dumped: what fits into the narrow type was that."""
        if self._narrow is None or tensor.dtype != torch.float32:
            return tensor
        narrow = tensor.to(self._narrow)
        return narrow if torch.equal(narrow.float(), tensor) else tensor

    def compute(self, case: OperatorCase[Results]) -> Twice:
        return Twice(
            case.call.output(case.index),
            lambda dtype: case.call.rounded(case.index, dtype, self.before),
            self._how,
        )

    def opened(self, case: OperatorCase[Results], twice: Twice) -> torch.Tensor:
        return self.before(case.result.open())
