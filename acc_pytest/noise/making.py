"""A profile made of dumps: every tensor of golden measured against each noise run.

golden, noise dump -> partners_of -> (golden's tensor, the noise run's) -> measure -> NoiseErrors
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..dumps.base import Dump
from ..errors import AccError, NoPayload, SettingsError
from ..guard import guarded
from ..mapping.fed import WEIGHTS
from ..mapping.pair import Pair
from ..mapping.reconcile import Comparison, open_pair
from ..metrics.kernel import measure
from ..tensors.ref import TensorRef
from ..tensors.source import TensorSource
from .errors import NoiseErrors
from .fingerprint import fingerprint
from .profile import Profile, ProfiledRun, ProfiledTensor, key_of, profile_path
from .run import partners_of, refuse_unfit, same_shapes
from .stated import has_statistics_only, stated_errors

_SAME_FED = ("token ids", "positions")


@dataclass
class ProfileMaker:
    """Collects what one noise run after the other is off by. `left_out` says what could not be measured.

    `values` is golden dumped once more, with its values, where the dump that is kept has statistics only.
    """

    golden: Dump
    tables: Mapping[str, Any] | None = None
    values: Dump | None = None
    runs: list[ProfiledRun] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _errors: dict[TensorRef, list[NoiseErrors]] = field(default_factory=dict)

    def add(self, noise: Dump, how: str = "") -> None:
        """Measure a noise run; `how` says in words how it was made.

        Raises `MappingError` where it shares no step with golden, `SettingsError` where none of its tensors
        can be compared, and where it was fed other tokens than golden.
        """
        with guarded(f"measuring the noise run {noise.root} against {self.golden.root}"):
            refuse_unfit(self.golden, noise)
            partners = partners_of(self.values or self.golden, noise, self.tables)
            _refuse_other_tokens(noise, partners.joined.values())
            measured = dict(self._measured(partners.single, partners.joined))
        if not measured:
            raise SettingsError(
                f"{noise.root}: none of its tensors can be compared with golden {self.golden.root}; give "
                "another run of the same model, dumped as golden was"
            )
        for ref, errors in measured.items():
            self._errors.setdefault(ref, []).append(errors)
        self.runs.append(ProfiledRun(_usual_dtype(measured.values()), how))

    def profile(self) -> Profile:
        """The profile of all runs, where it belongs. Nothing is written."""
        path = profile_path(str(self.golden.root))
        home = os.path.dirname(path)
        partners = {ref: ref for ref in self._errors}
        if self.values is not None:
            partners = dict(partners_of(self.golden, self.values, self.tables).single)
        tensors = {
            key_of(ref, home): ProfiledTensor(fingerprint(ref), _merged(self._errors[measured]))
            for ref, measured in partners.items()
            if measured in self._errors
        }
        return Profile(path, tuple(self.runs), tensors)

    def _measured(
        self, single: Mapping[TensorRef, TensorRef], pairs: Mapping[tuple[TensorRef, ...], Pair]
    ) -> Iterator[tuple[TensorRef, NoiseErrors]]:
        alone = {refs[0]: pair for refs, pair in pairs.items() if len(refs) == 1}
        weights = {ref for ref, pair in alone.items() if pair.fed in WEIGHTS}
        for ref in dict.fromkeys((*single, *alone)):
            if ref in weights:
                continue
            try:
                errors = _errors_at(ref, single.get(ref), alone.get(ref))
            except NoPayload:
                continue  # of golden's tensor nothing was dumped, so that nothing will be compared
            except (AccError, OSError) as error:
                self.left_out.append(str(error) if ref.path in str(error) else f"{ref}: {error}")
                continue
            if errors is not None:
                yield ref, errors


def _errors_at(ref: TensorRef, partner: TensorRef | None, pair: Pair | None) -> NoiseErrors | None:
    """The errors of the noise run at one tensor of golden; `None` where nothing of its shape is known."""
    if partner is not None and any(map(has_statistics_only, (ref, partner))):
        return stated_errors(ref, partner)
    if partner is not None and same_shapes((ref,), (partner,)):
        comparisons = [Comparison(_opened(ref), _opened(partner))]
    elif pair is not None:
        comparisons = list(open_pair(pair).comparisons)
    else:
        return None
    return NoiseErrors.largest_of(
        [NoiseErrors.of(measure(comparison.golden, comparison.mine)) for comparison in comparisons]
    )


def _merged(runs: Sequence[NoiseErrors]) -> NoiseErrors:
    """The largest errors; runs that are off by the same are one, repeated."""
    different = {(run.relative, run.largest) for run in runs}
    return replace(NoiseErrors.largest_of(runs), runs=len(different))


def _opened(ref: TensorRef) -> TensorSource:
    return TensorSource(ref.open())


def _refuse_other_tokens(noise: Dump, pairs: Iterable[Pair]) -> None:
    """A run over other tokens is off by whatever these make of it, which is no noise."""
    for pair in sorted(pairs, key=lambda pair: pair.order):
        if pair.fed not in _SAME_FED:
            continue
        opened = open_pair(pair)
        if any(measure(comparison.golden, comparison.mine).mismatches for comparison in opened.comparisons):
            raise SettingsError(
                f"{noise.root}: was fed other {pair.fed} than golden at step {pair.step}; give every step of "
                "a noise run the tokens of golden"
            )


def _usual_dtype(errors: Iterable[NoiseErrors]) -> str:
    """The float type of most tensors; empty where all are whole numbers."""
    dtypes = Counter(error.dtype for error in errors if error.dtype)
    return dtypes.most_common(1)[0][0] if dtypes else ""
