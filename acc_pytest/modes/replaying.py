"""The recomputers of replay, whether mine is compared with golden or stands alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
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
"""The limit for operators of ATB: those up to there take less than half of the time of a comparison
(`benchmarks/replay.py`)."""


def lifts(settings: Settings) -> bool:
    """Whether pairs may pass as accumulated rounding: not where nothing is computed again, nor, unless it was
    asked for, by the standards of others."""
    return bool(settings.replay) or (settings.replay is None and settings.standard not in OF_OTHERS)


def asks_for_replay(option_values: Mapping[str, Any]) -> bool:
    """Whether these option values ask for replay by themselves."""
    return option_values.get("replay") not in (None, *REPLAY_WORDS)


def outlines_for(settings: Settings, plan: Plan) -> tuple[Outline, ...]:
    """The outlines of its model in golden's dump, one a rank; nothing where tensors of several ranks are put
    together in each pair, and where mine has no use for it: a torch dump that a golden model was asked for or
    whose standard is another's (it says itself what passes), dumps of other tools.
    """
    by_default = settings.replay is None and settings.standard not in OF_OTHERS
    used = by_default if plan.mine_kind == "torch" else settings.replay != 0
    if not used or plan.golden_kind != "torch" or plan.mine_kind not in ("torch", "atb"):
        return ()
    from ..dumps import open_dump
    from ..dumps.modules import ModuleDump

    dump = open_dump(plan.golden_root)
    if not isinstance(dump, ModuleDump) or all(len(pair.golden.refs) > 1 for pair in plan.pairs):
        return ()
    return tuple(filter(None, map(dump.outline, dump.ranks)))


def unasked_of_atb(settings: Settings, plan: Plan, outlines: Sequence[Outline]) -> Recomputer | None:
    """The recomputer of small ATB operators where nothing else was asked for; `None` for other dumps."""
    if not is_unasked_of_atb(settings, plan):
        return None
    import_torch()
    from ..diagnosis.recomputation import RecomputeBudget

    return _of_atb(plan, outlines, RecomputeBudget(UNASKED_OF_ATB, measured=True))


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
    settings: Settings, plan: Plan, outlines: Sequence[Outline] = (), small: Recomputer | None = None
) -> Recomputer:
    """The recomputer of mine's operators, by golden's `outlines` where there are any; `small` is the one of
    `unasked_of_atb`.

    Raises `AccError` where the golden model cannot be made.
    """
    import_torch()
    from ..diagnosis.recomputation import LOOKING, RecomputeBudget, StoredRecomputer
    from ..diagnosis.recomputers import by_outlines, recomputer_of

    budget = RecomputeBudget(settings.replay, measured=True) if settings.replay else LOOKING
    if plan.mine_kind == "atb":
        return _of_atb(plan, outlines, budget, small)
    if outlines:
        from ..diagnosis.recompute_outlined import OutlinedRecomputer
        from ..dumps import open_dump

        limited, opened = RecomputeBudget(UNASKED, measured=True), functools.cache(open_dump)
        refusing = StoredRecomputer({}, "it is compared with what several ranks of golden make up")
        return by_outlines(
            plan, outlines, lambda outline: OutlinedRecomputer(plan, outline, limited, opened), refusing
        )
    return recomputer_of(plan, budget, settings.model if settings.replay else "")


def _of_atb(
    plan: Plan, outlines: Sequence[Outline], budget: RecomputeBudget, small: Recomputer | None = None
) -> Recomputer:
    """The recomputer of ATB operators, which holds them against golden's outlines where there are any."""
    from ..diagnosis.recompute_atb import AtbRecomputer
    from ..diagnosis.recomputers import by_outlines

    alone = AtbRecomputer(plan.pairs, budget, plan.between, plan.parents, small)
    if not outlines:
        return alone
    from ..diagnosis.recompute_atb_outlined import OutlinedAtbRecomputer

    return by_outlines(
        plan, outlines, lambda one: OutlinedAtbRecomputer(plan, one, budget, UNASKED, small), alone
    )
