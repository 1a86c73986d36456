"""The policy `manual`: pairs that the user declared in `metadata.json` need no topology and no search."""

from __future__ import annotations

import re
from pathlib import PurePath

from ..dumps.base import Dump
from ..dumps.manual import ManualDump
from ..errors import MappingError
from ..vocabulary import selectable
from .pair import Operand, Pair, Plan

_UNFIT = re.compile(r"[^\w+\-.]", re.ASCII)


def manual_plan(golden: Dump, mine: Dump) -> Plan:
    """One pair per entry of the metadata, in the order of step and data id.

    Raises `MappingError` when `golden` is no manual dump or declares nothing.
    """
    if not isinstance(golden, ManualDump) or not golden.entries:
        raise MappingError(f"{golden.root}: the manual mapping has no pair; call dump_data with my_path")
    pairs = []
    for order, entry in enumerate(sorted(golden.entries, key=lambda entry: entry.step)):
        operator = _operator(entry.mine.path)
        pairs.append(
            Pair(
                id=f"data_{_fit(entry.data_id)}",
                step=entry.step,
                rank=None,
                level="op",
                layer="model",
                depth=0,
                order=order,
                policy="manual",
                reason="declared in metadata.json",
                golden=Operand(entry.data_id, entry.data_id, "", "output[0]", (entry.golden,)),
                mine=Operand(operator, operator, operator.partition("_")[2], "output[0]", (entry.mine,)),
            )
        )
    count = len(pairs)
    return Plan(
        str(golden.root), str(mine.root), golden.kind, mine.kind, mine.name, tuple(pairs), (), golden.notes,
        count, count, count, count,
    )  # fmt: skip


def _fit(data_id: str) -> str:
    """A data id as part of a test id; the old tool allowed characters that `-k` cannot select."""
    return selectable(data_id, _UNFIT)


def _operator(path: str) -> str:
    """The operator directory of an ATB tensor file (`3_SelfAttentionOperation`), else the file's stem."""
    file = PurePath(path)
    parts = file.parts
    if len(parts) > 2 and parts[-2] in ("after", "before"):
        return parts[-3]
    return file.stem
