"""The table of operators: `operator` and `collective` register one, `operator_of` and `known` ask for them.

An operator is a plain function from named input tensors to output values.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

from ..base.vocabulary import DEFAULT_SOC
from ..errors import OperatorError

Tensors = Mapping[str, torch.Tensor]
"""The inputs of one operator by name; optional ones that were not given are absent."""


@dataclass(frozen=True, slots=True)
class As:
    """An output before its one rounding: `value` is wide, `dtype` what the operator writes.

    An integer `dtype` rounds half to even and saturates, as the quantising kernels do.
    """

    value: torch.Tensor
    dtype: torch.dtype
    encode: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Makes the bytes of a type that torch has not; `dtype` is then that of the bytes."""

    def rounded(self) -> torch.Tensor:
        """The value as the operator writes it, rounded to its dtype."""
        return self.encode(self.value) if self.encode else rounded(self.value, self.dtype)


Output = Union[As, torch.Tensor]
"""An output: wide with its dtype, or a tensor that is exact as it is (moved, counted, compared)."""

Outputs = Sequence[Output]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One computation: its operator, complete parameters, precision and chip.

    `rounds` is whether outputs (and what kernels hand to each other) are rounded.
    """

    operator: str
    param: Param
    accumulate: torch.dtype = torch.float32
    soc: str = DEFAULT_SOC
    rounds: bool = True

    def between(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Wide `value` after a kernel of its own has written it as `dtype`; as it is in exact mode."""
        return self.wide(rounded(value, dtype)) if self.rounds else value

    def wide(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` in the dtype in which sums are accumulated. Raises `OperatorError` for complex numbers."""
        self.need(not tensor.is_complex(), f"computes with real numbers, but was given {tensor.dtype}")
        return tensor.to(self.accumulate)

    def fail(self, message: str) -> OperatorError:
        """The error to raise, with the operator's name before it."""
        return OperatorError(f"{self.operator}: {message}")

    def need(self, condition: bool, message: str) -> None:
        """Raises `OperatorError` with `message` unless `condition`."""
        if not condition:
            raise self.fail(message)


Names = Sequence[str]
Compute = Callable[[OperatorCall, Tensors], Outputs]
ComputeRanks = Callable[[OperatorCall, Sequence[Tensors]], Sequence[Outputs]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator under given parameters.

    `inputs` are the names of the operands in ATB's order; a `?` at the end marks one that may be
    `None`, or left out where none follows. `writes` are indices of inputs that are written in place
    without being an output; their new values follow the outputs in what `compute` returns. `aliases`
    maps an output to the input whose memory it is (the caches of ReshapeAndCache). `collective`
    operators compute over all ranks at once, those `by_chip` not alike on all chips.
    """

    name: str
    schema: Schema
    inputs: tuple[str, ...]
    writes: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    collective: bool = False
    by_chip: bool = False

    def defaults(self) -> Param:
        """Every parameter with its default."""
        return read(self.name, self.schema, {})


@dataclass(frozen=True, slots=True)
class Registered:
    """The entry of an operator in the table; `compute` or, of a collective one, `ranks` is its function."""

    schema: Schema
    inputs: Names | Callable[[Param], Names]
    writes: Names | Callable[[Param], Names]
    aliases: Mapping[int, str] | Callable[[Param], Mapping[int, str]]
    collective: bool
    compute: Compute | None = None
    ranks: ComputeRanks | None = None
    by_chip: bool = False
    pairs: bool = False


_TABLE: dict[str, Registered] = {}


def operator(
    name: str,
    schema: Schema,
    inputs: Names | Callable[[Param], Names],
    *,
    writes: Names | Callable[[Param], Names] = (),
    aliases: Mapping[int, str] | Callable[[Param], Mapping[int, str]] | None = None,
    by_chip: bool = False,
    pairs: bool = False,
) -> Callable[[Compute], Compute]:
    """Register the decorated function under ATB's class name.

    `inputs`, `writes` and `aliases` may depend on the (complete) parameters. `writes` and `aliases` name
    operands. Only an operator that is `by_chip` is told the chip. In one with `pairs` every token may meet
    every other, so that what is made on the way may be larger than what is given (see `room.py`).
    """

    def add(function: Compute) -> Compute:
        _TABLE[name] = Registered(
            schema, inputs, writes, aliases or {}, False, function, by_chip=by_chip, pairs=pairs
        )
        return function

    return add


def collective(
    name: str, schema: Schema, inputs: Names | Callable[[Param], Names], *, writes: Names = ()
) -> Callable[[ComputeRanks], ComputeRanks]:
    """Register the decorated function, which takes the operands of all ranks, under ATB's class name."""

    def add(function: ComputeRanks) -> ComputeRanks:
        _TABLE[name] = Registered(schema, inputs, writes, {}, collective=True, ranks=function)
        return function

    return add


WITHOUT_REFERENCE = {
    "EventOperation": "it records or awaits an event of a stream and has no tensors: there is nothing to "
    "compute",
    "IfCondOperation": "it runs one of two graphs and computes nothing itself; the operators of the graph "
    "that ran are in the dump and are checked there",
    "LinearSparseOperation": "its weight is stored compressed by an external tool whose format is not "
    "published, so the weight that it multiplies by cannot be had from a dump",
}
"""Operators of ATB that cannot be computed here, and why."""


def known() -> tuple[str, ...]:
    """The names of all operators that can be computed."""
    return tuple(sorted(_TABLE))


def operator_of(name: str, param: Param | None = None) -> Operator:
    """The operator called `name`, as it is under `param`. Raises `OperatorError` for an unknown name."""
    entry = registered(name)
    complete = read(name, entry.schema, param or {})
    inputs = names_of(entry.inputs, complete)
    plain = [n.rstrip("?") for n in inputs]
    writes = tuple(plain.index(n) for n in names_of(entry.writes, complete))
    pairs = entry.aliases(complete) if callable(entry.aliases) else entry.aliases
    aliases = tuple((out, plain.index(n)) for out, n in pairs.items())
    return Operator(name, entry.schema, inputs, writes, aliases, entry.collective, entry.by_chip)


def registered(name: str) -> Registered:
    """The entry of `name`. Raises `OperatorError`, with names that are close, where there is none."""
    if name in _TABLE:
        return _TABLE[name]
    if name in WITHOUT_REFERENCE:
        raise OperatorError(f"{name}: has no reference computation: {WITHOUT_REFERENCE[name]}")
    close = difflib.get_close_matches(name, _TABLE, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else "known() lists those that can be computed"
    raise OperatorError(f"{name}: no such operator; {hint}")


def names_of(names: Names | Callable[[Param], Names], param: Param) -> tuple[str, ...]:
    """Names that may depend on the parameters."""
    return tuple(names(param) if callable(names) else names)


# Parameters of operators: ATB's JSON keys, their types, defaults and allowed values.
#
# A schema maps each key to a `Key` (or, for a nested struct, to another schema). `read` turns the JSON of
# a dump into a complete mapping: missing keys take ATB's defaults, unknown keys and values of the wrong
# type or outside an enumeration are errors that name the operator, the key and what is allowed.


Param = Mapping[str, Any]
_Reader = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One key: `kind` is `int`, `float`, `bool`, `str`, `ints` or `floats`.

    `allowed` lists the values of an enumeration with their meaning, empty for a free value. `alias` is
    another spelling (ATB's own CSV tests rename some keys).
    """

    kind: str
    default: Any
    allowed: Mapping[Any, str] | None = None
    alias: str = ""


Schema = Mapping[str, Union[Key, "Schema"]]


def integer(default: int = 0, alias: str = "") -> Key:
    """Any whole number."""
    return Key("int", default, alias=alias)


def choice(default: int, *names: str, start: int = 0, extra: Mapping[int, str] | None = None) -> Key:
    """An enumeration printed as a number: `names` count from `start`, `extra` adds values out of line."""
    values = {start + i: name for i, name in enumerate(names)}
    return Key("int", default, {**values, **(extra or {})})


def number(default: float = 0.0, alias: str = "") -> Key:
    """A float; ATB prints float32 widened to double."""
    return Key("float", default, alias=alias)


def flag(default: bool = False, alias: str = "") -> Key:
    """A truth value; 0 and 1 are taken too."""
    return Key("bool", default, alias=alias)


def text(default: str = "", *names: str) -> Key:
    """A string, of `names` when any are given."""
    return Key("str", default, {name: name for name in names} or None)


def integers(*default: int, alias: str = "") -> Key:
    """A list of whole numbers."""
    return Key("ints", tuple(default), alias=alias)


def floats(*default: float) -> Key:
    """A list of floats."""
    return Key("floats", tuple(default))


DATA_TYPE: Mapping[int, str] = {
    -1: "that of the input", 0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 9: "int64",
    12: "bool", 27: "bfloat16", 34: "hifloat8", 35: "float8_e5m2", 36: "float8_e4m3fn",
}  # fmt: skip
"""The numbers that `outDataType` and `outTensorType` take."""


def data_type(default: int = -1, alias: str = "") -> Key:
    """A dtype by its ACL number."""
    return Key("int", default, DATA_TYPE, alias)


COMMUNICATION: Schema = {
    "rank": integer(),
    "rankSize": integer(),
    "rankRoot": integer(),
    "backend": text("hccl", "hccl", "lccl", "lcoc", "mc2"),
    "commMode": choice(0, "several processes", "several threads", start=0),
    "rankTableFile": text(),
    "commDomain": text(),
    "hcclComm": Key("any", 0),
}
"""The parameters of every operator between ranks."""


def read(operator: str, schema: Schema, param: Param) -> dict[str, Any]:
    """`param` checked against `schema` and completed with defaults. Raises `OperatorError`."""
    return _read(operator, schema, param, "")


def _read(operator: str, schema: Schema, param: Param, prefix: str) -> dict[str, Any]:
    aliases = {key.alias: name for name, key in schema.items() if isinstance(key, Key) and key.alias}
    values: dict[str, Any] = {}
    for name, value in param.items():
        schema_name = aliases.get(name, name)
        if schema_name not in schema:
            close = difflib.get_close_matches(name, list(schema), 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise OperatorError(
                f"{operator}: unknown parameter {prefix}{name}{hint}; "
                f"known: {', '.join(sorted(schema)) or 'none'}"
            )
        values[schema_name] = value
    result: dict[str, Any] = {}
    for name, key in schema.items():
        if not isinstance(key, Key):
            inner = values.get(name)
            if inner is not None and not isinstance(inner, Mapping):
                raise OperatorError(
                    f"{operator}: parameter {prefix}{name} must be a struct, got {inner!r:.100}"
                )
            result[name] = _read(operator, key, inner or {}, f"{prefix}{name}.")
        elif name in values:
            result[name] = _value(operator, prefix + name, key, values[name])
        else:
            result[name] = key.default
    return result


def _value(operator: str, name: str, key: Key, value: Any) -> Any:
    called, reader = _KINDS[key.kind]
    checked = reader(value)
    if checked is None:
        raise OperatorError(f"{operator}: parameter {name} must be {called}, got {value!r:.100}")
    if key.allowed is not None and checked not in key.allowed:
        allowed = ", ".join(f"{v}" if v == m else f"{v} ({m})" for v, m in key.allowed.items())
        raise OperatorError(f"{operator}: parameter {name} must be one of {allowed}, got {value!r:.100}")
    return checked


def _integer(value: Any) -> int | None:
    """ATB's own parameters have 64 bits at most."""
    fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value if fits else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, float) or _integer(value) is not None else None


def _list_of(read_item: _Reader) -> _Reader:
    def read_list(value: Any) -> tuple[Any, ...] | None:
        if not isinstance(value, (list, tuple)):
            return None
        items = [read_item(item) for item in value]
        return None if None in items else tuple(items)

    return read_list


_KINDS: Mapping[str, tuple[str, _Reader]] = {
    "int": ("a whole number of 64 bits", _integer),
    "float": ("a number", _float),
    "bool": ("true or false", lambda value: bool(value) if value in (0, 1) else None),
    "str": ("a string", lambda value: value if isinstance(value, str) else None),
    "ints": ("a list of whole numbers", _list_of(_integer)),
    "floats": ("a list of numbers", _list_of(_float)),
    "any": ("a value", lambda value: 0 if value is None else value),
}
"""The name of each kind, and a function that converts a value to its Python type, or gives `None`."""


# The one rounding of an output: to nearest, ties to even, whatever dtype it was computed in.


def rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`value` in `dtype`, to nearest, ties to even; integers saturate and NaN becomes 0."""
    if dtype.is_floating_point or not value.is_floating_point():
        narrow = value.dtype == torch.float64 and dtype not in (torch.float32, torch.float64)
        return (_odd(value) if narrow else value).to(dtype)
    limits = torch.iinfo(dtype)
    return value.round().nan_to_num(0.0).clamp(limits.min, limits.max).to(dtype)


def _odd(value: torch.Tensor) -> torch.Tensor:
    """float64 as float32 with the last bit set where it is not exact, so that the next rounding is right.

    torch itself casts float64 to the short types by way of float32, which rounds twice.
    """
    near = value.float()
    wide = near.double()
    even = (near.view(torch.int32) & 1) == 0
    toward = torch.where(value > wide, torch.inf, -torch.inf).float()
    return torch.where((wide != value) & even & near.isfinite(), torch.nextafter(near, toward), near)
