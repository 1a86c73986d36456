"""The counterparts of a plan's golden tensors in a noise run: golden again, on other terms.

    golden, noise dump -> planner.plan -> its pairs, by golden's tensors -> a `Counterpart` of each pair

The noise run is mapped onto golden as mine is. A pair whose golden tensors have the same shapes there is
read from the noise run just as from golden, with the same pieces and rows picked; otherwise golden's whole
tensor is compared with what the mapping found for it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.imports import torch
from ..base.reason import Reason
from ..dumps.base import Dump, StepLabel
from ..errors import AccError, NoPayload, SettingsError, guarded
from ..mapping.pair import EXACT, WEIGHTS, Pair
from ..mapping.planner import plan
from ..mapping.reconcile import open_pair
from ..mapping.steps import common_steps
from ..mapping.torchair import is_torchair
from ..mapping.views import SlotRows, View, WithBias
from ..metrics.kernel import measure
from ..tensors.ref import TensorRef
from ..tensors.source import TensorSource
from .counterparts import NO_NOISE, Counterpart, NoisePlan
from .errors import NoiseErrors, has_statistics_only, stated_errors
from .profile import Profile, ProfiledRun, ProfiledTensor, fingerprint, key_of, profile_path


def noise_plan(
    golden: Dump, noise: Dump, pairs: Sequence[Pair], *, tables: Mapping[str, Any] | None = None
) -> NoisePlan:
    """Map the noise run onto golden, and find what each pair's golden tensor is there.

    Raises `MappingError` when the two share no step, `SettingsError` where golden names its partners itself
    (`dump_data`), and when the noise run is golden or has none of the tensors.
    """
    with guarded(f"finding the tensors of {golden.root} in the noise run {noise.root}"):
        refuse_unfit(golden, noise)
        partners, root = partners_of(golden, noise, tables), str(noise.root)
        noise_plan = NoisePlan(root, noise.kind, tuple(_counterpart(pair, partners, root) for pair in pairs))
        if pairs and not noise_plan.count:
            raise SettingsError(
                f"noise run {root}: none of the {len(pairs)} compared tensors of golden has a "
                "counterpart there; it must be a run of the same golden model, dumped as golden was"
            )
        return noise_plan


@dataclass(frozen=True, slots=True)
class Partners:
    """The partners of golden's tensors in a noise run: one by one, and the pairs of whole operands."""

    single: Mapping[TensorRef, TensorRef]
    joined: Mapping[tuple[TensorRef, ...], Pair]


def partners_of(golden: Dump, noise: Dump, tables: Mapping[str, Any] | None = None) -> Partners:
    """Map the noise run onto golden. Raises `MappingError` when the two share no step."""
    mapped = plan(golden, noise, tables=tables).pairs
    single = {
        ref: noise_ref
        for noise_pair in reversed(mapped)
        if len(noise_pair.golden.refs) == len(noise_pair.mine.refs)
        and type(noise_pair.golden.view) is type(noise_pair.mine.view)
        for ref, noise_ref in zip(noise_pair.golden.refs, noise_pair.mine.refs)
    }
    return Partners(
        single={**_equal_slots(golden, noise, mapped), **single},
        joined={noise_pair.golden.refs: noise_pair for noise_pair in reversed(mapped)},
    )


def refuse_unfit(golden: Dump, noise: Dump) -> None:
    """Raise `SettingsError` for a golden that has no noise runs, and for a noise run that is golden."""
    if golden.kind == "manual":
        raise SettingsError(
            f"noise run {noise.root}: golden {golden.root} was written by dump_data, which a noise run "
            "cannot be mapped to; dump golden with register_hook"
        )
    if os.path.realpath(golden.root) == os.path.realpath(noise.root):
        raise SettingsError(f"noise run {noise.root}: is golden itself; give another run")


