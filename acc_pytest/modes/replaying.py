"""What replay needs, whether mine is compared with golden or stands alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import SettingsError

if TYPE_CHECKING:
    from ..diagnosis.recomputation import Recomputer
    from ..mapping.pair import Plan
    from ..settings import Settings


def check_replay(settings: Settings, plan: Plan) -> None:
    """Raises `SettingsError` where what replay needs was not given, or something that it has no use for."""
    if settings.replay is None:
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

    if settings.replay is None:
        return recomputer_of(plan)
    return recomputer_of(plan, RecomputeBudget(settings.replay, measured=True), settings.model)
