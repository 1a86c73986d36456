"""Tensors of unlike modules that have no name in common: told by their values, and by what reads one tensor.

Of the same prompt two sound runs differ by rounding, and tensors of one shape that are not the same thing by
as much as they are large. So what is near each other in one layer is the same in all of them, also in those
where it is wrong. Modules that read one tensor, and are as wide together as a module of the other side, are
what that module packs.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..dumps.base import Slot
from ..dumps.calls import Calls, NodeSlot
from ..dumps.modules import ModuleDump
from ..errors import AccError
from ..tensors.ref import readable
from ..topology.tree import Node
from .dump_step import DumpStep
from .evidence import Evidence
from .layered_tree import LayeredTree
from .match import WHOLE, End, Match, ViewRule
from .reconcile import open_operands
from .roles.export import Export

_NEAR = 0.1
"""Largest relative distance of two tensors that are one; two that have nothing in common are at 1.4."""
_CLEAR = 2
"""How much farther everything else must be from a tensor that is not near."""
_SAMPLE = 1 << 16
"""Elements that are looked at, from the start."""
_MOST = 96
"""Tensors without a partner that are looked at on either side of a layer."""
_MOST_PIECES = 4
"""Modules that one packs."""
Move = Callable[[Match], Match]
"""Says of another layer of the same make what is said of the first one."""


@dataclass(slots=True, eq=False)
class _Values:
    """One side of a layer: its name, nodes without a partner, and those ends that have one."""

    name: str
    tree: LayeredTree
    nodes: Sequence[Node]
    taken: set[End]

    def candidates(self) -> list[Export]:
        """Outputs of floats, and inputs that nothing in these nodes handed out, in the order of time."""
        calls = _calls(self.tree.side)
        paths = {node.path for node in self.nodes}
        found = []
        for node in sorted(self.nodes, key=lambda node: node.order):
            if self.tree.tables.kind_of(node.op_type) == "passing":
                continue
            for slot in self.tree.slots(node):
                origin = calls.origins.get(NodeSlot(node.path, slot)) if calls is not None else None
                given = slot.kind == "input"
                copied = given and (not node.is_leaf or (origin is not None and origin.place.path in paths))
                free = (self.name, node, slot) not in self.taken
                if free and not copied and len(slot.index) == 1 and self._is_float(node, slot):
                    found.append(Export(node, slot, "value"))
        return found[:_MOST]

    def _is_float(self, node: Node, slot: Slot) -> bool:
        header = readable(self.tree.side.slots(node).get(slot))
        return header is not None and header.payload == "data" and header.dtype.kind == "float"

    def readers(self, exports: Sequence[Export]) -> list[list[Export]]:
        """Outputs of modules that read one tensor, and call no other."""
        calls = _calls(self.tree.side)
        by_tensor: dict[object, list[Export]] = defaultdict(list)
        for export in exports:
            place = NodeSlot(export.node.path, Slot("input", (0,)))
            if calls is None or export.node.children or export.slot != Slot("output", (0,)):
                continue
            origin = calls.origins.get(place)
            by_tensor[origin.place if origin is not None else place].append(export)
        return [group for group in by_tensor.values() if 1 < len(group) <= _MOST_PIECES]


def by_values(
    evidence: Evidence,
    sides: tuple[tuple[LayeredTree, Sequence[Node]], tuple[LayeredTree, Sequence[Node]]],
    taken: set[End],
    layers: Sequence[Move],
    completed: Move,
    outside: bool,
) -> Iterator[Match]:
    """Matches of what has no partner yet, as one of the `layers` tells; `completed` is `Meanings.completed`.
    What is `outside` of layers may be of the last tokens alone."""
    golden, mine = (_Values(name, *side, taken) for name, side in zip(("golden", "mine"), sides))
    telling = _Telling(evidence, layers, completed)
    goldens, mines = golden.candidates(), mine.candidates()
    met: set[Export] = set()
    for match in telling.packed(golden.readers(goldens), mines, "mine"):
        met |= {match.golden, match.mine}
        yield match
    goldens, mines = ([each for each in side if each not in met] for side in (goldens, mines))
    for match in telling.packed(mine.readers(mines), goldens, "golden"):
        met |= {match.golden, match.mine}
        yield match
    goldens, mines = ([each for each in side if each not in met] for side in (goldens, mines))
    yield from telling.alike(goldens, mines, outside)


@dataclass(slots=True, eq=False)
class _Telling:
    evidence: Evidence
    layers: Sequence[Move]
    completed: Move

    def alike(self, goldens: Sequence[Export], mines: Sequence[Export], outside: bool) -> Iterator[Match]:
        """The nearest first, each once. Of copies, leaves meet leaves, and the first of one the first. What
        is farther than rounding goes must be so much nearer than anything else."""
        found = []
        for (row, golden), (column, mine) in itertools.product(enumerate(goldens), enumerate(mines)):
            if not outside and not self._as_wide(golden, mine):
                continue
            match = Match(golden, mine, "values", "their values are the same")
            for tried in (match, *(_of_last_tokens(match) if outside else ())):
                distance = self._distance(tried)
                if distance <= 1:
                    unlike = bool(golden.node.children) != bool(mine.node.children)
                    kinds = golden.slot.kind != mine.slot.kind
                    found.append(((distance, unlike, kinds, row + column), tried))
                    break
        met: set[Export] = set()
        for (distance, *_), match in sorted(found, key=lambda each: each[0]):
            ends = {match.golden, match.mine}
            others = [
                far for (far, *_), other in found if far > distance and ends & {other.golden, other.mine}
            ]
            plain = distance <= _NEAR or distance * _CLEAR <= min([*others, 1.0])
            if plain and not ends & met:
                met |= ends
                yield match

    def packed(
        self, groups: Sequence[Sequence[Export]], packs: Sequence[Export], side: str
    ) -> Iterator[Match]:
        """Modules of one side that read one tensor, as pieces of a module of the other `side`."""
        for group, pack in itertools.product(groups, packs):
            best: tuple[float, list[Match]] = (_NEAR, [])
            for count in range(len(group), 1, -1):
                for pieces in itertools.permutations(group, count):
                    if not self._may_pack(pack, pieces, side):
                        continue
                    matches = [_piece(pieces, index, pack, side) for index in range(count)]
                    farthest = self._farthest(matches, best[0])
                    if farthest < best[0]:
                        best = farthest, matches
                if best[1]:
                    break
            yield from best[1]

    def _as_wide(self, golden: Export, mine: Export) -> bool:
        """Whether a row of one has as many elements as one of the other, on some of its ranks."""
        whole, other = self._width(golden, 0), self._width(mine, 1)
        ranks = [len(side.dump.ranks) for side in (self.evidence.golden, self.evidence.mine)]
        return any(whole * n == other for n in range(1, ranks[0] + 1)) or any(
            whole == other * n for n in range(1, ranks[1] + 1)
        )

    def _may_pack(self, pack: Export, pieces: Sequence[Export], side: str) -> bool:
        """Whether a module is no wider than its pieces, and on all of its ranks no narrower."""
        own = 1 if side == "mine" else 0
        sides = self.evidence.golden, self.evidence.mine
        width, whole = self._width(pack, own), sum(self._width(piece, 1 - own) for piece in pieces)
        most = len(sides[own].dump.ranks), len(sides[1 - own].dump.ranks)
        return bool(width) and width <= whole * most[1] and whole <= width * most[0]

    def _width(self, export: Export, side: int) -> float:
        """How many elements a rank has of each token."""
        of = (self.evidence.golden, self.evidence.mine)[side]
        header = readable(of.slots(export.node).get(export.slot))
        layout = self.evidence.tokens[side]
        return header.numel / math.prod(layout.shape if layout is not None else ()) if header else 0

    def _farthest(self, matches: Sequence[Match], bound: float) -> float:
        farthest = 0.0
        for match in matches:
            farthest = max(farthest, self._distance(match))
            if farthest >= bound:
                break
        return farthest

    def _distance(self, match: Match) -> float:
        """The least distance in any layer; infinite where the shapes do not fit."""
        least = float("inf")
        for move in self.layers:
            least = min(least, self._in_layer(self.completed(move(match))))
            if least <= _NEAR / 4:
                break
        return least

    def _in_layer(self, match: Match) -> float:
        if self.evidence.refusal(match):
            return float("inf")
        golden_ranks, mine_ranks, _ = self.evidence.rank_groups()[0]
        operands = self.evidence.operands(match, golden_ranks, mine_ranks)
        if operands is None:
            return float("inf")
        try:
            first = open_operands(*operands).comparisons[0]
            count = min(_SAMPLE, math.prod(first.golden.shape))
            golden, mine = (each.read(0, count).double() for each in (first.golden, first.mine))
        except AccError:
            return float("inf")
        norm, error = float(golden.norm()), float((golden - mine).norm())
        return error / norm if norm and error == error else float("inf")


def _of_last_tokens(match: Match) -> Iterator[Match]:
    if match.golden.slot.kind == match.mine.slot.kind == "output":
        last = ViewRule("logits")
        yield replace(match, golden_view=last, mine_view=last)


def _piece(pieces: Sequence[Export], index: int, pack: Export, side: str) -> Match:
    name = pieces[index].node.path.rpartition(".")[2]
    rule = ViewRule("part", index, tuple(pieces))
    reason = f"part {index + 1} of what packs modules that read one tensor, by its values"
    if side == "mine":
        return Match(pieces[index], pack, "values", reason, WHOLE, rule, tag=name)
    return Match(pack, pieces[index], "values", reason, rule, WHOLE, tag=name)


def _calls(side: DumpStep) -> Calls | None:
    return side.dump.calls(side.step) if isinstance(side.dump, ModuleDump) else None
