"""`NoisePlan`: where the noise of each pair of a plan is known from. Data that workers get with the plan."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..base.reason import Reason, joined
from ..errors import AccError, SettingsError
from ..mapping.pair import EXACT, Operand, Pair
from ..tensors.dtypes import DType, by_name
from ..tensors.ref import readable
from .profile import REMEDY, Profile, ProfiledTensor, fingerprint, key_of

NO_NOISE = "weights, ids, positions and masks are no results and have no noise"


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The source of the noise of a pair's golden tensor.

    `operand` is to be read in place of golden's. Without it `pair` compares golden's whole tensor with the
    noise run's. `profiled` are the errors that a profile has, one for each of golden's shards. With none of
    these, `reason` says why, and `nearby` is the largest relative error of what lies around.
    """

    operand: Operand | None = None
    pair: Pair | None = None
    profiled: tuple[ProfiledTensor, ...] = ()
    reason: str = ""
    nearby: float | None = None

    @property
    def exists(self) -> bool:
        """Whether anything is known of the noise."""
        return self.operand is not None or self.pair is not None or bool(self.profiled)


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """The counterpart of every pair of a plan, in the plan's order; where the noise run lies, its kind.

    Of a profile, `root` is its file and `kind` the runs that it was made of; `note` is what to tell of it.
    """

    root: str
    kind: str
    counterparts: tuple[Counterpart, ...]
    is_profile: bool = False
    note: str = ""

    @property
    def count(self) -> int:
        """The number of pairs that have one."""
        return sum(counterpart.exists for counterpart in self.counterparts)


# A profile for the pairs of a plan: the errors of the noise runs, by golden's files.


_LOOKED_AT = 8
"""Tensors of golden that are held against the profile before the run; the others when they are compared."""


def profile_plan(profile: Profile, pairs: Sequence[Pair]) -> NoisePlan:
    """The counterpart of every pair in the profile.

    Raises `SettingsError` for a profile that was made of another golden.
    """
    home = os.path.dirname(profile.path)
    counterparts = [_counterpart(pair, profile, home) for pair in pairs]
    profiled = [pair for pair, counterpart in zip(pairs, counterparts) if counterpart.exists]
    if pairs and not profiled:
        raise SettingsError(
            f"{profile.path}: knows none of the {len(pairs)} compared tensors of golden; {REMEDY}"
        )
    sampled = profiled[:: max(1, len(profiled) // _LOOKED_AT)][:_LOOKED_AT]
    if sampled and all(stale_file(pair.golden, _profiled(pair.golden, profile, home)) for pair in sampled):
        raise SettingsError(
            f"{profile.path}: was made of another golden: all {len(sampled)} tensors that were looked at "
            f"have other values now; {REMEDY}"
        )
    return NoisePlan(
        profile.path,
        joined(", ", map(str, profile.runs)),
        _with_nearby(pairs, counterparts),
        is_profile=True,
        note=_type_note(profile, sampled),
    )


def _counterpart(pair: Pair, profile: Profile, home: str) -> Counterpart:
    golden = pair.golden
    if pair.fed in EXACT:
        return Counterpart(reason=NO_NOISE)
    profiled = _profiled(golden, profile, home)
    if len(profiled) == len(golden.refs) > 0:
        return Counterpart(profiled=profiled)
    return Counterpart(
        reason=Reason("{} {} is not in the noise profile", golden.name or golden.node, golden.slot)
    )


def _profiled(golden: Operand, profile: Profile, home: str) -> tuple[ProfiledTensor, ...]:
    tensors = (profile.tensors.get(key_of(ref, home)) for ref in golden.refs)
    return tuple(tensor for tensor in tensors if tensor is not None)


def _with_nearby(pairs: Sequence[Pair], counterparts: Sequence[Counterpart]) -> tuple[Counterpart, ...]:
    """The counterparts, those that the profile lacks with the largest error in the same layer and step."""
    largest: dict[tuple[object, ...], float] = {}
    for pair, counterpart in zip(pairs, counterparts):
        for tensor in counterpart.profiled:
            place = (pair.step, pair.graph, pair.layer)
            largest[place] = max(largest.get(place, 0.0), tensor.errors.relative or 0.0)
    return tuple(
        counterpart
        if counterpart.exists or pair.fed
        else replace(counterpart, nearby=largest.get((pair.step, pair.graph, pair.layer)))
        for pair, counterpart in zip(pairs, counterparts)
    )


def _type_note(profile: Profile, pairs: Sequence[Pair]) -> str:
    """A sentence where mine has another float type than the runs of the profile; empty where it has not."""
    headers = [readable(ref) for pair in pairs for ref in pair.mine.refs[:1]]
    of_mine = _roundoffs(header.dtype for header in headers if header is not None)
    of_profile = _roundoffs(map(by_name, profile.dtypes))
    if not of_mine or not of_profile or any(name in profile.dtypes for name, _ in of_mine):
        return ""
    mine = Counter(name for name, _ in of_mine).most_common(1)[0][0]
    finer = max(of_profile, key=lambda dtype: dtype[1])[1] < max(of_mine, key=lambda dtype: dtype[1])[1]
    what = (
        "derived bounds stand where they are larger" if finer else Reason("bounds are not those of {}", mine)
    )
    types = joined(" and ", profile.dtypes)
    return Reason("the noise profile is of {}, mine is {}: {}", types, mine, what)


def _roundoffs(dtypes: Iterable[DType]) -> list[tuple[str, float]]:
    """The float types among these, each with its unit roundoff."""
    return [(dtype.name, dtype.roundoff) for dtype in dtypes if dtype.roundoff is not None]


def stale_file(golden: Operand, profiled: Sequence[ProfiledTensor]) -> str:
    """The first file of golden that is not what the profile was made of; empty where all are.

    One that cannot be read is reported by whoever compares it.
    """
    for ref, tensor in zip(golden.refs, profiled):
        try:
            if fingerprint(ref) != tensor.fingerprint:
                return str(ref)
        except (AccError, OSError):
            continue
    return ""
