"""Choices (top-k, argmax, sort) in which two sides differ, token by token, and golden's values for them.

Where mine chose another index, golden's own values at both choices are held against what those values may be
off: T * rms, T being the relative L2 tolerance of the two tensors that were chosen from. Two values closer
than that may come in either order in a right computation. They may be farther apart where the values
of mine agree with golden's within their bounds, and mine chose the best of its own: then they may be as far
apart as those are off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

from ..base.imports import torch
from ..base.reason import Reason, joined
from ..errors import AccError
from ..judging.tolerance import tolerance
from ..judging.verdict import Check
from ..mapping.pair import Operand, Pair
from ..mapping.token_order import pick_tokens
from ..reporting.row import Row
from ..tensors.dtypes import by_name, by_torch
from ..tensors.ref import TensorRef
from ..tensors.source import Source, TensorSource
from .tokens import Sequences, TokenRows, levels, token_rows

MOST = 1 << 26
"""Values that are looked at; they are read as a whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The choices of both sides, `[tokens, choices]`, and numbers on each token by golden's values.

    `gaps` are the largest differences of values where a token's choices differ: infinite for an index that is
    none, or that was chosen twice. `allowed` is what they may be in a tie. `follows` says of which tokens
    mine chose the best of its own values.
    """

    golden: torch.Tensor
    mine: torch.Tensor
    gaps: torch.Tensor
    allowed: torch.Tensor
    follows: torch.Tensor

    @property
    def differing(self) -> torch.Tensor:
        """The choices that differ, `[tokens, choices]`."""
        return self.golden != self.mine

    @property
    def ties(self) -> torch.Tensor:
        """The tokens whose choices differ, each among values that are close enough."""
        return self.differing.any(-1) & (self.gaps <= self.allowed)

    def of(self, rows: torch.Tensor) -> Chosen:
        """The choices of some tokens."""
        return Chosen(
            *(values[rows] for values in (self.golden, self.mine, self.gaps, self.allowed, self.follows))
        )

    def excused(self, reached: torch.Tensor) -> torch.Tensor:
        """The tokens whose choices may differ: ties, and those that a tie above `reached` where mine chose by
        its own values."""
        return self.ties | (self.differing.any(-1) & reached & self.follows)


def chosen_of(pair: Pair, golden: Source, mine: Source) -> Chosen | None:
    """The choices of both sides of a pair; `None` where these are no choices among known values.

    Raises `AccError` or `OSError` for values that cannot be read.
    """
    if not golden.shape or tuple(golden.shape) != tuple(mine.shape) or not math.prod(golden.shape):
        return None
    golden_chosen, mine_chosen = _indices(golden), _indices(mine)
    for place, ref in enumerate(pair.golden.chosen_from):
        values = _values(ref, pair, pair.golden)
        if values is None:
            continue
        for axis in _axes(tuple(values.shape), tuple(golden.shape)):
            ours, theirs = (_along(axis, chosen, values) for chosen in (golden_chosen, mine_chosen))
            rows = _rows(values, axis)
            if (rule := rule_of(rows, ours, of_experts=pair.fed != "token ids")) is not None:
                return _compared(pair, place, rows, (ours, theirs), axis, rule)
    return None


def _indices(source: Source) -> torch.Tensor:
    return source.read(0, math.prod(source.shape)).reshape(source.shape).long()


def _values(ref: TensorRef, pair: Pair, side: Operand) -> torch.Tensor | None:
    """The floats chosen from, of the tokens that both sides have; of logits those of the last tokens, where
    token ids were chosen from them."""
    header = ref.header()
    if header.dtype.format is None or header.numel > MOST or not header.numel:
        return None
    values = ref.open()
    if pair.fed != "token ids":
        return values if side.tokens is None else pick_tokens(values, side.tokens)
    return values[:, -1:] if values.dim() == 3 else values.reshape(-1, 1, values.shape[-1])


def _axes(values: tuple[int, ...], chosen: tuple[int, ...]) -> Iterator[int]:
    """The dimensions along which indices of this shape may choose among the values, the last first."""
    for axis in reversed(range(len(values))):
        remaining = values[:axis] + values[axis + 1 :]
        if len(chosen) == len(values):
            if remaining == chosen[:axis] + chosen[axis + 1 :] and 0 < chosen[axis] <= values[axis]:
                yield axis
        elif remaining == chosen:
            yield axis


def _along(axis: int, chosen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The indices, one row a token, with the dimension that they choose along, which argmax leaves out."""
    return _rows(chosen if chosen.dim() == values.dim() else chosen.unsqueeze(axis), axis)


