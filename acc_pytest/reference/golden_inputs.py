"""Does an operator of ATB make golden's result from golden's inputs? With the parameters and weights of mine.

Golden has other operators, but its tensors stand for those of mine: a pair says at which places
(`golden_places`). So each input of an operator is looked up among the pairs that it computes from. Where
an input holds the values of the tensor of mine in such a pair, golden's are put there. Any other input is
what the operator that wrote it makes of golden's inputs in turn: a rotated query, the summand of a rank.
What is left is as mine has it: weights, tables, masks. An input that should have been golden's and is not
makes another result, so that nothing is called right for want of data.

The result is judged as the result of an operator of mine is (`twice`), with golden's own tensor in
the type of mine. A product of int8 reads golden's inputs before they are rounded to whole numbers. What is
left of quantisation is that of its weights: an error spread evenly over one step, 1/sqrt(12) of it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from ..base.reason import Reason
from ..base.threads import threads_for
from ..errors import AccError, OperatorError
from ..judging.standards.ascend import EXACT, op_class
from ..mapping.operand_shards import open_shards, shards_of
from ..mapping.pair import Operand, Pair
from ..mapping.reconcile import open_pair, reconcile
from ..mapping.views import RowParallel, WithResidual
from ..operators import known
from ..tensors.dtypes import by_torch
from ..tensors.location import is_directory
from ..tensors.ref import TensorRef
from .golden import Golden
from .prepare import tensors_in
from .projected import whole
from .recomputation import Recomputation
from .sources import STATES, Entry, entries_of_directory
from .twice import Twice, check_size, hold

GoldenOf = Callable[[str, int], Golden]

_HOW = "the operator on golden's inputs, with every value in the types of mine"
_LINEAR = "LinearOperation"
_DEPTH = 16
"""Operators that golden has no tensors of, one after another: a sum of experts has a few."""
_REMEMBERED = 1 << 26
"""Bytes of golden's values, and of their places, that are kept for the next operator that reads them."""


class TwoPrecisions(NamedTuple):
    """A tensor in float64, and as mine rounds. `shared` says that the two differ by what weights of whole
    numbers are off, which all rows share."""

    fine: torch.Tensor
    rounded: torch.Tensor
    shared: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    """An operator that is to be computed: for which pair, on which of its ranks, and where it was dumped.

    `depth` is how many operators of which golden has no tensor lie below it.
    """

    number: int
    rank: int
    directory: str
    depth: int = 0

    def on(self, rank: int) -> _Request:
        """The request for another rank."""
        return replace(self, rank=rank)


