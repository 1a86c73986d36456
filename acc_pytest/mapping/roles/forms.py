"""How a tensor is read whose form says that it is not as the other side has it: see `Export.form`."""

from __future__ import annotations

from dataclasses import replace

from ..match import WHOLE, Match, ViewRule
from .export import Export


def read_by_forms(match: Match, role: str) -> Match:
    """The match of two tensors of a role with the views that their forms ask for, and the reason in words."""
    forms = match.golden.form, match.mine.form
    if "turned" in forms:
        completed = _completed(match, f"turned by the position tables it is `{role}`")
        return replace(completed, policy="rope")
    if "split" in forms:
        return _completed(match, f"with the residual added it is `{role}`")
    return _by_form_of_mine(match, role)


def _by_form_of_mine(match: Match, role: str) -> Match:
    mine = match.mine
    if mine.form == "partial":
        return replace(match, reason=f"summed over ranks it is `{role}`", mine_view=ViewRule("sum"))
    if mine.form == "head_part":
        piece = mine.component or 0
        reason = f"part {piece + 1} of every head of `{role}`"
        view = ViewRule("heads", piece, mine.companions)
        return replace(match, policy="packed", reason=reason, golden_view=view)
    if mine.form == "paged":
        reason = f"the rows that were written are `{role}`"
        return replace(match, policy="cache", reason=reason, mine_view=written(mine))
    if mine.form in ("unbiased", "partial_unbiased"):
        kind = "bias" if mine.form == "unbiased" else "bias_sum"
        view = ViewRule(kind, parts=mine.companions)
        return replace(match, reason=f"with the bias it is `{role}`", mine_view=view)
    return match


def written(paged: Export) -> ViewRule:
    """The rows of a cache of blocks that this step wrote."""
    return ViewRule("slots", parts=paged.companions)


def _completed(match: Match, reason: str) -> Match:
    """Each side read with the other tensors of its own that its form needs."""
    views = _with_companions(match.golden), _with_companions(match.mine)
    return replace(match, reason=reason, golden_view=views[0], mine_view=views[1])


def _with_companions(export: Export) -> ViewRule:
    kinds = {"split": "residual", "turned": "turned"}
    return ViewRule(kinds[export.form], parts=export.companions) if export.form in kinds else WHOLE
