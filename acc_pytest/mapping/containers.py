"""Modules that hand out the very tensor of a module in them, paired with those that do so for its partner.

Names say nothing here. Where `att` hands out the output of `att.wo`, and `self_attn` that of
`self_attn.o_proj`, the two containers match if the two inner modules do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ..dumps.calls import NodeSlot
from ..dumps.modules import ModuleDump
from ..topology.tree import Node
from .dump_step import DumpStep
from .match import Match
from .policies import FIRST_OUTPUT
from .roles.export import Export


def containers(matches: Iterable[Match], golden: DumpStep, mine: DumpStep) -> Iterator[Match]:
    """Matches of modules without a partner, innermost first: where both sides have as many around a
    tensor."""
    if not (isinstance(golden.dump, ModuleDump) and isinstance(mine.dump, ModuleDump)):
        return
    inner = [match for match in matches if match.mine.slot == FIRST_OUTPUT]
    around_golden = _around(golden, {match.golden.node for match in inner})
    around_mine = _around(mine, {match.mine.node for match in inner})
    for match in inner:
        outer = around_golden.pop(_place(match.golden), []), around_mine.pop(_place(match.mine), [])
        if len(outer[0]) == len(outer[1]):
            reason = f"hands out the tensor of {match.mine.node.name}"
            for ends in zip(*outer):
                golden_end, mine_end = (Export(node, FIRST_OUTPUT, "order") for node in ends)
                yield Match(golden_end, mine_end, "module", reason)


def _place(end: Export) -> NodeSlot:
    return NodeSlot(end.node.path, end.slot)


def _around(side: DumpStep, paired: set[Node]) -> dict[NodeSlot, list[Node]]:
    """The modules that are not `paired`, by the place of the tensor that they hand out."""
    assert isinstance(side.dump, ModuleDump)
    origins = side.dump.calls(side.step).origins
    outer: dict[NodeSlot, list[Node]] = defaultdict(list)
    for node in sorted(side.tree.walk(), key=lambda node: -node.depth):
        origin = origins.get(NodeSlot(node.path, FIRST_OUTPUT))
        if origin is not None and not origin.view and node.children and node not in paired:
            outer[origin.place].append(node)
    return outer