class GoldenInputs:
    """Computes operators of the pairs of a plan from golden's inputs.

    `parents` are the pairs that each computes from, `between` the operators on the way that are not compared
    (`Plan`). `golden_of` gives the reference of the operator in a directory, of whose output a number is
    asked for.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        parents: Sequence[Sequence[int]],
        between: Mapping[int, Sequence[str]],
        golden_of: GoldenOf,
    ) -> None:
        self._pairs = pairs
        self._parents = parents
        self._between = between
        self._golden_of = golden_of
        self._placed: dict[int, tuple[GoldenValues, ...]] = {}
        self._bytes = 0

    def of_pair(self, number: int) -> Recomputation:
        """Whether the operator of mine makes golden's tensor. Raises `AccError` where that cannot be said."""
        pair = self._pairs[number]
        index = index_of(pair.mine)
        if index is None or pair.golden.experts is not None:
            raise OperatorError(Reason("{} is not written by {}", pair.mine.slot, pair.mine.name))
        cases = [self._golden_of(operator_directory(ref), index).case for ref in pair.mine.refs]
        with threads_for(max(check_size(case.tensors) for case in cases)):
            return self._judged(number, index)

    def _judged(self, number: int, index: int) -> Recomputation:
        pair = self._pairs[number]
        golden = whole(open_pair(pair).golden)
        computed = [
            self._computed(_Request(number, rank, operator_directory(ref)), index)
            for rank, ref in enumerate(pair.mine.refs)
        ]
        fine = _as_compared(pair, [result.fine for result in computed])
        rounded = _as_compared(pair, [result.rounded for result in computed])
        if fine.shape != golden.shape or not golden.is_floating_point():
            raise OperatorError("golden's tensor is another one")
        shared = any(result.shared for result in computed)
        # Of whole numbers that stand for others it is the type of these.
        typed = pair.mine.refs[0] if scale_of(pair.mine, 0) is None else pair.mine.scales[0][0]
        twice = replace(Twice.of(fine, rounded, _HOW), shared=shared)
        return hold(twice, golden.to(typed.open().dtype))

    def _computed(self, request: _Request, index: int) -> TwoPrecisions:
        """Output `index` of an operator: fine, in float64, and as mine rounds."""
        fine = self._golden_of(request.directory, index)
        inputs = [
            [self._input(request.on(rank if fine.operator.collective else request.rank), x) for x in row]
            for rank, row in enumerate(fine.inputs)
        ]
        low = fine.of([[result and result.rounded for result in row] for row in inputs])
        fine = fine.of([[result and result.fine for result in row] for row in inputs])
        shared = any(result is not None and result.shared for row in inputs for result in row)
        return _output(fine, low, index, shared)

    def _input(self, request: _Request, tensor: torch.Tensor | None) -> TwoPrecisions | None:
        """An input with golden's values where these are known; whole numbers that stand for others are then
        not rounded to such."""
        if tensor is None:
            return None
        if not tensor.numel() or not (tensor.is_floating_point() or tensor.dtype == torch.int8):
            return TwoPrecisions(tensor, tensor)
        into = tensor.reshape(-1).double()
        placed = [
            values.fill(tensor, into)
            for pair in self._read(request.number)
            if self._may_lie(pair, request.number, tensor)
            for values in self._values(pair)
        ]
        if any(placed):
            result = TwoPrecisions(into, into)
        elif (computed := self._from_writer(request, tensor)) is not None:
            result = computed
        else:
            return TwoPrecisions(tensor, tensor)
        fine, rounded = (numbers.reshape(tensor.shape) for numbers in (result.fine, result.rounded))
        if not tensor.is_floating_point():
            rounded = rounded.round().clamp(-128, 127)
        return TwoPrecisions(fine, rounded.to(tensor.dtype), result.shared)

    def _read(self, number: int) -> Iterator[int]:
        """The pairs that a pair computes from, and those that what an earlier step left (its attention, a
        cache) was computed from. These show all that lies there, so that nothing above them is opened."""
        queue, visited = deque([number]), {number}
        while queue:
            reader = queue.popleft()
            for parent in self._parents[reader]:
                if parent not in visited:
                    visited.add(parent)
                    yield parent
                    if self._pairs[parent].step != self._pairs[reader].step:
                        queue.append(parent)

    def _may_lie(self, number: int, reader: int, tensor: torch.Tensor) -> bool:
        """Whether an input of a pair may be the tensor of mine in another one, by its size: the whole of it,
        or a cache that holds what an earlier step stored."""
        earlier = self._pairs[number].step != self._pairs[reader].step
        for ref in self._pairs[number].mine.refs:
            header = ref.header()
            if by_torch(tensor.dtype) != header.dtype:
                continue
            if header.numel == tensor.numel() or (earlier and header.numel < tensor.numel()):
                return True
        return False

    def _from_writer(self, request: _Request, tensor: torch.Tensor) -> TwoPrecisions | None:
        """The result of the operator that wrote an input, for golden's inputs; `None` where that is none of
        those that the pair computes from."""
        for writer, root in self._writers(request):
            for index, output in tensors_in(os.path.join(writer.directory, "after"), root)[1].items():
                header = output.header()
                if (header.numel, header.dtype) != (tensor.numel(), by_torch(tensor.dtype)):
                    continue
                if torch.equal(output.open().reshape(-1), tensor.reshape(-1)):
                    return self._computed(writer, index)
        return None

    def _writers(self, request: _Request) -> Iterator[tuple[_Request, str]]:
        """The operators that may have written an input: those that are not compared, and those of the
        parents, each with the root of its dump."""
        if request.depth == _DEPTH:
            raise OperatorError(Reason("golden has no tensor of {} operators before it", _DEPTH))
        operand = self._pairs[request.number].mine
        ref = operand.refs[request.rank]
        for path in self._between.get(request.number, ()):
            place = directory_of_node(ref, operand.node, path)
            if place and place != request.directory:
                yield _Request(request.number, request.rank, place, request.depth + 1), ref.root
        queue, visited = deque(self._parents[request.number]), set()
        while queue:
            parent = queue.popleft()
            mine = self._pairs[parent].mine
            if parent in visited or len(mine.refs) != len(operand.refs):
                continue
            visited.add(parent)
            if mine.op_type in known():
                output = mine.refs[request.rank]
                yield (
                    _Request(parent, request.rank, operator_directory(output), request.depth + 1),
                    output.root,
                )
            else:  # a graph, whose result is that of an operator in it
                queue.extend(self._parents[parent])

    def _values(self, number: int) -> tuple[GoldenValues, ...]:
        """The places of golden's values in the tensors of mine of a pair; none where they have none."""
        if (placed := self._placed.pop(number, None)) is None:
            try:
                placed = tuple(golden_values(self._pairs[number]))
            except AccError:
                placed = ()
            self._bytes += sum(values.nbytes for values in placed)
        self._placed[number] = placed  # the last one used, and so the last one to go
        while self._bytes > _REMEMBERED:
            oldest = self._placed.pop(next(iter(self._placed)))
            self._bytes -= sum(values.nbytes for values in oldest)
        return placed


