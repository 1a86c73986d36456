"""What made a tensor, by values alone: a sum, norm or attention of tensors that were compared before it.

Golden shows what its operator computed, whatever it is called: its tensor is the sum of two earlier ones, as
a residual stream is, or one of them again, or the norm of one, or the causal attention of an earlier query,
key and value. If that of mine is the same of their partners, it follows from them: their errors come together
in it, also where large values cancel or a softmax is sharp. Another result says nothing: mine may compute it
of what no dump has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, product

import torch

from ..base.reason import Reason
from ..errors import AccError
from ..judging.tolerance import scatter_of
from ..mapping.pair import Plan
from ..mapping.reconcile import Opened, open_pair
from ..mapping.views import Turned
from ..tensors.dtypes import by_torch
from ..tensors.source import Source
from .golden_model.traced import attention
from .projected import whole
from .recomputation import Recomputation, Recomputations, Recomputer, SharedOut
from .rows import RATIO
from .twice import Twice, hold

_EARLIER = 16
"""The latest parents that are tried, and as many of the tensors right before."""
_ROWS = 4
"""Rows that a gain is known by."""
_EPSILONS = 1e-5, 1e-6, 1e-8, 1e-12
"""What norms add to the mean square."""
_BLOCKS = 16
"""Blocks of as many elements that rule out most pairs of summands."""
_IDENTIFIED = 1e-3
"""The largest relative error of golden's attention: float32 makes 1e-5, another operator or head size 0.1."""
_ONE_OPERATOR = 1e-5
"""That of golden's norm, whose epsilons are to be told apart where they matter."""
_REASON = "twice what rounding of what is added up, and of the sum, makes of a row, by its width"
_NOTHING = Recomputation()


class KnownByValues(SharedOut):
    """A recomputer, and values for what it knows nothing of. `limit` is of the elements of a result, and of
    the scores of an attention."""

    def __init__(self, recomputer: Recomputer, plan: Plan, limit: int) -> None:
        super().__init__(lambda _: recomputer)
        self._plan = plan
        self._limit = limit
        self._outcomes = Recomputations()

    def of_pair(self, number: int) -> Recomputation:
        recomputed = super().of_pair(number)
        if recomputed.outcome:
            return recomputed
        by_values = self._outcomes.of(number, lambda: self._by_values(number), "looking at values")
        return by_values if by_values.outcome else recomputed

    def _by_values(self, number: int) -> Recomputation:
        """Right, or nothing. Raises `AccError` where the tensor of the pair cannot be opened."""
        pair = self._plan.pairs[number]
        result = None if pair.fed else _floats(open_pair(pair))
        if result is None or math.prod(result.golden.shape) > self._limit:
            return _NOTHING
        opened = {earlier: self._opened(earlier) for earlier in self._earlier(number)}
        earlier = {source: pair for source, pair in opened.items() if pair is not None}
        for sources, outcome in chain(
            _sums(result, earlier), _norms(result, earlier), self._attentions(result, earlier)
        ):
            if outcome.outcome == "right":
                return replace(outcome, sources=" ".join(map(str, sources)))
        return _NOTHING

    def _earlier(self, number: int) -> list[int]:
        """The pairs whose tensors may have been read: parents, and those right before in one execution."""
        pairs = self._plan.pairs
        run = pairs[number].step, pairs[number].rank, pairs[number].graph
        before = range(max(0, number - _EARLIER), number)
        near = [
            place for place in before if (pairs[place].step, pairs[place].rank, pairs[place].graph) == run
        ]
        places = {*self._plan.parents[number][-_EARLIER:], *near}
        return [place for place in sorted(places) if not pairs[place].fed]

    def _opened(self, number: int) -> Opened | None:
        try:
            return _floats(open_pair(self._plan.pairs[number]))
        except AccError:
            return None

    def _attentions(
        self, result: Opened, earlier: dict[int, Opened]
    ) -> Iterator[tuple[tuple[int, ...], Recomputation]]:
        """The attentions of earlier queries and keys, turned by golden's tables, that golden's result is."""
        turned = {
            number: view
            for number in earlier
            if isinstance(view := self._plan.pairs[number].golden.view, Turned)
        }
        size = math.prod(result.golden.shape)
        queries = [number for number in turned if math.prod(earlier[number].golden.shape) == size]
        for query, key, value in product(queries, turned, earlier):
            shapes = [earlier[number].golden.shape for number in (key, value)]
            if len({query, key, value}) < 3 or shapes[0] != shapes[1] or len(shapes[0]) < 2:
                continue
            table = turned[query].cos.header().shape[-1]
            for head in dict.fromkeys((table, 2 * table)):
                read = [earlier[number] for number in (query, key, value)]
                if self._attends(result.golden, [opened.golden for opened in read], head):
                    yield (
                        (query, key, value),
                        held_against_attention(result.mine, [opened.mine for opened in read], head),
                    )

    def _attends(self, result: Source, read: Sequence[Source], head: int) -> bool:
        """Whether it is the attention of heads of this size, as far as it is small enough to be computed."""
        widths = [side.shape[-1] for side in read]
        scores = math.prod(result.shape) // head * read[0].shape[-2]
        if scores > self._limit or any(width % head for width in widths) or widths[0] % widths[1]:
            return False
        query, key, value = (_tokens(side).double() for side in read)
        exact = _attention(query, key, value, head)
        off = float((whole(result).double().reshape(exact.shape) - exact).norm())
        return off <= _IDENTIFIED * float(exact.norm())


