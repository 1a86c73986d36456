"""Policies that look at types, names and order: for user maps and for what the roles leave over.

Each takes a `Scope` (one layer of each side, or all that is outside of layers) and yields matches of
slots that are still free. The order in which they run is in `trees.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeVar

from ..base.reason import Reason, joined
from ..dumps.base import NodeSlot, Slot
from ..errors import AccError
from ..tensors.ref import readable
from ..topology.tree import SAVED, Node, Tree
from .dump_step import DumpStep, LayeredTree
from .evidence import IN_SEQUENCE, Evidence
from .match import WHOLE, End, Export, Match, SharedWeight, ViewRule
from .pair import Pair
from .tables import Endpoint, FragmentRule, Tables, TypeRule

FIRST_OUTPUT = Slot("output", (0,))
_ALIGNED_KINDS = ("linear", "norm", "activation", "embedding", "attention")


@dataclass(slots=True, eq=False)
class Scope:
    """Nodes of both sides that may be paired with each other, in execution order.

    `fits` checks a match by headers; `has` says whether a slot was dumped (golden, mine);
    `bias_of` gives the add that completes a linear without bias, so that it stands for both.
    `claimed` collects the ends that have a plain match.
    """

    golden: list[Node]
    mine: list[Node]
    tables: Tables
    fits: Callable[[Match], bool]
    golden_has: Callable[[Node, Slot], bool]
    mine_has: Callable[[Node, Slot], bool]
    bias_of: Callable[[Node], Node]
    layered: bool
    claimed: set[End] = field(default_factory=set)

    def free(self, side: str, node: Node, slot: Slot) -> bool:
        """True for a dumped slot that has no partner yet."""
        has = self.golden_has if side == "golden" else self.mine_has
        return has(node, slot) and (side, node, slot) not in self.claimed


def by_types(scope: Scope, rules: Sequence[TypeRule], policy: str) -> Iterator[Match]:
    """Nodes of a type with nodes of another type, in order; pairs whose shapes disagree are dropped."""
    for rule in rules:
        for endpoint in rule.golden:
            match = _typed(rule, endpoint, policy)
            mine = [node for node in scope.mine if has_type(node, rule.mine, rule.exact)]
            mine = [node for node in map(scope.bias_of, mine) if scope.free("mine", node, slot_of(rule.mine))]
            golden = [node for node in scope.golden if has_type(node, endpoint, rule.exact)]
            golden = [node for node in golden if scope.free("golden", node, slot_of(endpoint))]
            yield from in_order(golden, mine, match, scope.fits)


def _typed(rule: TypeRule, endpoint: Endpoint, policy: str) -> Callable[[Node, Node], Match]:
    """A function that matches a golden and a mine node by one entry of a rule."""
    reason = Reason("type {} is {}", rule.mine.op_type, endpoint.op_type)

    def match(golden_node: Node, mine_node: Node) -> Match:
        golden, mine = (
            Export(golden_node, slot_of(endpoint), "type"),
            Export(mine_node, slot_of(rule.mine), "type"),
        )
        return Match(golden, mine, policy, reason)

    return match


def in_order(
    golden: list[Node],
    mine: list[Node],
    match: Callable[[Node, Node], Match | None],
    fits: Callable[[Match], bool],
) -> Iterator[Match]:
    """The matches of two lists of nodes, both in order, that fit; `match` gives `None` for what is none.

    Equal numbers are zipped; unequal ones are aligned, so that one more operator on one side does not shift
    the rest.
    """

    def fitting(golden_node: Node, mine_node: Node) -> Match | None:
        candidate = match(golden_node, mine_node)
        return candidate if candidate is not None and fits(candidate) else None

    if len(golden) == len(mine):
        pairs = list(zip(golden, mine))
    else:
        pairs = align(golden, mine, lambda g, m: fitting(g, m) is not None)
    yield from filter(None, (fitting(*pair) for pair in pairs))


def has_type(node: Node, endpoint: Endpoint, exact: bool) -> bool:
    """True for a node of the type; types that are not `exact` are searched as substrings."""
    if exact:
        return node.is_leaf and node.op_type == endpoint.op_type
    return endpoint.op_type in node.op_type


def slot_of(endpoint: Endpoint) -> Slot:
    """The tensor that an entry means."""
    return endpoint.slot or FIRST_OUTPUT


def special(scope: Scope) -> Iterator[Match]:
    """The old tool's whole-tree names: word embedding, top-level norm, `LmHead`, Bloom's norms."""
    if scope.layered:
        return
    for rule in scope.tables.special:
        mine = [node for node in _free_nodes(scope, "mine") if _name_test(node.name, rule.mine)]
        golden = [
            node
            for node in _free_nodes(scope, "golden")
            if _name_test(node.name, rule.golden) and not _name_test(node.name, rule.not_golden)
        ]
        yield from _in_order(scope, golden, mine, "special", "special name")


def _name_test(name: str, tests: Iterable[str]) -> bool:
    lowered = name.lower()
    return any(re.search(test[1:], lowered) if test.startswith("~") else test in lowered for test in tests)


def modules(scope: Scope) -> Iterator[Match]:
    """Direct children of a layer by name fragment: `Attention` is `self_attn`, `Mlp` is `mlp`."""
    if not scope.layered:
        return
    for rule in scope.tables.module:
        mine = [n for n in _children(scope, "mine") if rule.mine in n.path.split("/")[-1]]
        golden = [n for n in _children(scope, "golden") if any(t in _last(n) for t in rule.golden)]
        yield from _in_order(scope, golden, mine, "module", "module name")


def _children(scope: Scope, side: str) -> list[Node]:
    nodes = scope.golden if side == "golden" else scope.mine
    top = min((node.depth for node in nodes), default=0)
    return [node for node in _free_nodes(scope, side) if node.depth == top + 1]


def _last(node: Node) -> str:
    return node.path.rpartition(".")[2]


def fragments(scope: Scope) -> Iterator[Match]:
    """Leaves of a layer by fragments of their paths (the old tool's table), each used once."""
    if not scope.layered:
        return
    for rule in scope.tables.fragments:
        mine_slot = slot_of(Endpoint.parse(f"x_{rule.mine_slot}") or Endpoint("x"))
        golden_slot = slot_of(Endpoint.parse(f"x_{rule.golden_slot}") or Endpoint("x"))
        for mine in scope.mine:
            if not (_has_fragments(mine, rule) and scope.free("mine", mine, mine_slot)):
                continue
            for golden in scope.golden:
                if rule.golden in golden.path.lower() and scope.free("golden", golden, golden_slot):
                    match = Match(
                        Export(golden, golden_slot, "path"),
                        Export(mine, mine_slot, "path"),
                        "fragments",
                        Reason("path has {}", joined(" and ", rule.mine)),
                    )
                    if scope.fits(match):
                        yield match
                        break


def _has_fragments(mine: Node, rule: FragmentRule) -> bool:
    """Whether it is a leaf whose path has all fragments of a rule, and not the one that excludes it."""
    path = mine.path.lower()
    excluded = bool(rule.unless) and rule.unless in path
    return mine.is_leaf and not excluded and all(fragment in path for fragment in rule.mine)


def sequence(scope: Scope) -> Iterator[Match]:
    """Computing leaves without a partner, aligned in execution order by kind and shape."""
    golden = [node for node in _free_nodes(scope, "golden") if _aligned(scope, node)]
    mine = [node for node in _free_nodes(scope, "mine") if _aligned(scope, node)]

    def same(golden_node: Node, mine_node: Node) -> bool:
        kinds = {scope.tables.kind_of(node.op_type, node.param) for node in (golden_node, mine_node)}
        return len(kinds) == 1 and scope.fits(_first_outputs(golden_node, mine_node, IN_SEQUENCE, ""))

    for golden_node, mine_node in align(golden, mine, same):
        kind = scope.tables.kind_of(golden_node.op_type, golden_node.param)
        yield _first_outputs(
            golden_node,
            mine_node,
            IN_SEQUENCE,
            Reason("same place in the order of {} operators, same shape", kind),
        )


def _aligned(scope: Scope, node: Node) -> bool:
    return node.is_leaf and scope.tables.kind_of(node.op_type, node.param) in _ALIGNED_KINDS


def _in_order(
    scope: Scope, golden: list[Node], mine: list[Node], policy: str, reason: str
) -> Iterator[Match]:
    for golden_node, mine_node in align(
        golden, mine, lambda g, m: scope.fits(_first_outputs(g, m, policy, reason))
    ):
        yield _first_outputs(golden_node, mine_node, policy, reason)


def _first_outputs(golden_node: Node, mine_node: Node, policy: str, reason: str) -> Match:
    return Match(
        Export(golden_node, FIRST_OUTPUT, "order"), Export(mine_node, FIRST_OUTPUT, "order"), policy, reason
    )


def _free_nodes(scope: Scope, side: str) -> list[Node]:
    nodes = scope.golden if side == "golden" else scope.mine
    return [node for node in nodes if scope.free(side, node, FIRST_OUTPUT)]


# Align two sequences one-to-one and in order: the longest common subsequence under a predicate.


Golden = TypeVar("Golden")
Mine = TypeVar("Mine")

PIECE = 512
"""Elements of one side of a table: a layer of a model has some tens of operators, a flat graph hundreds."""


def align(
    golden: Sequence[Golden], mine: Sequence[Mine], matches: Callable[[Golden, Mine], bool]
) -> list[tuple[Golden, Mine]]:
    """The most pairs that keep both orders, every element used once.

    The common start is paired at once; of several answers of equal length the one that pairs the earliest
    elements is chosen, so the result is deterministic. The remainder is a table of `len(golden) * len(mine)`
    cells. Sequences for which that is too large are aligned piece by piece: the first half of the pairs of a
    piece counts, and the next piece begins behind it.
    """
    pairs: list[tuple[Golden, Mine]] = []
    i = j = 0
    while i < len(golden) and j < len(mine):
        if matches(golden[i], mine[j]):
            pairs.append((golden[i], mine[j]))
            i, j = i + 1, j + 1
            continue
        fits = (len(golden) - i) * (len(mine) - j) <= PIECE * PIECE
        places = _table(
            *((golden[i:], mine[j:]) if fits else (golden[i : i + PIECE], mine[j : j + PIECE])), matches
        )
        if fits:
            return [*pairs, *((golden[i + a], mine[j + b]) for a, b in places)]
        counted = places[: (len(places) + 1) // 2]
        pairs += [(golden[i + a], mine[j + b]) for a, b in counted]
        # A piece without a pair is skipped.
        a, b = counted[-1] if counted else (PIECE - 1, PIECE - 1)
        i, j = i + a + 1, j + b + 1
    return pairs


def _table(
    golden: Sequence[Golden], mine: Sequence[Mine], matches: Callable[[Golden, Mine], bool]
) -> list[tuple[int, int]]:
    """Places of the longest common subsequence, by dynamic programming; `matches` is asked once a cell."""
    rows, columns = len(golden), len(mine)
    equal = [[matches(golden_element, mine_element) for mine_element in mine] for golden_element in golden]
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            joined = best[i + 1][j + 1] + 1 if equal[i][j] else 0
            best[i][j] = max(joined, best[i + 1][j], best[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if equal[i][j] and best[i][j] == best[i + 1][j + 1] + 1:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


# Tensors that a program saved by name before ranks added them up: summands of the output of their module.
#
# A serving engine saves the row-parallel product of each rank beside its output, and says that it is partial.
# Its sum over ranks is the output of the module on one rank, so it meets the partner of that output. Where
# the sum is right and the output is not, the ranks were not added up, or not rightly.


SUMMANDS, COPIES = "partial", "copy"
BESIDE = frozenset({SUMMANDS, COPIES})
"""Policies of tensors that a program saved beside a result, whose errors they have."""


def before_reduction(
    matches: Iterable[Match], evidence: Evidence, fits: Callable[[Match], bool]
) -> Iterator[Match]:
    """Matches of the summands of mine with outputs of golden's modules, for outputs that `matches` join."""
    ranks = evidence.rank_groups()[0][1]
    joined: dict[Node, Match] = {}
    paired: set[Node] = set()
    for match in matches:
        paired.add(match.mine.node)
        if match.mine.slot == FIRST_OUTPUT and match.mine_view.kind in ("whole", "row_parallel"):
            joined.setdefault(match.mine.node, match)
    for module, match in joined.items():
        for node in module.children if all(child.op_type == SAVED for child in module.children) else []:
            mine = Export(node, Slot("output"), match.mine.role)
            if node in paired or not evidence.mine.partial(mine, ranks):
                continue
            reason = Reason("summands of {} on each rank", module.name)
            candidate = Match(match.golden, mine, SUMMANDS, reason, mine_view=ViewRule("sum"))
            if fits(candidate):
                yield candidate


_SAMPLED = 64
"""Elements by which a copy is looked for."""


def copies(matches: Sequence[Match], evidence: Evidence, fits: Callable[[Match], bool]) -> Iterator[Match]:
    """Matches of tensors of mine that a program saved by name, and that are, bit by bit, others that
    `matches` join: the nearest of them in the tree."""
    used = {match.mine.node for match in matches}
    saved = [node for node in evidence.mine.tree.walk() if node.op_type == SAVED and node not in used]
    if not saved or not evidence.mine.dump.has_modules:
        return
    joined: dict[object, list[Match]] = defaultdict(list)
    for match in matches:
        key = _sample(evidence.mine, match.mine) if match.mine_view.kind == "whole" else None
        if key is not None:
            joined[key].append(match)
    for node in saved:
        copy = Export(node, Slot("output"), "copy")
        originals = joined.get(_sample(evidence.mine, copy), ())
        for match in sorted(originals, key=lambda match: -_in_common(match.mine.node.path, node.path)):
            candidate = replace(
                match, mine=copy, policy=COPIES, reason=Reason("a copy of {}", match.mine.node.name)
            )
            if _equal(evidence.mine, match.mine, copy) and fits(candidate):
                yield candidate
                break


def _sample(side: DumpStep, export: Export) -> object:
    """The shape of a tensor of floats and some of its elements; `None` for others, and for what is one
    number throughout."""
    refs = side.refs(export, side.dump.ranks[:1])
    try:
        tensor = refs[0].open() if refs and refs[0].header().dtype.format is not None else None
    except (AccError, OSError):
        return None
    if tensor is None or tensor.numel() < 2:
        return None
    flat = tensor.reshape(-1)
    elements = tuple(flat[:: max(1, len(flat) // _SAMPLED)].tolist())
    return (tuple(tensor.shape), tensor.dtype, elements) if len(set(elements)) > 1 else None


def _equal(side: DumpStep, first: Export, second: Export) -> bool:
    tensors = [side.refs(export, side.dump.ranks[:1])[0].open() for export in (first, second)]
    return bool((tensors[0] == tensors[1]).all())


def _in_common(path: str, other_path: str) -> int:
    """The number of modules around both nodes."""
    pairs = zip(path.split("."), other_path.split("."))
    return len(list(takewhile(lambda names: names[0] == names[1], pairs)))


def placed(match: Match) -> Match:
    """The match at its place in the order of execution: what was saved beside a result stands behind it."""
    module = match.mine.node.parent if match.policy in BESIDE else None
    return match if module is None else replace(match, mine=replace(match.mine, node=module))


def sums_of(pairs: Sequence[Pair]) -> Mapping[int, tuple[int, ...]]:
    """The number of the pair of the result, for each pair of what was saved beside it, summands or a copy."""
    of_sum = {
        (pair.graph, pair.step, pair.golden.node, pair.golden.slot): number
        for number, pair in enumerate(pairs)
        if pair.policy not in BESIDE
    }
    sums = {}
    for number, pair in enumerate(pairs):
        sum_number = of_sum.get((pair.graph, pair.step, pair.golden.node, pair.golden.slot), number)
        if pair.policy in BESIDE and sum_number < number:
            sums[number] = (sum_number,)
    return sums


# Modules that hand out the very tensor of a module in them, paired with those that do so for its partner.
#
# Names say nothing here. Where `att` hands out the output of `att.wo`, and `self_attn` that of
# `self_attn.o_proj`, the two containers match if the two inner modules do.


def containers(matches: Iterable[Match], golden: DumpStep, mine: DumpStep) -> Iterator[Match]:
    """Matches of modules without a partner, innermost first: where both sides have as many around a
    tensor."""
    if not (golden.dump.has_modules and mine.dump.has_modules):
        return
    inner = [match for match in matches if match.mine.slot == FIRST_OUTPUT]
    around_golden = _around(golden, {match.golden.node for match in inner})
    around_mine = _around(mine, {match.mine.node for match in inner})
    for match in inner:
        outer = around_golden.pop(_place(match.golden), []), around_mine.pop(_place(match.mine), [])
        if len(outer[0]) == len(outer[1]):
            reason = Reason("hands out the tensor of {}", match.mine.node.name)
            for ends in zip(*outer):
                golden_end, mine_end = (Export(node, FIRST_OUTPUT, "order") for node in ends)
                yield Match(golden_end, mine_end, "module", reason)


def _place(end: Export) -> NodeSlot:
    return NodeSlot(end.node.path, end.slot)


def _around(side: DumpStep, paired: set[Node]) -> dict[NodeSlot, list[Node]]:
    """The modules that are not `paired`, by the place of the tensor that they hand out."""
    origins = side.dump.calls(side.step).origins
    outer: dict[NodeSlot, list[Node]] = defaultdict(list)
    for node in sorted(side.tree.walk(), key=lambda node: -node.depth):
        origin = origins.get(NodeSlot(node.path, FIRST_OUTPUT))
        if origin is not None and not origin.view and node.children and node not in paired:
            outer[origin.place].append(node)
    return outer


# Policies for two dumps of one kind: equal names (`name`), and trees aligned by type (`typecount`).


Slots = Callable[[Node], Iterable[Slot]]


def meet_choices(golden: DumpStep, mine: DumpStep) -> dict[str, str]:
    """Paths of recorded calls of mine, and of golden's that chose the same, where a module makes other ones.

    They meet by their order, their function and the width of what they choose from and give. A module may
    choose in other calls than golden's, and be right: those without a partner are left out, unless both
    modules make calls of the same names, which meet by these.
    """
    by_module: dict[str, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
    for number, side in enumerate((golden, mine)):
        chosen = side.choices()
        for node in side.tree.walk() if chosen else ():
            if node.path in chosen:
                by_module[node.parent.path if node.parent else ""][number].append(node)

    def widths(side: DumpStep, node: Node) -> list[tuple[str, int]]:
        headers = ((slot.kind, readable(ref)) for slot, ref in side.slots(node).items())
        return [(kind, header.shape[-1]) for kind, header in headers if header is not None and header.shape]

    calls: dict[str, str] = {}
    for goldens, mines in by_module.values():
        if {node.path for node in goldens} == {node.path for node in mines}:
            calls.update((node.path, node.path) for node in mines)
            continue
        for call, partner in align(
            mines, goldens, lambda m, g: m.op_type == g.op_type and widths(mine, m) == widths(golden, g)
        ):
            calls[call.path] = partner.path
    golden.omit(golden.choices() - set(calls.values()))
    mine.omit(mine.choices() - calls.keys())
    return calls


def of_weights(golden: LayeredTree, mine: LayeredTree, weight: SharedWeight) -> Match | None:
    """The match of what two modules with one weight give: of a span of it, the columns that its rows make."""
    golden_path, mine_path, golden_span, mine_span = weight
    nodes = golden.side.tree.by_path.get(golden_path), mine.side.tree.by_path.get(mine_path)
    if nodes[0] is None or nodes[1] is None:
        return None
    ends = [Export(node, FIRST_OUTPUT, "weight") for node in nodes if node is not None]
    if not (golden.has(ends[0].node, FIRST_OUTPUT) and mine.has(ends[1].node, FIRST_OUTPUT)):
        return None
    first, second = (WHOLE if s is None else ViewRule("span", span=s) for s in (golden_span, mine_span))
    single = golden_path if mine_span is not None else mine_path
    tag = single.rpartition(".")[2] if (first, second) != (WHOLE, WHOLE) else ""
    return Match(ends[0], ends[1], "rows", "their weights have these rows", first, second, tag=tag)


def equal_names(
    golden: Tree, mine: Tree, golden_slots: Slots, mine_slots: Slots, calls: Mapping[str, str]
) -> Iterator[Match]:
    """Nodes of equal path (or, in ATB trees, equal full name), output by output; recorded `calls` of mine
    meet those of golden that they are listed with.

    A nested output has a partner of the same nesting only, so a hidden state never meets a cache.
    """
    names: dict[str, Node | None] = {}
    for node in golden.walk():
        names[node.name] = None if node.name in names else node
    by_full_name = {name: node for name, node in names.items() if node is not None}
    for node in mine.walk():
        partner = golden.by_path.get(calls.get(node.path, node.path)) or by_full_name.get(node.name)
        if partner is not None and (partner.op_type == node.op_type or partner.path == node.path):
            yield from _outputs(partner, node, golden_slots, mine_slots, "name", "equal names")


def aligned_types(
    golden: Tree, mine: Tree, golden_slots: Slots, mine_slots: Slots, tables: Tables
) -> Iterator[Match]:
    """Children aligned by type, level by level; a quantised type counts as the float one it replaces.

    An operator that only one side has (a quantise, a split more) costs that operator, not the subtree.
    """

    def plain(node: Node) -> str:
        return tables.quant.get(node.op_type, node.op_type)

    def below(golden_node: Node, mine_node: Node) -> Iterator[Match]:
        for golden_child, mine_child in align(
            golden_node.children, mine_node.children, lambda g, m: plain(g) == plain(m)
        ):
            reason = (
                "same type at the same place"
                if golden_child.op_type == mine_child.op_type
                else "quantised against float"
            )
            yield from _outputs(golden_child, mine_child, golden_slots, mine_slots, "typecount", reason)
            yield from below(golden_child, mine_child)

    yield from below(golden.root, mine.root)


def _outputs(
    golden: Node, mine: Node, golden_slots: Slots, mine_slots: Slots, policy: str, reason: str
) -> Iterator[Match]:
    partners = set(golden_slots(golden))
    for slot in mine_slots(mine):
        if slot.kind == "output" and slot in partners:
            yield Match(Export(golden, slot, "name"), Export(mine, slot, "name"), policy, reason)


def only_file(golden: Tree, mine: Tree, golden_slots: Slots, mine_slots: Slots) -> Iterator[Match]:
    """Two single tensors are a pair whatever their names."""
    golden_nodes = [node for node in golden.walk() if list(golden_slots(node))]
    mine_nodes = [node for node in mine.walk() if list(mine_slots(node))]
    if len(golden_nodes) == len(mine_nodes) == 1:
        slot = Slot("output", (0,))
        ends = Export(golden_nodes[0], slot, "file"), Export(mine_nodes[0], slot, "file")
        yield Match(*ends, "file", "two files were given")
