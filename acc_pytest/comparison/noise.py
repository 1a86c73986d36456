"""How far a noise run is from golden in the tensor of one pair: measured where the pair is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import AccError, Incomparable
from ..judging.threshold import JudgeContext
from ..judging.tolerance import coarser
from ..mapping.pair import Pair
from ..mapping.reconcile import Comparison, open_pair
from ..metrics.kernel import measure
from ..metrics.measurement import Measurement
from ..tensors.dtypes import by_name

if TYPE_CHECKING:
    from ..mapping.noise_run import Counterpart


def with_noise(
    contexts: Sequence[JudgeContext],
    pair: Pair,
    comparisons: Sequence[Comparison],
    counterpart: Counterpart | None,
) -> list[JudgeContext]:
    """The contexts of a pair's comparisons with what the noise run measures in them, or why it cannot.

    `counterpart` is `None` where no noise run was given. Raises nothing for a noise run that is broken: the
    contexts then say so.
    """
    if counterpart is None:
        return list(contexts)
    if not counterpart.found:
        return [replace(context, noise_reason=counterpart.reason) for context in contexts]
    try:
        measured = _measured(pair, comparisons, counterpart)
    except (AccError, OSError) as error:
        said = f"the noise run's tensor cannot be measured: {error}"
        return [replace(context, noise_reason=said) for context in contexts]
    return [_with_noise_of(context, noise) for context, noise in zip(contexts, measured)]


def _measured(pair: Pair, comparisons: Sequence[Comparison], counterpart: Counterpart) -> list[Measurement]:
    """The noise run against golden, for each comparison of the pair."""
    if counterpart.operand is not None:
        noisy = open_pair(replace(pair, golden=counterpart.operand)).comparisons
        if len(noisy) != len(comparisons):
            raise Incomparable(f"{len(noisy)} replicas in the noise run, {len(comparisons)} in golden")
        return [measure(own.golden, noise.golden) for own, noise in zip(comparisons, noisy)]
    whole = open_pair(counterpart.pair).comparisons if counterpart.pair is not None else ()
    measured = [measure(comparison.golden, comparison.mine) for comparison in whole]
    return [max(measured, key=lambda m: m.relative_euclidean_distance or 0.0)] * len(comparisons)


def _with_noise_of(context: JudgeContext, noise: Measurement) -> JudgeContext:
    dtypes = (noise.golden_dtype, noise.mine_dtype)
    exact = all(by_name(dtype).format is None for dtype in dtypes)
    return replace(
        context,
        noise_error=noise.relative_euclidean_distance,
        noise_max_absolute_error=noise.max_absolute_error,
        noise_mismatches=noise.mismatches or 0,
        noise_new_nonfinite=int(noise.value("new_nonfinite") or 0),
        noise_lost_nonfinite=int(noise.value("lost_nonfinite") or 0),
        noise_dtype="" if exact else coarser(*dtypes).name,
        noise_reason=""
        if noise.relative_euclidean_distance is not None
        else "the noise run has no number here",
    )