def _output(fine: Golden, low: Golden, index: int, shared: bool) -> TwoPrecisions:
    """An output of an operator from both inputs. Raises `OperatorError` where it has no such floats."""
    if op_class(fine.case.name, fine.param) in EXACT:
        return TwoPrecisions(low.results[index].double(), low.results[index], shared)
    exact = fine.unrounded(index)
    if exact is None or not exact.is_floating_point():
        raise OperatorError("it writes no such floats")
    if fine.case.name == _LINEAR and (weight := fine.inputs[0][1]) is not None and weight.dtype == torch.int8:
        return TwoPrecisions(exact, exact + _of_weights(fine, index), shared=True)
    x = low.inputs[0][0]
    if x is not None and not low.results[index].is_floating_point():
        return TwoPrecisions(exact, exact.to(x.dtype), shared)  # before it is rounded to whole numbers
    return TwoPrecisions(exact, low.low(index), shared)


def _as_compared(pair: Pair, results: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result of each rank as the pair is compared. Raises `OperatorError` for another size."""
    viewed = []
    for rank, (ref, result) in enumerate(zip(pair.mine.refs, results)):
        header, scale = ref.header(), scale_of(pair.mine, rank)
        if result.numel() != header.numel:
            raise OperatorError("its output has another size than the operator writes")
        numbers = result.double() if scale is None else (result.double() - scale[1]) * scale[0]
        viewed.append(numbers.reshape(header.shape))
    return whole(reconcile(open_shards(pair.golden), shards_of(pair.mine, viewed)).mine)


def _of_weights(linear: Golden, index: int) -> torch.Tensor:
    """The error of a product of int8 by rounding its weights to whole numbers, as root mean square: that of
    an error spread evenly over one step is sqrt(1/12). The sign is drawn.

    The operator itself scales it: of a first column as large as each row in all, times weights of one step.
    """
    x, weight, *remaining = linear.inputs[0]
    assert x is not None
    assert weight is not None
    axis = -2 if linear.param["transposeA"] else -1
    rows = torch.zeros_like(x, dtype=torch.float64)
    rows.narrow(axis, 0, 1).copy_((x.double().square().sum(axis, keepdim=True) / 12).sqrt())
    ones = torch.ones_like(weight, dtype=torch.float64)
    spread = torch.zeros(())
    for sign, activation in ((1, rows), (-1, torch.zeros_like(rows))):
        product = linear.of([[activation, ones, *remaining]]).unrounded(index)
        assert product is not None
        spread = spread + sign * product
    drawn = torch.randint(2, spread.shape, generator=torch.Generator().manual_seed(0))
    return spread * (2 * drawn - 1)


_STARTS = 64
"""Places in a cache at which what was stored there is looked for."""


@dataclass(frozen=True, slots=True)
class GoldenValues:
    """The places of golden's values in a tensor of mine: `mine` is that tensor, flat, and `values` of it
    stand at `places`."""

    mine: torch.Tensor
    places: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return self.mine.nbytes + self.places.nbytes + self.values.nbytes

    def fill(self, tensor: torch.Tensor, into: torch.Tensor) -> bool:
        """Put the values into the flat tensor `into` that `tensor` becomes; whether `tensor` is mine's."""
        flat = tensor.reshape(-1)
        if tensor.dtype != self.mine.dtype or flat.numel() < self.mine.numel():
            return False
        for start in self._starts(flat):
            if torch.equal(flat[start + self.places], self.mine[self.places]):
                into[start + self.places] = self.values
                return True
        return False

    def _starts(self, flat: torch.Tensor) -> list[int]:
        """The places in a longer tensor (a cache of keys) where all of this one may begin."""
        room = flat.numel() - self.mine.numel() + 1
        if room == 1:
            return [0]
        place = int(self.places[0])
        return (flat[place : place + room] == self.mine[place]).nonzero()[:_STARTS, 0].tolist()


def golden_values(pair: Pair) -> Iterator[GoldenValues]:
    """The places of golden's values in the tensors of mine. A tensor of numbered places, viewed as the pair
    is compared, has them; one that holds other values than stand there is a sum."""
    tensors = [ref.open() for ref in pair.mine.refs]
    alike = isinstance(pair.mine.view, (RowParallel, WithResidual))  # told by the values: all ranks have them
    starts = [0 if alike else sum(shard.numel() for shard in tensors[:rank]) for rank in range(len(tensors))]
    numbered = [
        torch.arange(start, start + shard.numel(), dtype=torch.float64).reshape(shard.shape)
        for start, shard in zip(starts, tensors)
    ]
    values = open_pair(pair).comparisons
    places = reconcile(open_shards(pair.golden), shards_of(pair.mine, numbered)).comparisons
    for value, place in zip(values, places):
        at, compared = whole(place.mine).reshape(-1).long(), whole(value.mine).reshape(-1)
        golden = whole(value.golden).reshape(-1)
        for rank, (start, tensor) in enumerate(zip(starts, tensors)):
            flat = tensor.reshape(-1)
            inside = (at >= start) & (at < start + flat.numel())
            offsets, numbers = at[inside] - start, golden[inside].double()
            scale = scale_of(pair.mine, rank)
            if scale is not None:
                stands = ((flat[offsets].float() - scale[1]) * scale[0]).to(compared.dtype)
                numbers = numbers / scale[0].double() + scale[1].double()
            else:
                stands = flat[offsets]
            if offsets.numel() and torch.equal(stands, compared[inside].to(stands.dtype)):
                yield GoldenValues(flat, offsets, numbers)


def scale_of(operand: Operand, rank: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Scale and offset of whole numbers that stand for others; `None` of other tensors.

    Raises `OperatorError` where each channel has its own.
    """
    if not operand.scales or operand.refs[rank].open().dtype != torch.int8:
        return None
    scale, offset = (torch.zeros(0) if ref is None else ref.open().float() for ref in operand.scales[rank])
    if scale.numel() != 1 or offset.numel() > 1:
        raise OperatorError("each channel has a scale of its own")
    return scale.reshape(-1), offset.reshape(-1) if offset.numel() else torch.zeros(1)


# The directory of an operator in an ATB dump, and what opcheck makes of it.


def index_of(operand: Operand) -> int | None:
    """The number of the output that a tensor is; `None` for one that is none."""
    kind, _, index = operand.slot.rstrip("]").partition("[")
    return int(index) if kind == "output" and index.isdecimal() else None


def operator_directory(ref: TensorRef) -> str:
    """The directory of the operator that a tensor of an ATB dump belongs to; empty for other files."""
    state = os.path.dirname(ref.path)
    return os.path.dirname(state) if os.path.basename(state) in STATES else ""


def entry_of(directory: str) -> Entry | None:
    """The operator in a directory as opcheck lists it; `None` where the directory is no operator's."""
    home = os.path.abspath(directory)
    return next((entry for entry in entries_of_directory(Path(home)) if entry.directory == home), None)


def directory_of_node(ref: TensorRef, node: str, path: str) -> str:
    """The directory of the node `path`, given that `ref` is a tensor of `node` in the same execution.

    Ids of the first level differ between the ranks of a run by a constant. Empty where there is none.
    """
    ref_segments = operator_directory(ref).split(os.sep)
    node_segments, path_segments = node.split("/"), path.split("/")
    depth = len(ref_segments) - len(node_segments)
    if depth <= 0 or ref_segments[depth + 1 :] != node_segments[1:]:
        return ""
    base, top = ref_segments[:depth], ref_segments[depth]
    number, _, kind = path_segments[0].partition("_")
    if not number.isdecimal():
        return ""
    shift = number_of(top) - number_of(node_segments[0])
    directory = os.sep.join([*base, f"{int(number) + shift}_{kind}", *path_segments[1:]])
    return directory if is_directory(directory) else ""


def number_of(name: str) -> int:
    """The id that the name of a directory begins with; 0 without one."""
    number = name.partition("_")[0]
    return int(number) if number.isdecimal() else 0
