"""Which way operators of mine are computed again: by what dumped them, and what golden's dump outlines."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

from ..base.vocabulary import OF_MODULES
from ..dumps import open_dump
from ..dumps.torch_model import Outline
from ..mapping.pair import Plan
from ..tensors.dtypes import stated_dtype
from .recomputation import LOOKING, RecomputeBudget, Recomputer, SharedOut, StoredRecomputer

BY_THEMSELVES = frozenset({"msprobe"})
"""Those of which the dump tells enough to compute functions without a model."""
UNASKED = 1 << 24
"""Elements of an operator up to which it is computed again where nobody asked for it: a linear layer from
4096 to 11008 features for 1,000 tokens."""


def recomputer_of(
    plan: Plan,
    budget: RecomputeBudget = LOOKING,
    model: str = "",
    outlines: Sequence[Outline] = (),
    small: Recomputer | None = None,
) -> Recomputer:
    """The recomputer for operators of mine, of a plan of dumps that are at hand.

    `model` is the checkpoint of golden's model, or the function that makes it, for a dump of modules, and
    `outlines` what golden's dump says of its model, one a rank. `small` has computed small operators of ATB
    already. Only what the dump needs is imported. Raises `AccError` where there is no such model.
    """
    if outlines and plan.mine_kind != "atb":
        from .modules import OutlinedRecomputer

        limited, opened = RecomputeBudget(UNASKED, measured=True), functools.cache(open_dump)
        several = StoredRecomputer({}, "it is compared with what several ranks of golden make up")
        return _by_outlines(
            plan, outlines, lambda outline: OutlinedRecomputer(plan, outline, limited, opened), several
        )
    if plan.mine_kind in OF_MODULES and model:
        from .golden_model.models import load_model, part_that_ran
        from .modules import ModelRecomputer

        golden = part_that_ran(load_model(model), {pair.golden.name for pair in plan.pairs})
        by_model = ModelRecomputer(plan, golden, budget)
        if plan.mine_kind not in BY_THEMSELVES:
            return by_model
        functions, computes = recomputer_of(plan, budget), by_model.modules.computes
        return SharedOut(lambda number: by_model if computes(number) else functions)
    if plan.mine_kind == "ge":
        from .ge import GeRecomputer

        return GeRecomputer(plan.mine_root, plan.pairs, budget)
    if plan.mine_kind == "fx":
        from .fx import FxRecomputer

        return FxRecomputer(plan.pairs, budget)
    if plan.mine_kind == "msprobe":
        from .msprobe import MsprobeRecomputer

        return MsprobeRecomputer(plan.pairs, budget, stated_dtype(plan.stated))
    from .atb import AtbRecomputer

    alone = AtbRecomputer(plan.pairs, budget, plan.between, plan.parents, small)
    if not outlines:
        return alone
    from .atb_outlined import OutlinedAtbRecomputer

    return _by_outlines(
        plan, outlines, lambda outline: OutlinedAtbRecomputer(plan, outline, budget, UNASKED, small), alone
    )


def _by_outlines(
    plan: Plan, outlines: Sequence[Outline], make: Callable[[Outline], Recomputer], fallback: Recomputer
) -> Recomputer:
    """The recomputer by the outline of golden's rank, as `make` makes it; `fallback` for pairs of several."""
    recomputer_of = functools.cache(lambda place: make(outlines[place]))

    def chosen(number: int) -> Recomputer:
        for place, outline in enumerate(outlines):
            if all(ref.path.startswith(outline.home + os.sep) for ref in plan.pairs[number].golden.refs):
                return recomputer_of(place)
        return fallback

    return SharedOut(chosen)
