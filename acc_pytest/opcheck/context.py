"""The view of a single operator for threshold rules, markers, `-m` and standards. Needs no torch."""

from __future__ import annotations

from ..judging.threshold import JudgeContext
from .case import Case
from .entry import Entry

ROOT = "opcheck"
"""The name that all ids begin with."""
POLICY = "opcheck"
"""The text that stands where comparisons name the rule that mapped a pair."""


def context_of(case: Case | Entry) -> JudgeContext:
    """The texts that the `match` of a rule is tried on: class, full name and ids, outermost id, step."""
    return JudgeContext(
        id=case.full_name,
        mine_op_type=case.name,
        mine_path=case.ids,
        mine_name=case.full_name,
        level="op",
        layer=layer_of(case.ids),
        step=case.step,
        policy=POLICY,
    )


def layer_of(ids: str) -> str:
    """The id of the top-level operation that an operator lies in: its layer, in most models."""
    return ids.partition("_")[0] or "model"
