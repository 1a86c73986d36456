"""What replay needs, whether mine is compared with golden or stands alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError
from ..vocabulary import REPLAY_WORDS

if TYPE_CHECKING:
    from ..diagnosis.recomputation import Recomputer
    from ..dumps.torch_outline import Outline
    from ..mapping.pair import Plan
    from ..settings import Settings


UNASKED = 1 << 24
"""Elements of an operator up to which it is computed again where nobody asked for it: a linear layer from
4096 to 11008 features for 1,000 tokens."""


def asks_for_replay(given: Mapping[str, Any]) -> bool:
    """Whether these option values ask for replay by themselves."""
    return given.get("replay") not in (None, *REPLAY_WORDS)


def outline_for(settings: Settings, plan: Plan) -> Outline | None:
    """By what operators are computed again that nobody asked for; `None` where there is nothing."""
    if settings.replay is not None or plan.golden_kind != "torch":
        return None
    from ..diagnosis.recompute_outlined import outline_of_golden

    return outline_of_golden(plan)


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


def recomputer_for(settings: Settings, plan: Plan) -> Recomputer:
    """Who computes operators of mine again. Raises `AccError` where the golden model cannot be made."""
    from ..diagnosis.recomputation import RecomputeBudget
    from ..diagnosis.recomputers import recomputer_of

    if (outline := outline_for(settings, plan)) is not None:
        from ..diagnosis.recompute_outlined import OutlinedRecomputer

        return OutlinedRecomputer(plan, outline, RecomputeBudget(UNASKED, measured=True))
    if not settings.replay:
        return recomputer_of(plan)
    return recomputer_of(plan, RecomputeBudget(settings.replay, measured=True), settings.model)
