"""What a profile knows of the pairs of a plan: the errors of the noise runs, by golden's files."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import AccError, SettingsError
from ..mapping.fed import WEIGHTS
from ..mapping.pair import Operand, Pair
from .profile import Profile, ProfiledTensor, fingerprint, key_of
from .profile_file import REMEDY
from .run import Counterpart, NoisePlan

_LOOKED_AT = 8
"""Tensors of golden that are held against the profile before the run; the others when they are compared."""


def profile_plan(profile: Profile, pairs: Sequence[Pair]) -> NoisePlan:
    """The counterpart of every pair in the profile.

    Raises `SettingsError` for a profile that was made of another golden.
    """
    home = os.path.dirname(profile.path)
    counterparts = tuple(_counterpart(pair, profile, home) for pair in pairs)
    known = [pair for pair, counterpart in zip(pairs, counterparts) if counterpart.found]
    if pairs and not known:
        raise SettingsError(
            f"{profile.path}: knows none of the {len(pairs)} compared tensors of golden; {REMEDY}"
        )
    _refuse_stale(profile, known, home)
    return NoisePlan(profile.path, ", ".join(map(str, profile.runs)), counterparts, is_profile=True)


def _counterpart(pair: Pair, profile: Profile, home: str) -> Counterpart:
    golden = pair.golden
    if pair.fed in WEIGHTS:
        return Counterpart(reason="weights are no results and have no noise")
    profiled = _profiled(golden, profile, home)
    if len(profiled) == len(golden.refs) > 0:
        return Counterpart(profiled=profiled)
    return Counterpart(reason=f"{golden.name or golden.node} {golden.slot} is not in the noise profile")


def _profiled(golden: Operand, profile: Profile, home: str) -> tuple[ProfiledTensor, ...]:
    known = (profile.tensors.get(key_of(ref, home)) for ref in golden.refs)
    return tuple(tensor for tensor in known if tensor is not None)


def _refuse_stale(profile: Profile, pairs: Sequence[Pair], home: str) -> None:
    """Raise where the tensors that are looked at all have other values than when the profile was made."""
    looked_at = pairs[:: max(1, len(pairs) // _LOOKED_AT)][:_LOOKED_AT]
    if looked_at and not any(_is_fresh(pair, profile, home) for pair in looked_at):
        raise SettingsError(
            f"{profile.path}: was made of another golden: all {len(looked_at)} tensors that were looked at "
            f"have other values now; {REMEDY}"
        )


def _is_fresh(pair: Pair, profile: Profile, home: str) -> bool:
    return stale_file(pair.golden, _profiled(pair.golden, profile, home)) == ""


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
