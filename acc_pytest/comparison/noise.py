"""Noise of golden in the tensor of one pair: measured where the pair is compared, or as a profile has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..base.reason import Reason
from ..errors import AccError, Incomparable
from ..judging.threshold import JudgeContext
from ..mapping.operand_shards import rows_in
from ..mapping.pair import Pair
from ..mapping.reconcile import Comparison, open_pair
from ..mapping.shapes import Shape
from ..mapping.views import RankSum, View, WithBias
from ..metrics.kernel import measure
from ..noise.counterparts import stale_file
from ..noise.errors import NoiseErrors, stated_errors

if TYPE_CHECKING:
    from ..noise.counterparts import Counterpart
    from ..noise.profile import ProfiledTensor


def with_noise(
    contexts: Sequence[JudgeContext],
    pair: Pair,
    comparisons: Sequence[Comparison],
    counterpart: Counterpart | None,
) -> list[JudgeContext]:
    """The contexts of a pair's comparisons with the noise of golden's tensor, or why it is not known.

    `counterpart` is `None` where no noise run was given. Raises nothing for a noise run that is broken: the
    contexts then say so.
    """
    if counterpart is None:
        return list(contexts)
    if counterpart.profiled:
        shapes = [tuple(comparison.golden.shape) for comparison in comparisons]
        return [_profiled(*shaped, pair, counterpart.profiled) for shaped in zip(contexts, shapes)]
    reason = counterpart.reason
    try:
        if counterpart.exists:
            errors = _measured(pair, comparisons, counterpart)
            return [noise.applied_to(context) for context, noise in zip(contexts, errors)]
    except (AccError, OSError) as error:
        reason = Reason("the noise run's tensor cannot be measured: {}", error)
    return [replace(context, noise_reason=reason, noise_nearby=counterpart.nearby) for context in contexts]


def with_noise_of_statistics(
    context: JudgeContext, pair: Pair, elements: int, counterpart: Counterpart | None
) -> JudgeContext:
    """The context of a pair of statistics with the noise of golden's tensor, or why it is not known."""
    if counterpart is None:
        return context
    if counterpart.profiled:
        return _profiled(context, (elements,), pair, counterpart.profiled)
    reason = counterpart.reason
    try:
        if counterpart.operand is not None:
            ends = zip(pair.golden.refs, counterpart.operand.refs)
            errors = NoiseErrors.largest_of([stated_errors(golden, noise) for golden, noise in ends])
            return errors.applied_to(context)
    except (AccError, OSError) as error:
        reason = Reason("the noise run's tensor cannot be measured: {}", error)
    return replace(context, noise_reason=reason, noise_nearby=counterpart.nearby)


def _measured(pair: Pair, comparisons: Sequence[Comparison], counterpart: Counterpart) -> list[NoiseErrors]:
    """The noise run against golden, for each comparison of the pair."""
    if counterpart.operand is not None:
        noisy = open_pair(replace(pair, golden=counterpart.operand)).comparisons
        if len(noisy) != len(comparisons):
            raise Incomparable(
                Reason("{} replicas in the noise run, {} in golden", len(noisy), len(comparisons))
            )
        return [NoiseErrors.of(measure(a.golden, b.golden)) for a, b in zip(comparisons, noisy)]
    full = open_pair(counterpart.pair).comparisons if counterpart.pair is not None else ()
    measured = [measure(comparison.golden, comparison.mine) for comparison in full]
    worst = max(measured, key=lambda m: m.relative_euclidean_distance or 0.0)
    return [replace(NoiseErrors.of(worst), last_row=None)] * len(comparisons)


def _profiled(
    context: JudgeContext, shape: Shape, pair: Pair, profiled: Sequence[ProfiledTensor]
) -> JudgeContext:
    """The context with what the profile has of golden's tensor, or why that says nothing of this pair."""
    if stale := stale_file(pair.golden, profiled):
        of_others = Reason("the noise profile is of other values than {} has now", stale)
        return replace(context, noise_reason=of_others)
    errors = NoiseErrors.largest_of([tensor.errors for tensor in profiled])
    rows = rows_in(pair.golden, shape)
    if errors.last_row is not None and rows == "last":
        return errors.of_last_row().applied_to(context)
    reason = _unlike(pair.golden.view, math.prod(shape), [tensor.errors.elements for tensor in profiled])
    if reason:
        nearby = max(errors.relative or 0.0, errors.worst_row or 0.0)
        return replace(context, noise_reason=reason, noise_nearby=nearby)
    return (errors if rows == "all" else replace(errors, last_row=None)).applied_to(context)


def _unlike(view: View, compared: int, sizes: Sequence[int]) -> str:
    """Why what is compared is not the tensors of these sizes that the profile has; empty where it is."""
    if isinstance(view, (RankSum, WithBias)):
        return "the noise profile has the tensors of single ranks without a bias, not what is compared"
    if compared < sum(sizes) and compared not in sizes:
        return "only a part of golden's tensor is compared, and the noise profile has the whole"
    return ""
