"""Which way operators of mine are computed again: by what dumped them."""

from __future__ import annotations

from ..mapping.pair import Plan
from .recomputation import Recomputer
from .recompute_atb import AtbRecomputer
from .recompute_fx import FxRecomputer
from .recompute_ge import GeRecomputer


def recomputer_of(plan: Plan) -> Recomputer:
    """Whoever computes operators of mine again, of a plan of dumps that are at hand."""
    if plan.mine_kind == "ge":
        return GeRecomputer(plan.mine_root, plan.pairs)
    if plan.mine_kind == "fx":
        return FxRecomputer(plan.pairs)
    return AtbRecomputer(plan.pairs)
