"""One operator computed: `compute`, and `compute_collective` for all ranks at once.

Every operator goes through here: parameters are checked and completed, inputs are counted and named,
each output is rounded once to its dtype, and nothing that is returned shares memory with an input.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from ..base.older_torch import half_on_cpu
from ..base.vocabulary import DEFAULT_SOC
from ..errors import OperatorError
from .registry import As, OperatorCall, Outputs, Param, Tensors, names_of, read, registered
from .room import Room


def compute(
    name: str,
    param: Param,
    inputs: Sequence[torch.Tensor | None],
    *,
    accumulate: torch.dtype = torch.float32,
    round_outputs: bool = True,
    soc: str = DEFAULT_SOC,
    dump_elements: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """The outputs of operator `name`, then the new values of the inputs it writes in place.

    `param` has ATB's JSON keys; missing ones take ATB's defaults. `inputs` are in ATB's order, `None` or
    a tensor without elements where an optional operand is not given. Sums are accumulated in
    `accumulate`; each floating output is then rounded once to the dtype that ATB writes, or stays in
    `accumulate` with `round_outputs=False` (integer outputs of quantisation are then not rounded either).
    `soc` is the chip whose rules are followed where chips differ. `dump_elements` is the number of
    elements that the dump has of the outputs: with it nothing is made that is out of proportion (`room.py`).

    Raises `OperatorError` for an unknown operator, wrong parameters, and inputs that do not fit.
    """
    entry = registered(name)
    if entry.compute is None:
        (result,) = compute_collective(
            name,
            param,
            [inputs],
            accumulate=accumulate,
            round_outputs=round_outputs,
            soc=soc,
            dump_elements=dump_elements,
        )
        return result
    chip = soc if entry.by_chip else DEFAULT_SOC
    call = OperatorCall(name, read(name, entry.schema, param), accumulate, chip, round_outputs)
    operands = _named(call, names_of(entry.inputs, call.param), inputs)
    with torch.no_grad(), _fitting(call, operands), _room(name, inputs, dump_elements, entry.pairs):
        return _finished(call, entry.compute(call, operands), _memory(inputs))


def compute_collective(
    name: str,
    param: Param | Sequence[Param],
    inputs: Sequence[Sequence[torch.Tensor | None]],
    *,
    accumulate: torch.dtype = torch.float32,
    round_outputs: bool = True,
    soc: str = DEFAULT_SOC,
    dump_elements: int | None = None,
) -> list[tuple[torch.Tensor, ...]]:
    """`compute` for an operator between ranks: inputs of every rank in rank order, outputs likewise.

    `param` is one for all ranks, or one a rank where they differ (`sendCounts`); their `rank` is not
    used, the position in `inputs` is. Raises `OperatorError` as `compute` does, and when the number of
    ranks is not the parameter's `rankSize`.
    """
    entry = registered(name)
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
    operands = [_named(call, names_of(entry.inputs, p), row) for p, row in zip(complete, inputs)]
    everything = [tensor for row in inputs for tensor in row]
    with torch.no_grad(), _fitting(call, operands[0]), _room(name, everything, dump_elements, entry.pairs):
        memories = {memory for row in inputs for memory in _memory(row)}
        return [_finished(call, row, memories) for row in entry.ranks(call, operands)]


def _named(call: OperatorCall, names: tuple[str, ...], inputs: Sequence[torch.Tensor | None]) -> Tensors:
    """Inputs by name. Raises `OperatorError` when there are too few, too many, or one is missing."""
    needed = max((i + 1 for i, n in enumerate(names) if not n.endswith("?")), default=0)
    if not needed <= len(inputs) <= len(names):
        expected = f"{needed}" if needed == len(names) else f"{needed} to {len(names)}"
        raise call.fail(f"takes {expected} inputs ({', '.join(names) or 'none'}), got {len(inputs)}")
    operands = {}
    for name, tensor in zip(names, inputs):
        plain, optional = name.rstrip("?"), name.endswith("?")
        if tensor is None or (optional and tensor.numel() == 0):
            call.need(optional, f"input {plain} is missing")
            continue
        operands[plain] = tensor
    return operands


@contextmanager
def _fitting(call: OperatorCall, operands: Tensors) -> Iterator[None]:
    """Turn torch's complaints about shapes and dtypes that no check above names into `OperatorError`.

    Its warnings, of `.T` of a vector for one, would be lost among those of the user's own tests.
    """
    try:
        with warnings.catch_warnings(), half_on_cpu() if call.accumulate == torch.float16 else nullcontext():
            warnings.simplefilter("ignore")
            yield
    except (RuntimeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        shapes = ", ".join(f"{name} {t.dtype} {list(t.shape)}" for name, t in operands.items())
        reason = str(error).partition("\n")[0]
        raise call.fail(f"the inputs do not fit each other or the parameters ({shapes}): {reason}") from error


def _room(
    name: str, inputs: Sequence[torch.Tensor | None], dump_elements: int | None, pairs: bool
) -> AbstractContextManager[object]:
    """A bound on what is made, where the tensors are known to come from a dump."""
    return nullcontext() if dump_elements is None else Room(name, inputs, dump_elements, pairs=pairs)


def _memory(tensors: Sequence[torch.Tensor | None]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if t is not None}


def _finished(call: OperatorCall, outputs: Outputs, memories: set[int]) -> tuple[torch.Tensor, ...]:
    """Outputs rounded (or widened), contiguous, in memory of their own; `memories` grows by it."""
    results = []
    for output in outputs:
        if call.rounds:
            tensor = output.rounded() if isinstance(output, As) else output
        else:
            tensor = output.value if isinstance(output, As) else output
            tensor = call.wide(tensor) if tensor.is_floating_point() else tensor
        tensor = tensor.contiguous()
        if tensor.untyped_storage().data_ptr() in memories:
            tensor = tensor.clone()
        memories.add(tensor.untyped_storage().data_ptr())
        results.append(tensor)
    return tuple(results)
