"""Tensors of unlike modules that have no name in common, matched by their values and their readers.

Two sound runs of one prompt differ by rounding; unrelated tensors of one shape differ by as much as they are
large. So tensors that are near each other in one layer are the same in all layers, also in those where one is
wrong. Modules that read one tensor, and are as wide together as a module of the other side, are the pieces
that this module packs.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from ..base.imports import torch
from ..base.reason import Reason
from ..dumps.base import NodeSlot, Slot
from ..dumps.modules import Calls
from ..errors import AccError
from ..tensors.ref import readable
from ..topology.tree import Node
from .dump_step import DumpStep, LayeredTree
from .evidence import BY_FLOW, Evidence
from .match import WHOLE, End, Export, Match, SharedWeight, ViewRule
from .policies import of_weights
from .reconcile import open_operands
from .roles.join import read_by_forms

_NEAR = 0.1
"""Largest relative distance of two tensors that are the same; unrelated ones are at 1.4."""
_SAMPLE = 1 << 16
"""Elements that are read, from the start."""
_LENGTHS, _KEPT_LENGTH = 8, 0.02
"""Rows whose lengths are held together at least, and the spread of their ratios at most, which is rounding:
those of unrelated tensors spread by a tenth and more."""
_CANDIDATES = 96
"""Tensors without a partner that are read on either side of a layer."""
_PIECES = 4
"""Modules that one module packs at most."""
_PACKED_BY = {"values": "by its values", BY_FLOW: "in the order of their calls"}
_FIRST_INPUT, _FIRST_OUTPUT = Slot("input", (0,)), Slot("output", (0,))
Fits = Callable[[Match], bool]
"""Whether the shapes of a match fit."""
Move = Callable[[Match], Match]
"""Moves a match of the first layer to another layer of equal structure."""


@dataclass(slots=True, eq=False)
class _Values:
    """A side of a layer: its name, its nodes without a partner, and the ends that have one."""

    name: str
    tree: LayeredTree
    nodes: Sequence[Node]
    paired: set[End]

    def candidates(self) -> list[Export]:
        """Outputs of floats, and inputs that nothing in these nodes handed out, in the order of time."""
        calls = _calls(self.tree.side)
        paths = {node.path for node in self.nodes}
        exports = []
        for node in sorted(self.nodes, key=lambda node: node.order):
            if self.tree.tables.kind_of(node.op_type) == "passing":
                continue
            for slot in self.tree.slots(node):
                origin = calls.origins.get(NodeSlot(node.path, slot)) if calls is not None else None
                inner = origin is not None and origin.place.path in paths
                copied = slot.kind == "input" and (not node.is_leaf or inner)
                free = (self.name, node, slot) not in self.paired
                if free and not copied and len(slot.index) == 1 and self._is_float(node, slot):
                    exports.append(Export(node, slot, "value"))
        return exports[:_CANDIDATES]

    def _is_float(self, node: Node, slot: Slot) -> bool:
        header = readable(self.tree.side.slots(node).get(slot))
        return header is not None and header.payload == "data" and header.dtype.kind == "float"

    def readers(self, exports: Sequence[Export]) -> list[list[Export]]:
        """Outputs of modules that read one tensor, and call no other."""
        calls = _calls(self.tree.side)
        by_tensor: dict[object, list[Export]] = defaultdict(list)
        for export in exports:
            place = NodeSlot(export.node.path, _FIRST_INPUT)
            if calls is None or export.node.children or export.slot != _FIRST_OUTPUT:
                continue
            origin = calls.origins.get(place)
            by_tensor[origin.place if origin is not None else place].append(export)
        return [group for group in by_tensor.values() if 1 < len(group) <= _PIECES]


def by_values(
    evidence: Evidence,
    sides: tuple[tuple[LayeredTree, Sequence[Node]], tuple[LayeredTree, Sequence[Node]]],
    paired: set[End],
    layers: Sequence[Move],
    completed: Move,
    outside: bool,
    unturned: Sequence[Export],
) -> Iterator[Match]:
    """Matches of tensors without a partner, by their values in the `layers`; `completed` is
    `Meanings.completed`. A tensor `outside` of layers may hold the last tokens alone. `unturned` are golden's
    queries and keys without a partner that position tables have yet to turn."""
    golden, mine = (_Values(name, *side, paired) for name, side in zip(("golden", "mine"), sides))
    matcher = _ValueMatcher(evidence, layers, completed)
    goldens, mines = golden.candidates(), mine.candidates()
    packed: set[Export] = set()
    for match in matcher.packed(golden.readers(goldens), mines, "mine"):
        packed |= {match.golden, match.mine}
        yield match
    goldens, mines = ([export for export in side if export not in packed] for side in (goldens, mines))
    for match in matcher.packed(mine.readers(mines), goldens, "golden"):
        packed |= {match.golden, match.mine}
        yield match
    goldens, mines = ([export for export in side if export not in packed] for side in (goldens, mines))
    paired_mines: set[Export] = set()
    for match in matcher.alike(goldens, mines, outside):
        paired_mines.add(match.mine)
        yield match
    yield from matcher.turned(unturned, [export for export in mines if export not in paired_mines])


@dataclass(slots=True, eq=False)
class _ValueMatcher:
    evidence: Evidence
    layers: Sequence[Move]
    completed: Move

    def alike(self, goldens: Sequence[Export], mines: Sequence[Export], outside: bool) -> Iterator[Match]:
        """Matches of the nearest tensors first, each tensor once. Of copies, leaves meet leaves, in their
        order. Tensors that are farther apart than rounding explains are not the same: in a network with large
        channels, the stream before and after a norm are as near as a fault would leave them."""
        ranked = []
        for (row, golden), (column, mine) in itertools.product(enumerate(goldens), enumerate(mines)):
            if not outside and not self._as_wide(golden, mine):
                continue
            match = Match(golden, mine, "values", "their values are the same")
            for candidate in (match, *(_of_last_tokens(match) if outside else ())):
                distance = self._distance(candidate)
                if distance <= _NEAR:
                    unlike = bool(golden.node.children) != bool(mine.node.children)
                    kinds = golden.slot.kind != mine.slot.kind
                    ranked.append(((distance, unlike, kinds, row + column), candidate))
                    break
        paired: set[Export] = set()
        partners: tuple[dict[NodeSlot, NodeSlot], dict[NodeSlot, NodeSlot]] = {}, {}
        for _, match in sorted(ranked, key=itemgetter(0)):
            ends = {match.golden, match.mine}
            first = _tensor(self.evidence.golden, match.golden)
            second = _tensor(self.evidence.mine, match.mine)
            # A copy of a tensor is that tensor: it has the same partner, or none.
            agree = partners[0].get(first, second) == second and partners[1].get(second, first) == first
            if not ends & paired and agree:
                partners[0][first], partners[1][second] = second, first
                paired |= ends
                yield match

    def turned(self, goldens: Sequence[Export], mines: Sequence[Export]) -> Iterator[Match]:
        """Matches of what position tables have yet to turn with what mine turned, in whatever way: turning
        keeps the lengths of rows, but for a factor."""
        ranked = []
        for golden, mine in itertools.product(goldens, mines):
            plain = Match(replace(golden, form="plain"), mine, "rope", "")
            if mine.slot.kind == "input" or not self._as_wide(golden, mine) or self._distance(plain) <= _NEAR:
                continue
            match = read_by_forms(replace(plain, golden=golden), golden.role)
            spread = min(self._spread_of_lengths(self.completed(move(match))) for move in self.layers)
            if spread <= _KEPT_LENGTH:
                ranked.append((spread, match))
        paired: set[Export] = set()
        for _, match in sorted(ranked, key=itemgetter(0)):
            if not {match.golden, match.mine} & paired:
                paired |= {match.golden, match.mine}
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
                    matches = [_piece(pieces, index, pack, side, "values") for index in range(count)]
                    farthest = self._farthest(matches, best[0])
                    if farthest < best[0]:
                        best = farthest, matches
                if best[1]:
                    break
            yield from best[1]

    def _as_wide(self, golden: Export, mine: Export) -> bool:
        """Whether rows of both have as many elements, on some ranks of either."""
        golden_width, mine_width = self._width(golden, 0), self._width(mine, 1)
        ranks = [len(side.dump.ranks) for side in (self.evidence.golden, self.evidence.mine)]
        return any(golden_width * n == mine_width for n in range(1, ranks[0] + 1)) or any(
            golden_width == mine_width * n for n in range(1, ranks[1] + 1)
        )

    def _may_pack(self, pack: Export, pieces: Sequence[Export], side: str) -> bool:
        """Whether a module is no wider than its pieces, and on all of its ranks no narrower."""
        pack_side = 1 if side == "mine" else 0
        sides = self.evidence.golden, self.evidence.mine
        width = self._width(pack, pack_side)
        pieces_width = sum(self._width(piece, 1 - pack_side) for piece in pieces)
        ranks, piece_ranks = len(sides[pack_side].dump.ranks), len(sides[1 - pack_side].dump.ranks)
        return bool(width) and width <= pieces_width * piece_ranks and pieces_width <= width * ranks

    def _width(self, export: Export, side: int) -> float:
        """Number of elements that a rank has of each token."""
        dump_step = (self.evidence.golden, self.evidence.mine)[side]
        header = readable(dump_step.slots(export.node).get(export.slot))
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
        smallest = float("inf")
        for move in self.layers:
            smallest = min(smallest, self._in_layer(self.completed(move(match))))
            if smallest <= _NEAR / 4:
                break
        return smallest

    def _in_layer(self, match: Match) -> float:
        samples = self._samples(match)
        if samples is None:
            return float("inf")
        norm, error = float(samples[0].norm()), float((samples[0] - samples[1]).norm())
        return error / norm if norm and error == error else float("inf")

    def _spread_of_lengths(self, match: Match) -> float:
        """The relative spread of the ratios of the lengths of rows; infinite for less than `_LENGTHS`."""
        samples = self._samples(match)
        if samples is None or len(samples[0]) < _LENGTHS:
            return float("inf")
        golden, mine = (sample.norm(dim=-1) for sample in samples)
        ratios = mine / golden
        spread = float(ratios.std() / ratios.mean())
        return spread if spread == spread else float("inf")

    def _samples(self, match: Match) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The first rows of both tensors in float64; `None` where they cannot be held together."""
        if self.evidence.refusal(match):
            return None
        golden_ranks, mine_ranks, _ = self.evidence.rank_groups()[0]
        operands = self.evidence.operands(match, golden_ranks, mine_ranks)
        if operands is None:
            return None
        try:
            first = open_operands(*operands).comparisons[0]
            width = (first.golden.shape[-1] if first.golden.shape else 1) or 1
            count = min(max(_SAMPLE // width, 1) * width, math.prod(first.golden.shape))
            golden, mine = (s.read(0, count).double() for s in (first.golden, first.mine))
            return golden.reshape(-1, width), mine.reshape(-1, width)
        except AccError:
            return None


_STREAM = ("whole", "row_parallel", "residual")
"""Kinds of views of a match whose two slots hold one tensor, or what completes it."""
_MODEL_END = (*_STREAM, "last", "logits")
"""The same, and those of what a model hands out, of which a side may have the last tokens alone."""


def by_flow(
    sides: tuple[LayeredTree, LayeredTree],
    matches: Sequence[Match],
    weights: Sequence[SharedWeight],
    places: Mapping[Node, int],
    fits: Fits,
) -> Iterator[Match]:
    """Matches of modules without a partner, by the `weights` that they share, or by the flow of data: they
    made the results of modules that are partners, or they alone read one tensor and give as much, in a layer.

    Values tell nothing behind a fault, the flow of data does: what the first of them gave is the same tensor
    for the next ones. What is packed meets in the order of calls. `places` are the numbers of the layer pairs
    that nodes live in.
    """
    golden, mine = (_Readers(name, tree, matches) for name, tree in zip(("golden", "mine"), sides))
    partners: dict[NodeSlot, dict[NodeSlot, None]] = defaultdict(dict)
    results: dict[NodeSlot, Match] = {}
    for match in matches:
        kinds = {match.golden_view.kind, match.mine_view.kind}
        if kinds <= set(_STREAM):
            partners[mine.tensor(match.mine)][golden.tensor(match.golden)] = None
        if kinds <= set(_MODEL_END):
            results.setdefault(mine.tensor(match.mine), match)

    def readers(side: _Readers, tensors: Iterable[NodeSlot], place: int | None) -> list[Export]:
        exports = (export for tensor in tensors for export in side.by_tensor[tensor])
        return [e for e in exports if e.node not in side.matched and places.get(e.node) == place]

    shared: dict[str, list[SharedWeight]] = defaultdict(list)
    for weight in weights:
        shared[weight[1]].append(weight)
    for export in mine.exports:
        if export.node in mine.matched:
            continue
        by_weight = [
            shares for w in shared[export.node.path] if (shares := of_weights(*sides, w)) is not None
        ]
        result, read, place = results.get(mine.tensor(export)), mine.reads(export), places.get(export.node)
        if by_weight:
            groups = iter([by_weight])
        elif result is not None and (maker := golden.makers.get(golden.tensor(result.golden))):
            match = replace(result, golden=maker, mine=export, policy=BY_FLOW, reason="made what is paired")
            groups = iter([[match]])
        else:
            pieces, packs = readers(golden, partners[read], place), readers(mine, [read], place)
            groups = _groups_of_readers(pieces, packs)
        for match in next((group for group in groups if group and all(map(fits, group))), ()):
            golden.matched.add(match.golden.node)
            mine.matched.add(match.mine.node)
            if match.golden_view == match.mine_view == WHOLE:
                partners[mine.tensor(match.mine)][golden.tensor(match.golden)] = None
            yield match
            handed = replace(match, golden=_input_of(match.golden), mine=_input_of(match.mine))
            if by_weight and match.golden_view == match.mine_view and not partners[read] and fits(handed):
                partners[read][golden.tensor(handed.golden)] = None
                yield handed


def _tensor(side: DumpStep, export: Export) -> NodeSlot:
    """The place where the tensor of an export was seen first."""
    place, calls = NodeSlot(export.node.path, export.slot), _calls(side)
    origin = calls.origins.get(place) if calls is not None else None
    return origin.place if origin is not None else place


def _input_of(export: Export) -> Export:
    return replace(export, slot=_FIRST_INPUT)


def _groups_of_readers(golden: Sequence[Export], mine: Sequence[Export]) -> Iterator[list[Match]]:
    """Ways in which modules that read one tensor may belong together: one by one, or as pieces of one."""
    if len(golden) == len(mine) == 1:
        match = Match(golden[0], mine[0], BY_FLOW, "reads what its partner reads")
        yield from ([view] for view in (match, *_of_last_tokens(match)))
    elif len(mine) == 1 < len(golden) <= _PIECES:
        yield [_piece(golden, index, mine[0], "mine", BY_FLOW) for index in range(len(golden))]
    elif len(golden) == 1 < len(mine) <= _PIECES:
        yield [_piece(mine, index, golden[0], "golden", BY_FLOW) for index in range(len(mine))]


class _Readers:
    """The modules of a side that call no other, by the first tensor that each reads."""

    def __init__(self, name: str, tree: LayeredTree, matches: Sequence[Match]) -> None:
        self._side = tree.side
        ends = {end for match in matches for end in match.ends}
        self.matched = {node for side, node, slot in ends if side == name and slot.kind == "output"}
        nodes = sorted(tree.side.tree.walk(), key=lambda node: node.order)
        self.exports = [
            Export(node, _FIRST_OUTPUT, "value")
            for node in nodes
            if not node.children and tree.has(node, _FIRST_OUTPUT)
        ]
        self.makers = {self.tensor(e): e for e in self.exports if e.node not in self.matched}
        self.by_tensor: dict[NodeSlot, list[Export]] = defaultdict(list)
        for export in self.exports:
            self.by_tensor[self.reads(export)].append(export)

    def reads(self, export: Export) -> NodeSlot:
        """The tensor that a module is handed first."""
        return self.tensor(Export(export.node, _FIRST_INPUT, "value"))

    def tensor(self, export: Export) -> NodeSlot:
        """The place where the tensor of an export was seen first."""
        return _tensor(self._side, export)


def _of_last_tokens(match: Match) -> Iterator[Match]:
    if match.golden.slot.kind == match.mine.slot.kind == "output":
        last = ViewRule("logits")
        yield replace(match, golden_view=last, mine_view=last)


def _piece(pieces: Sequence[Export], index: int, pack: Export, side: str, policy: str) -> Match:
    name = pieces[index].node.path.rpartition(".")[2]
    rule = ViewRule("part", index, tuple(pieces))
    reason = Reason("part {} of what packs modules that read one tensor, {}", index + 1, _PACKED_BY[policy])
    if side == "mine":
        return Match(pieces[index], pack, policy, reason, WHOLE, rule, tag=name)
    return Match(pack, pieces[index], policy, reason, rule, WHOLE, tag=name)


def _calls(side: DumpStep) -> Calls | None:
    return side.dump.calls(side.step) if side.dump.has_modules else None
