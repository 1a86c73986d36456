"""Operations of a report that become nodes: a graph has one level, a report nests them."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from ..atb_json import ReportedOperation

LEAVES = -1


class Event(enum.Enum):
    """An event of an operation on the way through a report, in execution order."""

    NODE = "becomes a node"
    ENTER = "begins; its operations follow"
    LEAVE = "is done"


def events(root: ReportedOperation, level: int) -> Iterator[tuple[Event, ReportedOperation]]:
    """Nodes are the operations at depth `level` below `root` and those that end above it.

    Level 0 is the root itself, `LEAVES` (-1) everything without operations inside. An operation whose
    list of operations is empty is one of these too, also the root.
    """
    if level == 0 or not root.children:
        yield Event.NODE, root
        return
    yield Event.ENTER, root
    for child in root.children:
        yield from events(child, level - 1 if level > 0 else level)
    yield Event.LEAVE, root
