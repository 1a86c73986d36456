"""The table of operators: `operator` and `collective` register one, `operator_of` and `known` ask for them.

An operator is a plain function from named input tensors to output values.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import torch

from ..errors import OperatorError
from ..vocabulary import DEFAULT_SOC
from .param import Param, Schema, read
from .rounding import rounded

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
    name: str,
    schema: Schema,
    inputs: Names | Callable[[Param], Names],
    *,
    writes: Names = (),
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
