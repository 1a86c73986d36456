"""What replay needs, whether mine is compared with golden or stands alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError
from ..imports import import_torch
from ..vocabulary import OF_OTHERS, REPLAY_WORDS

if TYPE_CHECKING:
    from ..diagnosis.recomputation import RecomputeBudget, Recomputer
    from ..dumps.torch_outline import Outline
    from ..mapping.pair import Plan
    from ..settings import Settings


UNASKED = 1 << 24
"""Elements of an operator up to which it is computed again where nobody asked for it: a linear layer from
4096 to 11008 features for 1,000 tokens."""


UNASKED_OF_ATB = 1 << 18
"""The same of operators of ATB: those up to there take less than half of the time of a comparison
(`benchmarks/replay.py`)."""


def asks_for_replay(given: Mapping[str, Any]) -> bool:
    """Whether these option values ask for replay by themselves."""
    return given.get("replay") not in (None, *REPLAY_WORDS)


def outline_for(settings: Settings, plan: Plan) -> Outline | None:
    """What golden's dump outlines of its model; `None` where it has nothing or is of several ranks, and where
    mine has no use for it: a torch dump that a golden model was asked for or whose standard is another's (it
    says itself what passes), dumps of other tools.
    """
    own = settings.replay is None and settings.standard not in OF_OTHERS
    used = own if plan.mine_kind == "torch" else settings.replay != 0
    if not used or plan.golden_kind != "torch" or plan.mine_kind not in ("torch", "atb"):
        return None
    from ..dumps import open_dump
    from ..dumps.modules import ModuleDump

    dump = open_dump(plan.golden_root)
    if not isinstance(dump, ModuleDump) or len(dump.ranks) > 1:
        return None
    return dump.outline(dump.ranks[0])


def unasked_of_atb(settings: Settings, plan: Plan, outline: Outline | None) -> Recomputer | None:
    """Who computes small operators of ATB again, where nothing else was asked for; `None` for other dumps."""
    if not is_unasked_of_atb(settings, plan):
        return None
    import_torch()
    from ..diagnosis.recomputation import RecomputeBudget

    return _of_atb(plan, outline, RecomputeBudget(UNASKED_OF_ATB, measured=True))


def is_unasked_of_atb(settings: Settings, plan: Plan) -> bool:
    """Whether small operators of ATB are computed again, though nobody asked for it."""
    return settings.replay is None and settings.standard not in OF_OTHERS and plan.mine_kind == "atb"


def check_replay(settings: Settings, plan: Plan) -> None:
    """Raises `SettingsError` where what replay needs was not given, or something that it has no use for."""
    if not settings.replay:
        if settings.model:
            raise SettingsError("--acc-model needs --acc-replay: it is for computing operators again")
        return
    from ..diagnosis.recomputers import BY_THEMSELVES, OF_MODULES

    if settings.model and plan.mine_kind not in OF_MODULES:
        raise SettingsError(
            f"--acc-model is for dumps of torch models ({', '.join(sorted(OF_MODULES))}), and mine is one of "
            f"{plan.mine_kind}; leave it out"
        )
    if not settings.model and plan.mine_kind in OF_MODULES - BY_THEMSELVES:
        raise SettingsError(
            f"--acc-replay of a dump of {plan.mine_kind} needs --acc-model FILE.py:FUNCTION, "
            "a function that returns the golden model"
        )


def recomputer_for(
    settings: Settings, plan: Plan, outline: Outline | None = None, small: Recomputer | None = None
) -> Recomputer:
    """Who computes operators of mine again, by golden's `outline` where that is given; `small` is who has
    computed small ones of ATB unasked.

    Raises `AccError` where the golden model cannot be made.
    """
    import_torch()
    from ..diagnosis.recomputation import LOOKING, RecomputeBudget
    from ..diagnosis.recomputers import recomputer_of

    asked = RecomputeBudget(settings.replay, measured=True) if settings.replay else LOOKING
    if plan.mine_kind == "atb":
        return _of_atb(plan, outline, asked, small)
    if outline is not None:
        from ..diagnosis.recompute_outlined import OutlinedRecomputer

        return OutlinedRecomputer(plan, outline, RecomputeBudget(UNASKED, measured=True))
    return recomputer_of(plan, asked, settings.model if settings.replay else "")


def _of_atb(
    plan: Plan, outline: Outline | None, budget: RecomputeBudget, small: Recomputer | None = None
) -> Recomputer:
    """Who computes operators of ATB again, and holds them against golden's outline where there is one."""
    if outline is None:
        from ..diagnosis.recompute_atb import AtbRecomputer

        return AtbRecomputer(plan.pairs, budget, plan.between, plan.parents, small)
    from ..diagnosis.recompute_atb_outlined import OutlinedAtbRecomputer

    return OutlinedAtbRecomputer(plan, outline, budget, UNASKED, small)
