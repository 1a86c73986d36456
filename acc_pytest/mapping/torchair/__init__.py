"""Mapping of dumps of compiled graphs: GE and FX against GE and FX, captured graphs against FX.

plan.py  which rank, graph and step meet        operators.py  which part of the graph an operator of GE is
graph.py what a GE graph says of its tensors    fx.py         the calls of FX
with_fx.py, with_ge.py, calls.py, captured.py   of every dumped tensor the pair, or the reason for none
"""

from __future__ import annotations

from ...dumps.base import Dump
from ..pair import Plan
from .captured import captured_plan, is_captured
from .plan import is_torchair, torchair_plan

__all__ = ["graph_plan", "is_torchair"]


def graph_plan(golden: Dump, mine: Dump, level: str) -> Plan | None:
    """The plan of two dumps of graphs; `None` where they are mapped as others are.

    Raises `MappingError` where one side names operators otherwise, and where nothing is in common.
    """
    if is_captured(golden, mine):
        return captured_plan(golden, mine, level)
    return torchair_plan(golden, mine, level) if is_torchair(golden, mine) else None
