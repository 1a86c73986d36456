"""A query or key turned by position tables, in the way that the other side turned it.

Tables hold the angles of a head, or of the first or last part of it: as halves `[a, b, a, b]`, as
neighbours `[a, a, b, b]`, or each once `[a, b]`. Models turn by halves or by neighbours whatever their tables
look like, and some turn nothing in some layers. The other side may hold no more of each head than the part
that is turned. Which of these it is tells the nearest to the other side; that only turning lies between the
two tells the length of heads, which turning keeps. Heads that are turned right and have another length have a
factor: that of attention, which some kernels are handed beforehand, or a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..base.imports import torch
from ..base.reason import Reason
from ..dumps.base import Slot
from ..errors import AccError, Incomparable, NoPayload
from ..tensors.dtypes import by_torch
from ..tensors.ref import TensorRef
from ..tensors.source import ExactSum, Source, TensorSource
from ..topology.tree import Node
from .operand_shards import OperandShards, values_of
from .pair import Operand
from .shapes import rows_and_width
from .views import RankSum, RowParallel, Turned, Whole, WithResidual

_ROWS = 512
"""Leading rows by which a rotation is chosen."""
_PARTS = 16
"""The largest ratio of a head to its turned piece; a latent has 512 and 64 elements."""
UNRELATED = 0.7
"""The relative distance from which on two tensors are not the same, however wrong: half of that of unrelated
ones, sqrt(2)."""
_KEPT = 0.05
"""The largest distance of the lengths of heads; turning keeps them."""


@dataclass(frozen=True, slots=True)
class _Rotation:
    """Heads of `size` whose first or `last` part is turned, by `halves` or by neighbours; `alone` where that
    part is all that is compared. With `interleaved` its halves lie as neighbours then."""

    size: int
    halves: bool
    last: bool = False
    alone: bool = False
    once: bool = False
    interleaved: bool = False
    factor: float = 1.0

    def compared_size(self, angles: int) -> int:
        """The number of elements of each head that are compared, by tables as wide as `angles`."""
        return angles * (1 + self.once) if self.alone else self.size

    @property
    def scale(self) -> float:
        """The factor of attention that is near that of these heads, which some kernels multiply by
        beforehand; 1 where none is. What the two differ by stays a difference."""
        scales = (self.size**-0.5, self.size**-0.5 * math.log2(math.e))
        return next((scale for scale in scales if abs(self.factor - scale) <= _KEPT * scale), 1.0)

    def __str__(self) -> str:
        how = Reason("heads of {} by halves" if self.halves else "heads of {} by neighbours", self.size)
        if self.last:
            how = Reason("the last part of {}", how)
        if self.interleaved:
            how = Reason("{}, which lie as neighbours", how)
        return (
            how
            if self.factor == 1.0
            else Reason("{}, {:.4g} times as long on the other side", how, self.factor)
        )


def turned_alike(side: OperandShards, opposite: OperandShards) -> tuple[OperandShards, ShardNote]:
    """A side that is `Turned` with that done, and a note how; other sides as they are.

    Raises `NoPayload` where more than turning lies between the two, `Incomparable` for tables that do not
    fit.
    """
    if not isinstance(side.view, Turned):
        return side, ShardNote()
    if side.shards[0].device.type == "meta":
        return replace(side, shards=[_turned_shape(side, side.view, opposite)], view=Whole()), ShardNote()
    cos, sin = side.angles
    rows, angles = cos.shape
    width = side.shards[0].numel() // rows if rows else 0
    rotations = list(_rotations(width, angles, opposite)) if angles and width else []
    fits = rows in (side.shape[0], math.prod(side.shape[:-1]))
    if cos.shape != sin.shape or not fits or not rotations:
        raise Incomparable(
            Reason(
                "position tables of shape {} do not turn a tensor of shape {}",
                list(cos.shape),
                side.describe(),
            )
        )
    plain = [shard.reshape(rows, width) for shard in side.shards]
    first = plain[0][:_ROWS].float()
    rotation = _nearest(rotations, first, _opposite_rows(first, opposite), (cos[:_ROWS], sin[:_ROWS]))
    if rotation is None:
        return replace(side, shards=plain, view=Whole()), ShardNote("not turned in this layer")
    shards = [
        (_turned(shard.float(), cos, sin, rotation) * rotation.scale).to(shard.dtype) for shard in plain
    ]
    note = Reason("turned by position tables, {}", rotation)
    suspect = note if rotation.factor != 1.0 == rotation.scale else ""
    return replace(side, shards=shards, view=Whole()), ShardNote(note, suspect)


def turns_neighbours(plain: TensorRef, turned: TensorRef) -> int:
    """The size of heads whose neighbours are turned between two tensors, which their lengths tell; else 0."""
    try:
        tensors = [values_of(ref) for ref in (plain, turned)]
    except AccError:
        return 0
    size = tensors[1].shape[-1] if tensors[1].dim() else 0
    if size < 2 or size % 2 or tensors[0].numel() != tensors[1].numel():
        return 0
    heads = [tensor.reshape(-1, size)[: _SAMPLE // size].float() for tensor in tensors]
    neighbours = finite_distance(*(head.unflatten(-1, (-1, 2)).norm(dim=-1) for head in heads))
    halves = finite_distance(*(head.unflatten(-1, (2, -1)).norm(dim=-2) for head in heads))
    return size if neighbours <= min(_KEPT, halves) else 0


def _nearest(
    rotations: list[_Rotation],
    first: torch.Tensor,
    target: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor],
) -> _Rotation | None:
    """The rotation by which the `first` rows come nearest to `target`; `None` where they come nearer as they
    are. Raises `NoPayload` where more than turning lies between the two."""
    angles, columns = tables[0].shape[-1], target.shape[1]
    # A rank holds whole heads.
    rotations = [rotation for rotation in rotations if columns % rotation.compared_size(angles) == 0]
    if not rotations:
        raise NoPayload("what attention is handed is not made of heads that the position tables turn")
    candidates = [_turned(first, *tables, rotation)[:, :columns] for rotation in rotations]
    errors = [finite_distance(target, candidate) for candidate in candidates]
    best = min(range(len(rotations)), key=errors.__getitem__)
    if finite_distance(target, first[:, :columns]) < errors[best] / 4:
        return None
    finite = target.isfinite()
    rotated, target = (tensor.where(finite, torch.zeros(())) for tensor in (candidates[best], target))
    if _lengths_agree(rotated, target, rotations[best].compared_size(angles)):
        return rotations[best]
    factor = float((rotated * target).sum() / rotated.square().sum())
    if distance(target, rotated * factor) <= _KEPT:
        return replace(rotations[best], factor=factor)
    if errors[best] > UNRELATED and finite.any():
        raise NoPayload("what attention is handed is not only turned by the position tables")
    return rotations[best]


def _rotations(width: int, angles: int, opposite: OperandShards) -> Iterator[_Rotation]:
    """Sizes of heads of which the tables may turn a part, and how; the likeliest first."""
    yield from _rotations_by(width, angles, opposite, False)
    yield from _rotations_by(width, 2 * angles, opposite, True)


def _rotations_by(width: int, angles: int, opposite: OperandShards, once: bool) -> Iterator[_Rotation]:
    """The same for `angles` elements of a head, whose tables have each angle twice or `once`."""
    opposite_width = rows_and_width(opposite.shape)[1] if len(opposite.shape) > 2 else 0
    sizes = [size for size in range(angles, min(width, _PARTS * angles) + 1) if width % size == 0]
    for size in sorted(sizes, key=lambda size: (size != opposite_width, size % angles != 0)):
        for last in (False, True) if size > angles else (False,):
            for alone in (False, True) if size > angles else (False,):
                yield from (
                    _Rotation(size, halves, last, alone, once) for halves in (True, False) if angles % 2 == 0
                )
        if size == angles and angles % 2 == 0:
            yield _Rotation(size, halves=True, once=once, interleaved=True)


def _turned_shape(side: OperandShards, view: Turned, opposite: OperandShards) -> torch.Tensor:
    """The shape of a side, or of the turned part of its heads where the other side is as wide as that."""
    tensor = side.shards[0]
    rows = tensor.shape[0]
    if tensor.numel() in (opposite.shards[0].numel(), opposite.shards[0].numel() * opposite.count):
        return tensor
    width, angles = tensor.numel() // max(1, rows), view.cos.header().shape[-1]
    angles *= 2 if view.cos.header().dtype.kind == "complex" else 1
    opposite_width = opposite.shards[0].numel() // max(1, rows)
    for size in range(angles + 1, min(width, _PARTS * angles) + 1):
        columns = width // size * angles
        if width % size == 0 and columns in (opposite_width, opposite_width * opposite.count):
            return tensor.new_empty((rows, columns))
    return tensor


def _opposite_rows(first: torch.Tensor, opposite: OperandShards) -> torch.Tensor:
    """The first rows of the first rank of the other side, as far as it is wide."""
    shard = opposite.shards[0]
    rows = first.shape[0] if first.shape[0] < _ROWS else None
    total, width = rows_and_width(tuple(shard.shape))
    if rows is not None and total != rows and (total * width) % rows == 0:
        total, width = rows, total * width // rows
    return shard.reshape(total, width)[:_ROWS, : first.shape[1]].float()


def _turned(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rotation: _Rotation) -> torch.Tensor:
    rows, width = heads.shape
    if rotation.once:
        cos, sin = (torch.cat((table, table), -1) for table in (cos, sin))
    apart = heads.reshape(rows, width // rotation.size, rotation.size)
    angles = cos.shape[-1]
    start = rotation.size - angles if rotation.last else 0
    piece = apart[..., start : start + angles]
    half = angles // 2
    if rotation.halves:
        perpendicular = torch.cat((-piece[..., half:], piece[..., :half]), -1)
        c, s = cos, sin
    else:
        perpendicular = torch.stack((-piece[..., 1::2], piece[..., 0::2]), -1).flatten(-2)
        c, s = (_by_neighbours(table) for table in (cos, sin))
    turned = piece * c[:, None].float() + perpendicular * s[:, None].float()
    if not rotation.alone:
        turned = torch.cat((apart[..., :start], turned, apart[..., start + angles :]), -1)
    if rotation.interleaved:
        turned = turned.unflatten(-1, (2, half)).transpose(-1, -2).flatten(-2)
    return turned.flatten(1)


def _by_neighbours(table: torch.Tensor) -> torch.Tensor:
    half = table.shape[-1] // 2
    if torch.equal(table[:, :half], table[:, half:]):
        return table[:, :half].repeat_interleave(2, -1)
    return table


def _lengths_agree(heads: torch.Tensor, reference: torch.Tensor, size: int) -> bool:
    if heads.shape != reference.shape or heads.shape[1] % size:
        return False
    lengths = [tensor.reshape(len(tensor), -1, size).norm(dim=-1) for tensor in (heads, reference)]
    return distance(*lengths) <= _KEPT


# Codes of 8 bits, read as the numbers they stand for: (q - offset) * scale.
#
# Those of weights have no offset. ATB's quantising norms and element-wise operators take scale and offset as
# their last two inputs.


_PER_CHANNEL = 17
"""`elewiseType` of the quantisation with tensors of scales."""


def scale_and_offset(node: Node) -> tuple[Slot, Slot] | None:
    """The inputs that hold them, `None` for a node that does not quantise by tensors."""
    if not _quantises(node) or len(node.inputs) < 3:
        return None
    last = len(node.inputs) - 1
    return Slot("input", (last - 1,)), Slot("input", (last,))


def _quantises(node: Node) -> bool:
    if node.param.get("elewiseType") == _PER_CHANNEL:
        return True
    norm_params = [value for key, value in node.param.items() if key.endswith("ormParam")]
    return any(isinstance(param, dict) and param.get("quantType") for param in norm_params)


def dequantised(side: OperandShards, operand: Operand, opposite: OperandShards) -> OperandShards:
    """`side` in the dtype of its scale where it is codes and the other side is not; else as it is.

    Costs the memory of the tensor: codes are activations of one step, or one weight. Raises `Incomparable`
    for a scale that does not fit.
    """
    sizes = side.shards[0].element_size(), opposite.shards[0].element_size()
    if not operand.scales or sizes[0] != 1 or not opposite.shards[0].is_floating_point() or sizes[1] == 1:
        return side
    from ..tensors.weight_rows import scaled

    shards = []
    for shard, (scale_ref, offset_ref) in zip(side.shards, operand.scales):
        scale = scale_ref.open()
        if offset_ref is None:
            shards.append(scaled(shard, scale).to(scale.dtype))
            continue
        offset = offset_ref.open().float() if offset_ref.header().numel else torch.zeros(1)
        shards.append(((shard.float() - offset) * scale.float()).to(scale.dtype))
    return OperandShards(shards, side.view, side.part_sizes, side.bias)


# Replicas and partial sums: the values of ranks, and the tensors after them, say which of both they are.


_SAMPLE = 1 << 20
"""Leading elements that are compared."""


@dataclass(frozen=True, slots=True)
class ShardNote:
    """A note on the values of the ranks, and the cause of a failure that they suggest, or empty."""

    note: str = ""
    suspect: str = ""


def settled(side: OperandShards, opposite: OperandShards) -> tuple[OperandShards, ShardNote]:
    """The side as one of replicas or of summands, with a note why; other sides as they are."""
    view = side.view
    if not isinstance(view, (RowParallel, WithResidual)):
        return side, ShardNote()
    replicas, summands = replace(side, view=Whole()), replace(side, view=RankSum(), settled=True)
    sizes = {shard.numel() for shard in (*side.shards, *opposite.shards)}
    apart = side.count == 1 or len(sizes) > 1
    if apart or side.shards[0].device.type == "meta" or _alike(side.shards):
        return replicas, ShardNote()
    difference = Reason("the tensors of {} ranks differ", side.count)
    after = [ref.open() for ref in view.witness]
    fits = _sum_fits(side, opposite)
    if after and _alike(after):
        return summands, ShardNote(
            Reason("{}, what comes after them does not: they are partial sums", difference)
        )
    if fits and not after:
        return summands, ShardNote(
            Reason("{}, and their sum fits the other side: they are partial sums", difference)
        )
    note = Reason("{}, and so does what comes after them", difference) if after else difference
    missing = Reason("each rank kept its partial sum: {}, only their sum fits", note) if fits else ""
    return replicas, ShardNote(note, missing)


def with_residual(source: Source, residual: tuple[torch.Tensor, ...], rank: int) -> Source:
    """The summand of a layer plus the stream that it is added to, which every rank holds."""
    stream = TensorSource(residual[min(rank, len(residual) - 1)])
    if math.prod(stream.shape) != math.prod(source.shape):
        raise Incomparable(
            Reason("a residual of shape {} does not fit {}", list(stream.shape), list(source.shape))
        )
    return ExactSum([source, stream])


def distance(reference: torch.Tensor, tensor: torch.Tensor) -> float:
    """The L2 error of a tensor relative to a reference; infinite where their shapes differ."""
    if reference.shape != tensor.shape:
        return float("inf")
    norm, error = float(reference.norm()), float((reference - tensor).norm())
    return error / norm if norm else error


def finite_distance(reference: torch.Tensor, tensor: torch.Tensor) -> float:
    """The same over what is finite in both, which elements that were not printed are not; infinite where
    nothing is."""
    if reference.shape != tensor.shape or not (finite := (reference - tensor).isfinite()).any():
        return float("inf")
    return distance(reference[finite], tensor[finite])


def _alike(shards: Sequence[torch.Tensor]) -> bool:
    """Whether all ranks hold the same, but for what rounding may do."""
    first = _numbers(shards[0])
    roundoff = by_torch(shards[0].dtype).roundoff or 0.0
    return all(distance(first, _numbers(shard)) <= 2 * roundoff for shard in shards[1:])


def _sum_fits(side: OperandShards, opposite: OperandShards) -> bool:
    """Whether the sum is much nearer to the other side, or to its sum, than any summand."""
    if opposite.shards[0].numel() != side.shards[0].numel():
        return False
    alike = _alike(opposite.shards)
    if not alike and not isinstance(opposite.view, (RowParallel, WithResidual)):
        return False
    target = _numbers(opposite.shards[0]) if alike else torch.stack([*map(_numbers, opposite.shards)]).sum(0)
    for added, sign in ((opposite.residual, 1), (side.residual, -1)):
        if added and added[0].numel() == side.shards[0].numel():
            target = target + sign * _numbers(added[0])
    summands = [_numbers(shard) for shard in side.shards]
    total = torch.stack(summands).sum(0)
    return distance(target, total) < min(distance(target, summand) for summand in summands) / 4


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.flatten()
    return flat[:_SAMPLE].float()