def _equal_slots(golden: Dump, noise: Dump, mapped: Sequence[Pair]) -> dict[TensorRef, TensorRef]:
    """Equal slots of nodes that were mapped onto each other: inputs too, which equal names leave out."""
    if is_torchair(golden, noise) or len(golden.ranks) != len(noise.ranks):
        return {}
    nodes: dict[StepLabel, dict[str, str]] = {}
    for pair in mapped:
        nodes.setdefault(pair.step, {})[pair.golden.node] = pair.mine.node
    partners: dict[TensorRef, TensorRef] = {}
    for met in common_steps(golden, noise):
        for path, noise_path in nodes.get(met.label, {}).items():
            ends = met.golden.tree.by_path.get(path), met.mine.tree.by_path.get(noise_path)
            for golden_rank, noise_rank in zip(golden.ranks, noise.ranks):
                if ends[0] is None or ends[1] is None:
                    continue
                theirs = noise.tensors(met.mine, noise_rank, ends[1])
                ours = golden.tensors(met.golden, golden_rank, ends[0])
                partners |= {ref: theirs[slot] for slot, ref in ours.items() if slot in theirs}
    return partners


def _counterpart(pair: Pair, partners: Partners, root: str) -> Counterpart:
    if pair.fed in EXACT:
        return Counterpart(reason=NO_NOISE)
    golden, single, joined = pair.golden, partners.single, partners.joined
    refs = tuple(single[ref] for ref in golden.refs if ref in single)
    if len(refs) == len(golden.refs) and same_shapes(golden.refs, refs):
        return Counterpart(operand=replace(golden, refs=refs, view=_view(golden.view, single)))
    if golden.refs in joined:
        return Counterpart(pair=joined[golden.refs])
    where = golden.name or golden.node, golden.slot, root
    return Counterpart(reason=Reason("{} {} has no counterpart in {}", *where))


def _view(view: View, single: Mapping[TensorRef, TensorRef]) -> View:
    """The view with its tensors taken from the noise run too, where that has them."""
    if isinstance(view, SlotRows) and all(ref in single for ref in view.slots):
        return replace(view, slots=tuple(single[ref] for ref in view.slots))
    if isinstance(view, WithBias) and all(ref in single for ref in view.bias):
        return replace(view, bias=tuple(single[ref] for ref in view.bias))
    return view


def same_shapes(golden: Sequence[TensorRef], noise: Sequence[TensorRef]) -> bool:
    """Whether every shard has the shape of its partner; a header that cannot be read is told when opened."""
    try:
        return all(ref.header().shape == partner.header().shape for ref, partner in zip(golden, noise))
    except (AccError, OSError):
        return True


# A profile made of dumps: every tensor of golden measured against each noise run.
#
# golden, noise dump -> partners_of -> (golden's tensor, the noise run's) -> measure -> NoiseErrors


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
        dtypes = Counter(errors.dtype for errors in measured.values() if errors.dtype)
        self.runs.append(ProfiledRun(dtypes.most_common(1)[0][0] if dtypes else "", how))

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
        tensors = ref.open(), partner.open()
        return _with_last_row(NoiseErrors.of(measure(*map(TensorSource, tensors))), *tensors)
    if pair is None:
        return None
    comparisons = open_pair(pair).comparisons
    errors = [NoiseErrors.of(measure(comparison.golden, comparison.mine)) for comparison in comparisons]
    return replace(NoiseErrors.largest_of(errors), last_row=None)


def _with_last_row(errors: NoiseErrors, golden: torch.Tensor, noise: torch.Tensor) -> NoiseErrors:
    """The errors with those of the last rows, where there are others and they are floats."""
    if golden.dim() < 2 or golden.shape[-2] < 2 or not golden.is_floating_point():
        return errors
    last = measure(TensorSource(golden[..., -1, :]), TensorSource(noise[..., -1, :]))
    distance, largest = last.relative_euclidean_distance, last.max_absolute_error
    return replace(errors, last_row=distance, last_row_largest=largest)


def _merged(runs: Sequence[NoiseErrors]) -> NoiseErrors:
    """The largest errors; runs that are off by the same are one, repeated."""
    different = {(run.relative, run.largest) for run in runs}
    return replace(NoiseErrors.largest_of(runs), runs=len(different))


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
