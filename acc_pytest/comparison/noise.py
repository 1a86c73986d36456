"""How far a noise run is from golden in the tensor of one pair: measured where the pair is compared, or as a
profile has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import AccError, Incomparable
from ..judging.threshold import JudgeContext
from ..mapping.pair import Pair, RankSum, WithBias
from ..mapping.reconcile import Comparison, open_pair
from ..metrics.kernel import measure
from ..noise.errors import NoiseErrors
from ..noise.profile_plan import stale_file

if TYPE_CHECKING:
    from ..noise.run import Counterpart


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
    if not counterpart.found:
        return [replace(context, noise_reason=counterpart.reason) for context in contexts]
    try:
        if counterpart.profiled:
            errors = [_profiled(pair, comparison, counterpart) for comparison in comparisons]
        else:
            errors = _measured(pair, comparisons, counterpart)
    except (AccError, OSError) as error:
        said = str(error) if counterpart.profiled else f"the noise run's tensor cannot be measured: {error}"
        return [replace(context, noise_reason=said) for context in contexts]
    return [noise.told(context) for context, noise in zip(contexts, errors)]


def _measured(pair: Pair, comparisons: Sequence[Comparison], counterpart: Counterpart) -> list[NoiseErrors]:
    """The noise run against golden, for each comparison of the pair."""
    if counterpart.operand is not None:
        noisy = open_pair(replace(pair, golden=counterpart.operand)).comparisons
        if len(noisy) != len(comparisons):
            raise Incomparable(f"{len(noisy)} replicas in the noise run, {len(comparisons)} in golden")
        return [NoiseErrors.of(measure(own.golden, noise.golden)) for own, noise in zip(comparisons, noisy)]
    whole = open_pair(counterpart.pair).comparisons if counterpart.pair is not None else ()
    measured = [measure(comparison.golden, comparison.mine) for comparison in whole]
    worst = max(measured, key=lambda m: m.relative_euclidean_distance or 0.0)
    return [NoiseErrors.of(worst)] * len(comparisons)


def _profiled(pair: Pair, comparison: Comparison, counterpart: Counterpart) -> NoiseErrors:
    """What the profile has of golden's tensor. Raises `Incomparable` where that says nothing of this pair."""
    if stale := stale_file(pair.golden, counterpart.profiled):
        raise Incomparable(f"the noise profile is of other values than {stale} has now")
    if isinstance(pair.golden.view, (RankSum, WithBias)):
        raise Incomparable("the noise profile says nothing of a sum over ranks or with a bias")
    errors = NoiseErrors.largest_of([tensor.errors for tensor in counterpart.profiled])
    compared = math.prod(comparison.golden.shape)
    sizes = [tensor.errors.elements for tensor in counterpart.profiled]
    if compared < sum(sizes) and compared not in sizes:
        raise Incomparable("only a part of golden's tensor is compared, and the noise profile has the whole")
    return errors
