"""Is an operator of GE right? Computed again in float64 from its dumped inputs and the graph's text.

A fused operator is computed part by part. Nothing is said where an input is missing, where the memory of an
input became that of the output, or where a part has no reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import torch

from ..errors import AccError, OperatorError
from ..ge_operators import Unrounded
from ..mapping.pair import Operand, Pair
from ..mapping.torchair.operators import DumpedOperator
from ..mapping.views import Permuted, Whole
from ..tensors.ref import TensorRef
from .ge_parts import Chain, chain_of
from .ge_records import GeRecords, RecordedRun
from .measured_bound import agrees_as_measured
from .one_operator import agrees, check_size
from .recomputation import LOOKING, Recomputation, Recomputations, RecomputeBudget, attempted, worst

_READ = "is read, not written by it"


class GeRecomputer:
    """Computes operators of the GE dump at `root` again, each output once. See `Recomputed`."""

    def __init__(self, root: str, pairs: Sequence[Pair], budget: RecomputeBudget = LOOKING) -> None:
        self._pairs = pairs
        self._budget = budget
        self._records = GeRecords(root)
        self._recomputed = Recomputations()

    def of_pair(self, number: int) -> Recomputation:
        """Whether the operator that wrote the tensor of a pair is right."""
        operand = self._pairs[number].mine
        if not operand.slot.startswith("output"):
            return Recomputation(why=f"{operand.slot} {_READ}")
        return worst([self._of(ref) for ref in operand.refs])

    def of_operator(self, number: int, path: str) -> Recomputation:
        """The outcome for all outputs of the operator called `path` in the graph, in the run of a pair."""
        try:
            ran = self._records.run_of(self._pairs[number].mine.refs[0])
            operator = ran.named(path) if ran is not None else None
        except (AccError, OSError) as error:
            return Recomputation(why=str(error))
        if operator is None:
            return Recomputation(why=f"{path} left no record")
        return worst([self._of(end.ref) for end in operator.outputs])

    def of_golden(self, number: int) -> Recomputation:
        """Whether the operator of a pair makes golden's output of golden's inputs."""
        operand = self._pairs[number].mine
        if not operand.slot.startswith("output"):
            return Recomputation(why=f"{operand.slot} {_READ}")
        return attempted(lambda: self._of_golden(number, operand), f"computing golden's {operand.name} again")

    def _of_golden(self, number: int, operand: Operand) -> Recomputation:
        """Raises `AccError` for everything that keeps the operator from being computed again."""
        ran, operator, index = self._place(operand.refs[0])
        chain = chain_of(ran, operator)
        inputs = self._golden_inputs(chain)
        missing = chain.read - inputs.keys()
        if missing:
            raise OperatorError(f"golden has nothing to compare with its input {min(missing)}")
        golden = _golden_tensor(self._pairs[number].golden)
        mine = operand.refs[0].header().dtype.torch_dtype()
        limit = check_size([operand.refs[0], *(side.refs[0] for side in inputs.values())])
        if golden.is_floating_point() and mine.is_floating_point:
            golden = golden.to(mine) if mine.itemsize < golden.dtype.itemsize else golden
        expected = chain.output(
            index,
            lambda place: _golden_tensor(inputs[place]).reshape(operator.inputs[place].ref.header().shape),
            limit,
        )
        return agrees(expected, golden)

    def unlike(self, number: int, path: str) -> str:
        """Attributes of GE's operators are golden's: both sides come of one graph."""
        return ""

    def _golden_inputs(self, chain: Chain) -> Mapping[int, Operand]:
        """Golden's tensors for dumped inputs; constants of the graph are the same on both sides."""
        path = chain.operator.entry.path
        operands = {
            number: Operand("", "", "", "", (chain.operator.inputs[number].ref,))
            for number in chain.constants
        }
        for number in self._by_file.get(path, ()):
            mine, golden = self._pairs[number].mine, self._pairs[number].golden
            kind, _, place = mine.refs[0].member.partition("/")
            if kind == "inputs" and golden.refs[0].path != path and mine.view == Whole():
                operands[int(place)] = golden
        return operands

    @cached_property
    def _by_file(self) -> Mapping[str, Sequence[int]]:
        """The pairs of each record of mine."""
        by_file: dict[str, list[int]] = {}
        for number, pair in enumerate(self._pairs):
            by_file.setdefault(pair.mine.refs[0].path, []).append(number)
        return by_file

    def _place(self, ref: TensorRef) -> tuple[RecordedRun, DumpedOperator, int]:
        """The place of a tensor: run, operator, number of the output. Raises `OperatorError`."""
        ran = self._records.run_of(ref)
        operator = ran.by_file.get(ref.path) if ran is not None else None
        kind, _, number = (ref.member or "").partition("/")
        if ran is None or operator is None or kind != "outputs":
            raise OperatorError("its record is not in the dump")
        return ran, operator, int(number)

    def _of(self, ref: TensorRef) -> Recomputation:
        return self._recomputed.of(ref, lambda: self._computed(ref), f"computing {ref} again")

    def _computed(self, ref: TensorRef) -> Recomputation:
        """Raises `AccError` for everything that keeps the operator from being computed again."""
        ran, operator, index = self._place(ref)
        if operator.hands_on:
            return agrees(Unrounded(operator.inputs[index].ref.open(), moved=True), ref.open())
        chain = chain_of(ran, operator)
        read = [operator.inputs[number].ref for number in chain.read]
        _check_memory(operator, chain.read, index)
        limit = check_size([ref, *read], self._budget.limit)
        outcome = self._judged(chain, index, limit, ref.open())
        if outcome.outcome == "wrong" and not chain.certain:
            return Recomputation(why="the device may have read something else than the graph text says")
        return outcome

    def _judged(self, chain: Chain, index: int, limit: int, mine: torch.Tensor) -> Recomputation:
        def open_input(place: int) -> torch.Tensor:
            return chain.operator.inputs[place].ref.open()

        def rounded() -> torch.Tensor:
            return chain.output(index, open_input, limit, rounds=True).value.to(mine.dtype)

        expected = chain.output(index, open_input, limit)
        if not self._budget.measured:
            return agrees(expected, mine)
        how = "the reference with every intermediate value in the types of its inputs, against float64"
        return agrees_as_measured(expected, rounded, mine, how)


def _check_memory(operator: DumpedOperator, read: Iterable[int], index: int) -> None:
    """Raises `OperatorError` where the output was written to the memory of an input that was dumped later.

    It does so too where there is no record, which knows the memory.
    """
    if operator.record is None:
        raise OperatorError("only statistics of its tensors were dumped")
    address = operator.record.outputs[index].address
    if address and any(operator.record.inputs[number].address == address for number in read):
        raise OperatorError("an input lies in the memory of its output, so that it was overwritten")


def _golden_tensor(side: Operand) -> torch.Tensor:
    """A tensor of golden as mine holds it. Raises `OperatorError` for one that is only part of that."""
    tensor = side.refs[0].open()
    if isinstance(side.view, Permuted):
        return tensor.permute(side.view.order)
    if side.view != Whole() or len(side.refs) > 1:
        raise OperatorError("golden holds it in pieces")
    return tensor
