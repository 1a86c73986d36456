"""Which way operators of mine are computed again: by what dumped them."""

from __future__ import annotations

from ..mapping.pair import Plan
from .local import LocalErrors
from .local_fx import LocalFx
from .local_ge import LocalGe
from .recomputed import Recomputed


def recomputed_of(plan: Plan) -> Recomputed:
    """Whoever computes operators of mine again, of a plan of dumps that are at hand."""
    if plan.mine_kind == "ge":
        return LocalGe(plan.mine_root, plan.pairs)
    if plan.mine_kind == "fx":
        return LocalFx(plan.pairs)
    return LocalErrors(plan.pairs)
