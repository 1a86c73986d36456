"""Modules that hand out the very tensor of a module in them: paired with those that do the same for its partner.

Names say nothing here. Where `att` gives what `att.wo` gave, and `self_attn` what `self_attn.o_proj` gave, these
are the same tensor if those are.
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

POLICY = "module"


def containers(matches: Iterable[Match], golden: DumpStep, mine: DumpStep) -> Iterator[Match]:
    """Matches of modules without one, innermost first. There is one for a module only where both sides have as
    many of them around the tensor."""
    if not (isinstance(golden.dump, ModuleDump) and isinstance(mine.dump, ModuleDump)):
        return
    partners = {_place(match.mine): match for match in matches if match.mine.slot == FIRST_OUTPUT}
    taken = (
        {match.golden.node.path for match in partners.values()},
        {match.mine.node.path for match in partners.values()},
    )
    around = [_around(side, paths) for side, paths in zip((golden, mine), taken)]
    for place, match in partners.items():
        outer = around[0].get(_place(match.golden), ()), around[1].get(place, ())
        if len(outer[0]) == len(outer[1]):
            for ends in zip(*outer):
                reason = f"hands out the tensor of {match.mine.node.name}"
                yield Match(*(Export(node, FIRST_OUTPUT, "order") for node in ends), POLICY, reason)


def _place(end: Export) -> NodeSlot:
    return NodeSlot(end.node.path, end.slot)


def _around(side: DumpStep, taken: set[str]) -> dict[NodeSlot, list[Node]]:
    """The modules that are not taken, by the place of the tensor that they hand out."""
    assert isinstance(side.dump, ModuleDump)
    origins = side.dump.calls(side.step).origins
    outer: dict[NodeSlot, list[Node]] = defaultdict(list)
    for node in sorted(side.tree.walk(), key=lambda node: -node.depth):
        origin = origins.get(NodeSlot(node.path, FIRST_OUTPUT))
        if origin is not None and not origin.view and node.children and node.path not in taken:
            outer[origin.place].append(node)
    return outer
