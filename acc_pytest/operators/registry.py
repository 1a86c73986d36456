"""The table of operators and the way to run one: `compute`, `compute_collective`, `operator_of`, `known`.

An operator is a plain function from named input tensors to output values. What all of them share
happens here: parameters are checked and completed, inputs are counted and named, each output is
rounded once to its dtype, and nothing that is returned shares memory with an input.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Union

import torch

from ..errors import OperatorError
from ..older_torch import half_on_cpu
from ..vocabulary import DEFAULT_SOC
from .param import Param, Schema, read
from .room import Room
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
        """What the operator writes."""
        return self.encode(self.value) if self.encode else rounded(self.value, self.dtype)


Output = Union[As, torch.Tensor]
"""An output: wide with its dtype, or a tensor that is exact as it is (moved, counted, compared)."""

Outputs = Sequence[Output]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One computation: whose, with which complete parameters, in which precision, on which chip.

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
        """`tensor` in the dtype in which sums are accumulated."""
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
class _Registered:
    schema: Schema
    inputs: Names | Callable[[Param], Names]
    writes: Names | Callable[[Param], Names]
    aliases: Mapping[int, str] | Callable[[Param], Mapping[int, str]]
    collective: bool
    compute: Compute | None = None
    ranks: ComputeRanks | None = None
    by_chip: bool = False
    pairs: bool = False


_TABLE: dict[str, _Registered] = {}


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
        _TABLE[name] = _Registered(
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
        _TABLE[name] = _Registered(schema, inputs, writes, {}, collective=True, ranks=function)
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
    entry = _entry(name)
    complete = read(name, entry.schema, param or {})
    inputs = _names(entry.inputs, complete)
    plain = [n.rstrip("?") for n in inputs]
    writes = tuple(plain.index(n) for n in _names(entry.writes, complete))
    pairs = entry.aliases(complete) if callable(entry.aliases) else entry.aliases
    aliases = tuple((out, plain.index(n)) for out, n in pairs.items())
    return Operator(name, entry.schema, inputs, writes, aliases, entry.collective, entry.by_chip)


def compute(
    name: str,
    param: Param,
    inputs: Sequence[torch.Tensor | None],
    *,
    accumulate: torch.dtype = torch.float32,
    round_outputs: bool = True,
    soc: str = DEFAULT_SOC,
    written: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """The outputs of operator `name`, then the new values of the inputs it writes in place.

    `param` has ATB's JSON keys; missing ones take ATB's defaults. `inputs` are in ATB's order, `None` or
    a tensor without elements where an optional operand is not given. Sums are accumulated in
    `accumulate`; each floating output is then rounded once to the dtype that ATB writes, or stays in
    `accumulate` with `round_outputs=False` (integer outputs of quantisation are then not rounded either).
    `soc` is the chip whose rules are followed where chips differ. `written` is how many elements the outputs
    have in the dump that all comes from: with it nothing is made that is out of proportion (`room.py`).

    Raises `OperatorError` for an unknown operator, wrong parameters, and inputs that do not fit.
    """
    entry = _entry(name)
    if entry.compute is None:
        (result,) = compute_collective(
            name,
            param,
            [inputs],
            accumulate=accumulate,
            round_outputs=round_outputs,
            soc=soc,
            written=written,
        )
        return result
    chip = soc if entry.by_chip else DEFAULT_SOC
    call = OperatorCall(name, read(name, entry.schema, param), accumulate, chip, round_outputs)
    given = _named(call, _names(entry.inputs, call.param), inputs)
    with torch.no_grad(), _fitting(call, given), _room(name, inputs, written, entry.pairs):
        return _finished(call, entry.compute(call, given), _memory(inputs))


def compute_collective(
    name: str,
    param: Param | Sequence[Param],
    inputs: Sequence[Sequence[torch.Tensor | None]],
    *,
    accumulate: torch.dtype = torch.float32,
    round_outputs: bool = True,
    soc: str = DEFAULT_SOC,
    written: int | None = None,
) -> list[tuple[torch.Tensor, ...]]:
    """`compute` for an operator between ranks: inputs of every rank in rank order, outputs likewise.

    `param` is one for all ranks, or one a rank where they differ (`sendCounts`); their `rank` is not
    used, the position in `inputs` is. Raises `OperatorError` as `compute` does, and when the number of
    ranks is not the parameter's `rankSize`.
    """
    entry = _entry(name)
    if entry.ranks is None:
        raise OperatorError(f"{name}: computes on one rank; call compute for each rank instead")
    params = [param] * len(inputs) if isinstance(param, Mapping) else list(param)
    if not inputs or len(params) != len(inputs):
        raise OperatorError(f"{name}: {len(inputs)} ranks have inputs, but {len(params)} have parameters")
    complete = [read(name, entry.schema, p) for p in params]
    size = complete[0]["rankSize"]
    if "rankSize" in params[0] and size != len(inputs):
        raise OperatorError(
            f"{name}: parameter rankSize is {size}, but the inputs of {len(inputs)} ranks are given; "
            "give the inputs of all ranks to compute_collective"
        )
    call = OperatorCall(name, {**complete[0], "ranks": complete}, accumulate, soc, round_outputs)
    given = [_named(call, _names(entry.inputs, p), row) for p, row in zip(complete, inputs)]
    everything = [one for row in inputs for one in row]
    with torch.no_grad(), _fitting(call, given[0]), _room(name, everything, written, entry.pairs):
        taken = {memory for row in inputs for memory in _memory(row)}
        return [_finished(call, row, taken) for row in entry.ranks(call, given)]


def _entry(name: str) -> _Registered:
    if name in _TABLE:
        return _TABLE[name]
    if name in WITHOUT_REFERENCE:
        raise OperatorError(f"{name}: has no reference computation: {WITHOUT_REFERENCE[name]}")
    close = difflib.get_close_matches(name, _TABLE, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else "known() lists those that can be computed"
    raise OperatorError(f"{name}: no such operator; {hint}")


def _names(names: Names | Callable[[Param], Names], param: Param) -> tuple[str, ...]:
    return tuple(names(param) if callable(names) else names)


def _named(call: OperatorCall, names: tuple[str, ...], inputs: Sequence[torch.Tensor | None]) -> Tensors:
    """Inputs by name. Raises `OperatorError` when there are too few, too many, or one is missing."""
    needed = max((i + 1 for i, n in enumerate(names) if not n.endswith("?")), default=0)
    if not needed <= len(inputs) <= len(names):
        expected = f"{needed}" if needed == len(names) else f"{needed} to {len(names)}"
        raise call.fail(f"takes {expected} inputs ({', '.join(names) or 'none'}), got {len(inputs)}")
    given = {}
    for name, tensor in zip(names, inputs):
        plain, optional = name.rstrip("?"), name.endswith("?")
        if tensor is None or (optional and tensor.numel() == 0):
            call.need(optional, f"input {plain} is missing")
            continue
        given[plain] = tensor
    return given


@contextmanager
def _fitting(call: OperatorCall, given: Tensors) -> Iterator[None]:
    """Turn torch's complaints about shapes and dtypes that no check above names into `OperatorError`."""
    try:
        with half_on_cpu() if call.accumulate == torch.float16 else nullcontext():
            yield
    except (RuntimeError, IndexError, TypeError, ValueError, ArithmeticError) as error:
        shapes = ", ".join(f"{name} {t.dtype} {list(t.shape)}" for name, t in given.items())
        reason = str(error).partition("\n")[0]
        raise call.fail(f"the inputs do not fit each other or the parameters ({shapes}): {reason}") from error


def _room(
    name: str, inputs: Sequence[torch.Tensor | None], written: int | None, pairs: bool
) -> AbstractContextManager[object]:
    """What is made is held against the tensors of a dump, where they are known to come from one."""
    return nullcontext() if written is None else Room(name, inputs, written, pairs=pairs)


def _memory(tensors: Sequence[torch.Tensor | None]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if t is not None}


def _finished(call: OperatorCall, outputs: Outputs, taken: set[int]) -> tuple[torch.Tensor, ...]:
    """Outputs rounded (or widened), contiguous, in memory of their own; `taken` grows by it."""
    results = []
    for output in outputs:
        if call.rounds:
            done = output.rounded() if isinstance(output, As) else output
        else:
            done = output.value if isinstance(output, As) else output
            done = call.wide(done) if done.is_floating_point() else done
        done = done.contiguous()
        if done.untyped_storage().data_ptr() in taken:
            done = done.clone()
        taken.add(done.untyped_storage().data_ptr())
        results.append(done)
    return tuple(results)