def _rows(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    return tensor.movedim(axis, -1).reshape(-1, tensor.shape[axis])


def _compared(
    pair: Pair,
    place: int,
    values: torch.Tensor,
    chosen: tuple[torch.Tensor, torch.Tensor],
    axis: int,
    rule: Rule,
) -> Chosen | None:
    """The choices held against golden's values; `None` where there is no float to tell how far those may be
    off."""
    (golden, mine), mine_refs, size = chosen, pair.mine.chosen_from, values.shape[-1]
    ref = mine_refs[place] if len(mine_refs) == len(pair.golden.chosen_from) else None
    refs = mine_refs if ref is None else (ref, *mine_refs)
    dtypes = (ref.header().dtype for ref in refs)
    dtype = next((dtype.name for dtype in dtypes if dtype.format is not None), "")
    finite = values.double()[values.isfinite()]
    if not dtype or not len(finite):
        return None
    ours, theirs = (values.double().gather(-1, side.clamp(0, size - 1)) for side in chosen)
    gaps = torch.where(ours == theirs, 0.0, (ours - theirs).abs())  # of two infinities there is no difference
    none = (mine < 0) | (mine >= size)
    wrong = none.any(-1) | (mine.sort(-1).values.diff(dim=-1) == 0).any(-1)
    gaps = gaps.where(golden != mine, 0.0).amax(-1).where(~wrong, math.inf)
    allowed = _allowed(pair, (by_torch(values.dtype).name, dtype), finite, size)
    bounds = torch.full((len(mine),), allowed, dtype=torch.float64)
    mine_values = _mine_values(pair, ref, mine, axis)
    if mine_values is None:
        return Chosen(golden, mine, gaps, bounds, torch.zeros(len(mine), dtype=torch.bool))
    follows = rule.holds(mine_values, mine) & ~wrong
    if mine_values.shape == values.shape:
        off = 2 * (mine_values.double() - values.double()).abs().nan_to_num(0.0, 0.0).amax(-1)
        bounds = torch.where(
            follows & _agree(pair, values, mine_values),
            torch.maximum(bounds, torch.maximum(off, gaps)),
            bounds,
        )
    return Chosen(golden, mine, gaps, bounds, follows)


def _agree(pair: Pair, golden_values: torch.Tensor, mine_values: torch.Tensor) -> torch.Tensor:
    """Whether the values of both sides agree within their bounds, for each token."""
    rows = token_rows(tuple(mine_values.shape), Sequences(1, len(mine_values)))
    assert rows is not None
    return levels(pair, TensorSource(golden_values), TensorSource(mine_values), rows, len(mine_values)) <= 1


def _allowed(pair: Pair, dtypes: Sequence[str], values: torch.Tensor, size: int) -> float:
    rms = float(values.square().mean().sqrt())
    smallest = max(fmt.smallest_normal for name in dtypes if (fmt := by_name(name).format) is not None)
    # Without the scatter of few elements: that is of a measured error, and here none is.
    bound = tolerance(
        *dtypes,
        depth=pair.depth,
        length=size,
        subnormal_rms=rms if 0 < rms < smallest else None,
        computed_in=pair.computed_in,
    )
    return bound.value * rms


def _mine_values(pair: Pair, ref: TensorRef | None, mine: torch.Tensor, axis: int) -> torch.Tensor | None:
    """The values of mine, a row a token, that its indices are places in; `None` where these are not known."""
    for candidate in pair.mine.chosen_from if ref is None else (ref,):
        values = _values(candidate, pair, pair.mine)
        if values is None or axis >= values.dim():
            continue
        rows = _rows(values, axis)
        if len(rows) == len(mine) and rows.shape[-1] >= mine.shape[-1]:
            return rows
    return None


@dataclass(frozen=True, slots=True)
class Rule:
    """The `largest` values, or the smallest, the best first where they are `ordered`; of the `eligible` best
    of `groups`, which count by the sum of their two largest values (`by_two`) or by their largest."""

    largest: bool = True
    ordered: bool = True
    groups: int = 1
    eligible: int = 1
    by_two: bool = False

    def holds(self, values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Whether these choices are those of the rule, for each row."""
        inside = ((chosen >= 0) & (chosen < values.shape[-1])).all(-1)
        wide = self._limited(values.double())
        picked = wide.gather(-1, chosen.clamp(0, values.shape[-1] - 1))
        if not self.ordered:
            picked = picked.sort(-1, descending=self.largest).values
        return inside & (picked == wide.topk(chosen.shape[-1], -1, self.largest).values).all(-1)

    def _limited(self, values: torch.Tensor) -> torch.Tensor:
        """The values with those of groups that are not kept out of reach."""
        if self.groups == 1:
            return values
        counts = self._counts(values)
        best = counts.topk(self.eligible, -1).indices
        mask = torch.zeros_like(counts, dtype=torch.bool).scatter_(-1, best, value=True)
        grouped = values.reshape(*counts.shape, -1)
        return grouped.masked_fill(~mask.unsqueeze(-1), -torch.inf).reshape(values.shape)

    def _counts(self, values: torch.Tensor) -> torch.Tensor:
        """The numbers that the groups count by, `[rows, groups]`."""
        grouped = values.reshape(len(values), self.groups, -1)
        if self.by_two:
            return grouped.float().sigmoid().topk(2, -1).values.sum(-1)
        return grouped.amax(-1)

    def fewest(self, values: torch.Tensor, chosen: torch.Tensor) -> Rule:
        """The rule with as few groups kept as these choices need: those that count more than the least one
        chosen from, and it.

        Where choices follow the rule with more, they follow it with these too, for all of them lie in these.
        """
        counts = self._counts(values.double())
        size = values.shape[-1]
        groups = chosen.clamp(0, size - 1) // (size // self.groups)
        smallest = counts.gather(-1, groups).amin(-1, keepdim=True)
        return replace(self, eligible=int((counts > smallest).sum(-1).max()) + 1)


def rule_of(values: torch.Tensor, chosen: torch.Tensor, *, of_experts: bool = True) -> Rule | None:
    """The first rule that all rows of golden's choices follow; `None` without any.

    Only experts have groups: n of them can be grouped in as many ways as n has divisors, each with four
    rules. How many groups are kept is what these choices need, and all rows are looked at where the first one
    agrees.
    """
    plain = (Rule(largest, ordered) for ordered in (True, False) for largest in (True, False))
    rules = chain(plain, _of_groups(values, chosen) if of_experts else ())
    return next((rule for rule in rules if bool(rule.holds(values, chosen).all())), None)


def _of_groups(values: torch.Tensor, chosen: torch.Tensor) -> Iterator[Rule]:
    """The rules of groups that the first row follows, each with as few groups kept as all rows need."""
    size, first = values.shape[-1], (values[:1], chosen[:1])
    for groups in (count for count in range(2, size // 2 + 1) if size % count == 0):
        ways = product((False, True), (True, False))
        rules = (Rule(True, ordered, groups, by_two=by_two) for by_two, ordered in ways)
        agreeing = (rule for rule in rules if bool(rule.fewest(*first).holds(*first).all()))
        yield from sorted((rule.fewest(values, chosen) for rule in agreeing), key=lambda rule: rule.eligible)


# Whether another choice than golden's (top-k, argmax, sort) is one among equals: a tie.


COUNT = "mismatches"
GAP = "choice_gap"
"""The metric in the check of a tie: the largest difference of two values that were chosen among."""
_CONTEXT = ("choices", GAP, "choice_allowed")
AFTER = "choices_after_tie"
"""What a row keeps of it in its context, so that it can be judged again: beside these, how many of the
differing choices are of tokens that come after a tie."""


@dataclass(frozen=True, slots=True)
class _Tie:
    """The numbers in the context of a row: how many choices differ, how many of these come after a tie, how
    far the values of the others are apart at most, and how far they may be."""

    count: int
    after: int
    gap: float
    allowed: float


def with_choices(
    row: Row,
    pair: Pair,
    golden: Source,
    mine: Source,
    reached: torch.Tensor | None = None,
    rows: TokenRows | None = None,
) -> Row:
    """The row of a choice that fails with what is known of the values chosen from; a tie where it is one.

    `reached` are the tokens that another tie reaches, by the rows of the choices, of which only `rows` are
    judged. Other rows as they are.
    """
    if not _only_choices_differ(row) or not (pair.golden.chosen_from and pair.mine.chosen_from):
        return row
    try:
        chosen = chosen_of(pair, golden, mine)
    except (AccError, OSError):
        return row  # of tensors that cannot be read nothing is known, and the pair fails
    if chosen is None:
        return row
    if rows is not None and math.prod(rows.leading) == len(chosen.golden):
        chosen, reached = chosen.of(rows.golden), None if reached is None else reached[rows.golden]
    tie = _tie(chosen, reached)
    values = (tie.count, tie.gap, tie.allowed)
    context = {**row.context, **dict(zip(_CONTEXT, values)), **({AFTER: tie.after} if tie.after else {})}
    return as_tie(replace(row, context=context))


def _tie(chosen: Chosen, reached: torch.Tensor | None) -> _Tie:
    ties, differing = chosen.ties, chosen.differing
    after = torch.zeros_like(ties)
    if reached is not None and len(reached) == len(ties):
        after = chosen.excused(reached) & ~ties
    judged = differing.any(-1) & ~after
    gaps, allowed = chosen.gaps[judged], chosen.allowed[judged]
    if not len(gaps):
        return _Tie(int(differing.sum()), int(differing.sum()), 0.0, float(chosen.allowed.max()))
    near = gaps <= allowed
    worst = int((gaps if bool(near.all()) else gaps.masked_fill(near, -1.0)).argmax())
    return _Tie(int(differing.sum()), int(differing[after].sum()), float(gaps[worst]), float(allowed[worst]))


def as_tie(row: Row) -> Row:
    """A failing row of choices as a tie, where its context says that it is one; else with a note."""
    tie = _of_context(row)
    if tie is None or not _only_choices_differ(row):
        return row
    many = Reason("{} of {} choices differ", tie.count, row.counts.get("elements"))
    behind = Reason("{} of them of tokens after a tie", tie.after) if tie.after else ""
    if not tie.gap <= tie.allowed:
        apart = (
            Reason("up to {:.3g} apart", tie.gap)
            if math.isfinite(tie.gap)
            else "that are none, or chosen twice"
        )
        among = Reason("{}, among values {} (of a tie at most {:.3g})", many, apart, tie.allowed)
        note = joined("; ", filter(None, (among, behind)))
        return replace(row, notes=(*(present for present in row.notes if present != note), note))
    reason = "T times rms of the values chosen from: what these may be off"
    checks = (
        *(_tied(check, tie.count) if check.metric == COUNT else check for check in row.checks),
        Check(GAP, tie.gap, tie.allowed, False, reason, True),
    )
    if not all(check.passed for check in checks):
        return row
    return replace(row, verdict="tie", sentence=_sentence(many, behind, tie), reasons=(), checks=checks)


def _sentence(many: str, behind: str, tie: _Tie) -> str:
    if tie.after == tie.count:
        return Reason("{}, each of a token after a tie", many)
    among = "equal values" if tie.gap == 0 else Reason("values at most {:.3g} apart", tie.gap)
    subject = Reason("{}, the others among", behind) if behind else "each among"
    return Reason("{}, {} {} (allowed {:.3g})", many, subject, among, tie.allowed)


def _of_context(row: Row) -> _Tie | None:
    count, gap, allowed = (row.context.get(name) for name in _CONTEXT)
    after = row.context.get(AFTER, 0)
    counted = type(count) is int and type(after) is int
    if not counted or type(gap) is not float or type(allowed) is not float:
        return None
    assert isinstance(count, int)
    assert isinstance(after, int)
    return _Tie(count, after, gap, allowed)


def _only_choices_differ(row: Row) -> bool:
    failed = [check.metric for check in row.checks if not check.passed]
    return row.verdict == "fail" and failed == [COUNT]


def _tied(check: Check, count: int) -> Check:
    """The check of the count of differing indices: as many may differ as were chosen among equals."""
    reason = "each of a tie: the values chosen from decide"
    return check._replace(allowed=float(count), reason=reason, passed=(check.measured or 0) <= count)