def _floats(opened: Opened) -> Opened | None:
    """A pair whose sides are both of floats; `None` for another."""
    sides = (by_torch(side.dtype).format for side in (opened.golden, opened.mine))
    return opened if all(fmt is not None for fmt in sides) else None


# Sums.


def _sums(result: Opened, earlier: dict[int, Opened]) -> Iterator[tuple[tuple[int, ...], Recomputation]]:
    """What golden's result is the sum of: one earlier tensor or two, which mine's is held against."""
    alike = [number for number, opened in earlier.items() if opened.golden.shape == result.golden.shape]
    sampled = {number: _sampled(earlier[number].golden) for number in alike}
    total = _sampled(result.golden)
    for addends in (*combinations(alike, 1), *combinations(alike, 2)):
        if _is_sum(total, *(sampled[number] for number in addends)):
            read = [earlier[number] for number in addends]
            if _is_sum(whole(result.golden), *(whole(opened.golden) for opened in read)):
                yield addends, _added(whole(result.mine), *(whole(opened.mine) for opened in read))


def _sampled(source: Source) -> torch.Tensor:
    """Blocks of the elements of a source, evenly spread."""
    size = math.prod(source.shape)
    starts = range(0, size, max(1, size // _BLOCKS))
    return torch.cat([source.read(start, min(start + _BLOCKS, size)) for start in starts])


def _roundoff(tensor: torch.Tensor) -> float:
    fmt = by_torch(tensor.dtype).format
    assert fmt is not None
    return fmt.roundoff


def _is_sum(total: torch.Tensor, *addends: torch.Tensor) -> bool:
    """Whether each element is the sum of the others, as all of them are rounded."""
    off, rounding = total.double(), _roundoff(total) * total.double().abs()
    for addend in addends:
        off = off - addend
        rounding = rounding + _roundoff(addend) * addend.abs()
    return bool(total.any()) and bool((off.abs() <= rounding).all())


def _added(total: torch.Tensor, *addends: torch.Tensor) -> Recomputation:
    """Right where each row [.., width] is off by no more than twice what rounding makes of it; else nothing.

    Rounding to the nearest has a root mean square of at most u / sqrt(3) of the value, u the unit roundoff.
    """
    width = total.shape[-1] if total.ndim else 1
    rows = [side.double().reshape(-1, width) for side in (total, *addends)]
    exact = sum(rows[1:], torch.zeros(()))
    error = rows[0] - exact
    squares = [(_roundoff(side) * row.norm(dim=1)).square() for side, row in zip((total, *addends), rows)]
    noise = (torch.stack(squares).sum(0) / 3).sqrt()
    norm, scatter = float(exact.norm()), RATIO * scatter_of(width)
    if not math.isfinite(norm) or norm == 0.0 or bool((error.norm(dim=1) > scatter * noise).any()):
        return _NOTHING
    relative, level = float(error.norm()) / norm, float(noise.norm()) / norm
    return Recomputation("right", relative, noise=level, allowed=scatter * level, reason=_REASON)


# Norms.


def _norms(result: Opened, earlier: dict[int, Opened]) -> Iterator[tuple[tuple[int, ...], Recomputation]]:
    """The norm of an earlier tensor, or of the sum of two, that golden's result is but for a gain. Several
    rows tell the gain: that of mine is the same, rounded."""
    alike = [number for number, opened in earlier.items() if opened.golden.shape == result.golden.shape]
    addends = (*combinations(alike, 1), *combinations(alike, 2))
    width = result.golden.shape[-1] if result.golden.shape else 1
    if math.prod(result.golden.shape) < _ROWS * width:
        return
    for read, centred, epsilon in product(addends, (False, True), _EPSILONS):
        gain = _gain_of(result, [earlier[number] for number in read], _ROWS * width, centred, epsilon)
        if gain is None:
            continue
        size = math.prod(result.golden.shape)
        gain = _gain_of(result, [earlier[number] for number in read], size, centred, epsilon)
        if gain is not None:
            mine = [whole(earlier[number].mine) for number in read]
            gain = gain.to(result.mine.dtype)
            fine = _norm([side.double() for side in mine], centred, epsilon) * gain.double()
            rounded = _norm([side.to(result.mine.dtype) for side in mine], centred, epsilon) * gain
            how = Reason("the norm in {} against float64", str(result.mine.dtype).removeprefix("torch."))
            yield read, hold(Twice.of(fine, rounded, how, width), whole(result.mine))
            return


def _gain_of(
    result: Opened, read: Sequence[Opened], size: int, centred: bool, epsilon: float
) -> torch.Tensor | None:
    """The gain by which the first elements of golden's result are the norm of a sum; `None` where none is."""
    width = result.golden.shape[-1]
    wanted, *addends = (side.golden.read(0, size).double().reshape(-1, width) for side in (result, *read))
    normed = _norm(addends, centred, epsilon)
    gain = (wanted * normed).sum(0) / normed.square().sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    off = float((wanted - normed * gain).norm())
    return gain if off <= _ONE_OPERATOR * float(wanted.norm()) else None


def _norm(addends: Sequence[torch.Tensor], centred: bool, epsilon: float) -> torch.Tensor:
    """The norm of rows [.., width] of a sum, in float32 at least, in the dtype of the sum."""
    x = torch.stack([*addends]).sum(0)
    reals = x.to(torch.promote_types(x.dtype, torch.float32))
    reals = reals - reals.mean(-1, keepdim=True) if centred else reals
    return (reals * torch.rsqrt(reals.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


# Attention.


def held_against_attention(result: Source, read: Sequence[Source], head: int) -> Recomputation:
    """A result held against the causal attention of a query, key and value [.., tokens, width]."""
    query, key, value = map(_tokens, read)
    fine = _attention(query.double(), key.double(), value.double(), head)
    rounded = _attention(query, key, value, head)
    how = Reason("attention in {} against float64", str(result.dtype).removeprefix("torch."))
    return hold(Twice.of(fine, rounded, how, query.shape[-2]), whole(result).reshape(fine.shape))


def _tokens(side: Source) -> torch.Tensor:
    """A tensor [.., tokens, width] with one dimension before these two."""
    return whole(side).reshape(-1, *side.shape[-2:])


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head: int) -> torch.Tensor:
    """Causal attention with the scale 1 / sqrt(head), each step in the dtype of its inputs."""
    query, key, value = (side.unflatten(-1, (-1, head)).transpose(1, 2) for side in (query, key, value))
    return attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
