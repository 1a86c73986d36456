"""Which way operators of mine are computed again: by what dumped them."""

from __future__ import annotations

from ..mapping.pair import Plan
from .recomputation import Recomputer


def recomputer_of(plan: Plan) -> Recomputer:
    """Whoever computes operators of mine again, of a plan of dumps that are at hand.

    Only its own references are imported: a run without a failure needs none of them.
    """
    if plan.mine_kind == "ge":
        from .recompute_ge import GeRecomputer

        return GeRecomputer(plan.mine_root, plan.pairs)
    if plan.mine_kind == "fx":
        from .recompute_fx import FxRecomputer

        return FxRecomputer(plan.pairs)
    from .recompute_atb import AtbRecomputer

    return AtbRecomputer(plan.pairs)
