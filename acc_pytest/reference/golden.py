"""The right outputs of an operator: each output of a case beside the dump's."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..base.reason import Reason
from ..errors import CannotDecode, Incomparable, NoPayload
from ..operators import WITHOUT_REFERENCE, compute, compute_collective, known, operator_of
from ..operators.layout import nz_in_logical_dims
from ..operators.registry import read
from ..tensors.device_layouts import conversion, is_tiled
from ..tensors.dtypes import by_name
from ..tensors.file_bytes import check_mapped, mapped
from ..tensors.ref import TensorRef
from .case import Case, Declared, in_precision
from .prepare import all_ranks


@dataclass(frozen=True, slots=True)
class Expected:
    """One output: its slot, golden rounded to the type that is written, and mine.

    `mine` is `None` where the dump has no such tensor; `number` counts outputs, and continues with the
    inputs that are written in place.
    """

    slot: str
    number: int
    golden: torch.Tensor
    mine: torch.Tensor | None
    path: str


class Golden:
    """The reference computation of one case.

    Raises `NoPayload` where nothing can be judged through no fault of the run, other `AccError` for
    wrong parameters and files; what does not fit the operator when it is first computed.
    """

    def __init__(self, case: Case) -> None:
        refuse_unknown(case.name)
        self.operator = operator_of(case.name, case.param)
        self.param: dict[str, Any] = read(case.name, self.operator.schema, case.param)
        self.case = case = in_precision(case)
        if (self.operator.writes or self.operator.aliases) and not case.clean:
            raise NoPayload(
                Reason(
                    "cannot judge: {} writes its inputs in place, and the dump has them only as they are "
                    "afterwards; dump the state before execution as well (-time 0 or 2)",
                    case.name,
                )
            )
        ranks: tuple[Case, ...] = (case,)
        if self.operator.collective:
            ranks = case.ranks or all_ranks(case, int(self.param.get("rankSize", 1)))
        self.ranks = tuple(map(in_precision, ranks))
        self.inputs = [open_inputs(rank_case) for rank_case in self.ranks]
        self._exact: tuple[torch.Tensor, ...] | None = None
        self._low: dict[torch.dtype, tuple[torch.Tensor, ...]] = {}

    def of(self, inputs: list[list[torch.Tensor | None]]) -> Golden:
        """A computation of other inputs with the same operator, for each rank a list of them."""
        golden = copy.copy(self)
        golden.__dict__.pop("results", None)
        golden.inputs, golden._exact, golden._low = inputs, None, {}
        return golden

    @functools.cached_property
    def results(self) -> tuple[torch.Tensor, ...]:
        """The tensors that the operator writes, rounded: outputs, then the inputs that it writes in place."""
        return self._compute()

    @property
    def outputs(self) -> int:
        """The number of the operator's outputs."""
        return len(self._exact or self.results) - len(self.operator.writes)

    def _compute(self, **how: Any) -> tuple[torch.Tensor, ...]:
        case = self.case
        check_mapped()
        # The elements that the dump has of the outputs bound what numbers may ask for.
        refs = [ref for rank_case in self.ranks for ref in (*rank_case.outputs, *rank_case.written)]
        elements = sum(ref.header().numel for ref in refs if ref is not None)
        how |= {"soc": case.soc, "dump_elements": elements}
        if not self.operator.collective:
            return compute(case.name, case.param, self.inputs[0], **how)
        params = [rank_case.param for rank_case in self.ranks]
        rows = compute_collective(case.name, params, self.inputs, **how)
        return rows[self.position]

    @property
    def position(self) -> int:
        """The place of this rank among `ranks`."""
        case = self.case
        if case.directory:
            return next(i for i, rank_case in enumerate(self.ranks) if rank_case.directory == case.directory)
        return next((i for i, rank_case in enumerate(self.ranks) if rank_case.rank == case.rank), 0)

    def exact(self, number: int) -> torch.Tensor | None:
        """Output `number` in float64 and not rounded; `None` for one that holds no floats."""
        value = self.unrounded(number)
        return value if value is not None and value.is_floating_point() else None

    def unrounded(self, number: int) -> torch.Tensor | None:
        """Output `number` before its rounding, in float64 where it holds floats; `None` where there is none.

        Of an operator that quantises these are the values that it rounds to whole numbers.
        """
        if self._exact is None:
            self._exact = self._compute(accumulate=torch.float64, round_outputs=False)
        return self._exact[number] if number < len(self._exact) else None

    def low(self, number: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Output `number` as a device would compute it that writes every intermediate value in its type.

        `dtype` is that type where it is known; else the operator is computed once more for it.
        """
        dtype = dtype or self.results[number].dtype
        if dtype not in self._low:
            self._low[dtype] = self._compute(accumulate=dtype)
        return self._low[dtype][number]

    @property
    def elements(self) -> int:
        """Elements of all inputs and outputs, of every rank."""
        inputs = sum(t.numel() for row in self.inputs for t in row if t is not None)
        return inputs + sum(t.numel() for t in self.results)

    def expected(self) -> Iterator[Expected]:
        """Every output, then every input that is written in place and that the dump has after execution.

        Of an operator without outputs every input counts: what is not written has to stay as it was.
        """
        case, results = self.case, self.results
        for number in range(self.outputs):
            golden = results[number]
            mine = open_output(case, number, tuple(golden.shape))
            ref = case.outputs[number] if number < len(case.outputs) else None
            if ref is None and not golden.numel() and mine is None:
                mine = golden
            yield Expected(f"output[{number}]", number, golden, mine, str(ref) if ref else "")
        new = dict(zip(self.operator.writes, results[self.outputs :]))
        mine_inputs = self.inputs[self.position]
        for number, ref in enumerate(case.written):
            before = mine_inputs[number] if number < len(mine_inputs) else None
            golden_after = new.get(number, before if not self.outputs else None)
            if ref is None or golden_after is None:
                continue
            mine = in_shape(ref, tuple(golden_after.shape))
            yield Expected(f"input[{number}]", self.outputs + number, golden_after, mine, str(ref))

    @property
    def unseen(self) -> list[int]:
        """Inputs that are written in place and that the dump does not have after execution."""
        refs = self.case.written
        return [n for n in self.operator.writes if n >= len(refs) or refs[n] is None]


def refuse_unknown(name: str) -> None:
    """Raises `NoPayload` for an operator that has no reference computation, and says why."""
    if name in known():
        return
    if name in WITHOUT_REFERENCE:
        raise NoPayload(
            Reason("not supported: {} has no reference computation: {}", name, WITHOUT_REFERENCE[name])
        )
    raise NoPayload(Reason("not supported: {} is not in the catalogue (acc opcheck --list)", name))


def refuse_unseen(golden: Golden) -> None:
    """Raises `NoPayload` for an operator whose only results are inputs that the dump lost."""
    if not golden.outputs and len(golden.unseen) == len(golden.operator.writes):
        raise NoPayload(
            Reason(
                "cannot judge: {} writes its inputs in place and has no other output, and the dump lacks the "
                "state after execution; dump with -time 2",
                golden.case.name,
            )
        )


def check_outputs(golden: Golden) -> None:
    """Raises `Incomparable` when the dump has more outputs than the operator writes."""
    count = len(golden.case.outputs)
    if golden.outputs and count > golden.outputs:
        raise Incomparable(
            Reason(
                "the dump has {} outputs of {}, but {} with these parameters writes {}",
                count,
                golden.case.full_name,
                golden.case.name,
                golden.outputs,
            )
        )


# The tensors of a case, opened in the form in which the operators take them.


_LOGICAL_NZ = frozenset({
    "LinearOperation", "LinearParallelOperation", "GroupedMatmulWithRoutingOperation",
    "MmDeqSwigluQuantMmDeqOperation", "GmmDeqSwigluQuantGmmDeqOperation",
})  # fmt: skip
"""Operators whose NZ weights may be given with the sizes of the matrix instead of those of its tiles."""
_HIFLOAT8 = "hifloat8"


def open_inputs(case: Case) -> list[torch.Tensor | None]:
    """The inputs in ATB's order; a declared one without a file and without elements is empty.

    Raises `AccError` for a file that is no tensor.
    """
    tensors: list[torch.Tensor | None] = []
    for number, ref in enumerate(case.inputs):
        if ref is None:
            declared = _at(case.declared_inputs, number)
            tensors.append(_empty(declared) if declared is not None else None)
            continue
        tensor = open_tensor(ref)
        tiled = ref.header().layout == "fractal_nz"
        if tiled and case.name in _LOGICAL_NZ and 2 <= tensor.ndim < 4:
            tensor = nz_in_logical_dims(tensor)
        tensors.append(tensor)
    return tensors


def open_output(case: Case, number: int, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The dump's output `number`, tiles undone where `shape` is that of the logical tensor.

    `None` where it has no such file. The probe writes none for a tensor without elements.
    """
    ref = _at(case.outputs, number)
    if ref is None:
        declared = _at(case.declared_outputs, number)
        return _empty(declared) if declared is not None and not declared.numel else None
    return in_shape(ref, shape)


def in_shape(ref: TensorRef, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor of `ref`; stored in tiles, it becomes the logical one if that has `shape`."""
    tensor, layout = open_tensor(ref), ref.header().layout
    if is_tiled(layout) and tuple(tensor.shape) != shape:
        undo = conversion(layout, tuple(tensor.shape), shape)
        if undo is not None:
            return undo.to_logical(tensor)
    return tensor


def open_tensor(ref: TensorRef) -> torch.Tensor:
    """The tensor of a file; hifloat8, which torch has not, as its bytes."""
    try:
        return ref.open()
    except CannotDecode:
        header = ref.header()
        if header.dtype.name != _HIFLOAT8:
            raise
        return mapped(ref.path, torch.uint8, header.shape, header.offset)


def _at(items: tuple[Declared | None, ...] | tuple[TensorRef | None, ...], number: int):  # type: ignore[no-untyped-def]
    return items[number] if number < len(items) else None


def _empty(declared: Declared) -> torch.Tensor | None:
    """A tensor without elements as declared; `None` where it has some, or is of no type torch has."""
    if declared.numel:
        return None
    try:
        return torch.empty(declared.shape, dtype=by_name(declared.dtype).torch_dtype())
    except (CannotDecode, RuntimeError):  # torch has no tensor of no elements but 2^63 rows either
        return None
