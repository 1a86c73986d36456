"""The counterparts of a plan's golden tensors in a noise run: golden again, on other terms.

    golden, noise dump -> planner.plan -> its pairs, by golden's tensors -> a `Counterpart` of each pair

The noise run is mapped onto golden as mine is. A pair whose golden tensors have the same shapes there is
read from the noise run just as from golden, with the same pieces and rows picked; otherwise golden's whole
tensor is compared with what the mapping found for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..dumps.base import Dump, StepLabel
from ..errors import AccError, SettingsError
from ..guard import guarded
from ..mapping.fed import EXACT
from ..mapping.pair import Pair
from ..mapping.planner import plan
from ..mapping.steps import common_steps
from ..mapping.torchair import is_torchair
from ..mapping.views import SlotRows, View, WithBias
from ..tensors.ref import TensorRef
from .counterparts import NO_NOISE, Counterpart, NoisePlan


def noise_plan(
    golden: Dump, noise: Dump, pairs: Sequence[Pair], *, tables: Mapping[str, Any] | None = None
) -> NoisePlan:
    """Map the noise run onto golden, and find what each pair's golden tensor is there.

    Raises `MappingError` when the two share no step, `SettingsError` where golden names its partners itself
    (`dump_data`), and when the noise run is golden or has none of the tensors.
    """
    with guarded(f"finding the tensors of {golden.root} in the noise run {noise.root}"):
        return _noise_plan(golden, noise, pairs, tables)


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


def _noise_plan(
    golden: Dump, noise: Dump, pairs: Sequence[Pair], tables: Mapping[str, Any] | None
) -> NoisePlan:
    refuse_unfit(golden, noise)
    partners = partners_of(golden, noise, tables)
    plan = NoisePlan(
        str(noise.root),
        noise.kind,
        tuple(_counterpart(pair, partners, str(noise.root)) for pair in pairs),
    )
    if pairs and not plan.count:
        raise SettingsError(
            f"noise run {noise.root}: none of the {len(pairs)} compared tensors of golden has a "
            "counterpart there; it must be a run of the same golden model, dumped as golden was"
        )
    return plan


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
    return Counterpart(reason=f"{golden.name or golden.node} {golden.slot} has no counterpart in {root}")


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
