"""The operands of tensors inside of experts: whose rows they hold, as the routers of both sides chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..tensors.ref import TensorRef
from .dump_step import DumpStep
from .engine_views import ExpertPick, Selected, TokenLayout
from .match import ExpertRule
from .pair import Operand
from .roles.export import Export

_ALIKE = 0.98
"""Share of tokens whose choice must be the largest of their logits; equal ones may swap."""


def of_experts(
    golden: Operand,
    mine: Operand,
    rule: ExpertRule,
    sides: tuple[DumpStep, DumpStep],
    tokens: tuple[TokenLayout | None, TokenLayout | None],
) -> tuple[Operand, Operand] | None:
    """The operands with the rows that they hold; `None` where the routers do not tell."""
    chosen = [_first(side, export) for side, export in zip(sides, rule.choices)]
    if chosen[0] is None or chosen[1] is None:
        return None
    logits = [export.form == "largest" for export in rule.choices]
    count = _count((golden, mine), (chosen[0], chosen[1]), rule, logits)
    if not count or not _may_be_largest(rule, sides, chosen, logits):
        return None
    selected = [Selected(ref, flag) for ref, flag in zip(chosen, logits) if ref is not None]
    made = []
    for number, (side, operand) in enumerate(zip(sides, (golden, mine))):
        indices = tuple(ref for export in rule.indices[number] if (ref := _first(side, export)) is not None)
        experts = rule.experts[number], rule.experts[1 - number]
        own = ("golden", "mine")[number]
        pick = ExpertPick(*tokens, own, selected[0], selected[1], count, *experts, indices)
        made.append(replace(operand, experts=pick))
    return made[0], made[1]


def _first(side: DumpStep, export: Export) -> TensorRef | None:
    refs = side.refs(export, side.dump.ranks[:1])
    return refs[0] if refs else None


def _count(
    operands: tuple[Operand, Operand],
    chosen: tuple[TensorRef, TensorRef],
    rule: ExpertRule,
    logits: Sequence[bool],
) -> int:
    """How many experts a token has, by the choices or by the rows of all experts; 0 where neither tells."""
    shapes = [ref.header().shape for ref in chosen]
    told = [shape[-1] for shape, flag in zip(shapes, logits) if not flag and shape]
    for shape, operand, expert in zip(shapes, operands, rule.experts):
        rows = operand.refs[0].header().shape[:1]
        tokens = math.prod(shape[:-1])
        if expert is None and rows and shape and tokens:
            told.append(rows[0] // tokens)
    return told[0] if told else 0


def _may_be_largest(
    rule: ExpertRule,
    sides: tuple[DumpStep, DumpStep],
    chosen: Sequence[TensorRef | None],
    logits: Sequence[bool],
) -> bool:
    """Whether the largest logits are the choice, by the side that has both; with nothing else it is so."""
    for number, router in enumerate(rule.routers):
        ids, values = chosen[number], None if router is None else _first(sides[number], router)
        if logits[1 - number] and not logits[number]:
            return ids is not None and values is not None and _chooses_largest(ids, values)
    return True


def _chooses_largest(chosen: TensorRef, logits: TensorRef) -> bool:
    ids, values = chosen.open().long(), logits.open().float()
    ids, values = ids.reshape(-1, ids.shape[-1]), values.reshape(-1, values.shape[-1])
    if len(ids) != len(values) or ids.shape[1] > values.shape[1]:
        return False
    largest = values.topk(ids.shape[1], -1).indices.sort(-1).values
    return float((largest == ids.sort(-1).values).all(-1).float().mean()) >= _ALIKE
