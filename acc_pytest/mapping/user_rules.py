"""The user's own rules (`op_mapping_file.json`): what they pair, and what roles and tables would pair better.

Three strengths, from the most specific word to the least:

- an entry that names a **node** (name, path or id) is obeyed, whatever roles and shapes say (`named`);
- an entry that names a tensor of **both** types is obeyed where the shapes allow it (`precise`);
- an entry that names **types** is a hint: it decides among partners that fit equally well (`refined`), and
  adds pairs for nodes that are left (`added`).

Rules of types are read as roles ask for: last tokens, pieces of packs, sums over ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..base.reason import Reason, joined
from ..topology.tree import Node, Tree
from .dump_step import DumpStep
from .evidence import Evidence
from .match import Export, Match
from .policies import Scope, has_type, in_order, slot_of
from .roles.join import RoleJoin
from .tables import FILE_NAME, Endpoint, TypeRule

POLICY = "op-mapping-file"
_ID = re.compile(r"_(\d+(?:_\d+)*)$", re.ASCII)


class UserRules:
    """The rules of a mapping file for two trees: entries that name nodes apart from those that name types."""

    def __init__(self, rules: Sequence[TypeRule], golden: Tree, mine: Tree) -> None:
        self._golden, self._mine = golden, mine
        self._of_nodes: list[tuple[TypeRule, list[Node], list[Node]]] = []
        self._precise: list[TypeRule] = []
        self.hints: list[TypeRule] = []
        for mine_end, golden_end in [(rule.mine, golden_end) for rule in rules for golden_end in rule.golden]:
            entry, ends = (
                TypeRule(mine_end, (golden_end,)),
                (_named(golden, golden_end), _named(mine, mine_end)),
            )
            if any(ends):
                self._of_nodes.append((entry, *ends))
            else:
                (self._precise if golden_end.slot and mine_end.slot else self.hints).append(entry)

    def says(self, golden: Node, mine: Node) -> bool:
        """True where a rule of types holds the two nodes to be the same."""
        of_mine = (rule.golden[0] for rule in self.hints if has_type(mine, rule.mine, False))
        return any(has_type(golden, end, False) for end in of_mine)

    def named(
        self,
        place: Mapping[Node, int],
        joins: Callable[[int | None], RoleJoin],
        fits: Callable[[Match], bool],
    ) -> Iterator[Match]:
        """The pairs of entries that name a node, unchecked.

        Where the other end is a type, its nodes in the same layer are meant; of several the first free one
        that fits. `place` numbers the layers that belong together, `joins` gives the roles of one.
        """
        used: set[Node] = set()
        for rule, goldens, mines in self._of_nodes:
            where = place.get((mines or goldens)[0])
            goldens = goldens or _typed(self._golden, rule.golden[0], place, where)
            mines = mines or _typed(self._mine, rule.mine, place, where)
            matches = []
            for golden, mine in [(g, m) for g in goldens for m in mines if not {g, m} & used]:
                together = place.get(golden) == place.get(mine)
                plain = _plain(rule, golden, mine)
                matches.append(_read_if_possible(joins(where), rule, golden, mine) if together else plain)
            for match in matches if len(matches) == 1 else filter(fits, matches):
                used |= {match.golden.node, match.mine.node}
                yield match
                break

    def precise(self, scope: Scope, join: RoleJoin) -> Iterator[Match]:
        """The pairs of rules that name a tensor of both types."""
        for rule in self._precise:
            yield from in_order(*_free(scope, rule), partial(_read_if_possible, join, rule), scope.fits)

    def refined(self, scope: Scope, join: RoleJoin, weak: Sequence[Match]) -> Iterator[Match]:
        """The matches in `weak` (from the tables) that a rule confirms, then those that rules put in place
        of others.
        """
        opposed = set()
        for match in weak:
            if self.says(match.golden.node, match.mine.node):
                yield match
            elif any(has_type(match.mine.node, rule.mine, False) for rule in self.hints):
                opposed.add(match.mine.node)
        yield from self.added(scope, join, opposed)

    def added(self, scope: Scope, join: RoleJoin, only: Collection[Node] | None = None) -> Iterator[Match]:
        """Pairs of nodes that are left, of the types of a rule, unless their roles say that they differ."""
        for rule in self.hints:
            golden, free = _free(scope, rule)
            candidates = [node for node in free if node in scope.mine and (only is None or node in only)]
            yield from in_order(golden, candidates, partial(_read, join, rule), scope.fits)

    def ignored(self, matches: Sequence[Match], evidence: Evidence) -> Iterator[str]:
        """A sentence for each type of mine that both trees have as a rule says, but that no pair follows."""
        by_type: dict[Endpoint, list[TypeRule]] = defaultdict(list)
        for rule in (*self._precise, *self.hints):
            by_type[rule.mine].append(rule)
        ends = {(match.golden.node, match.mine.node) for match in matches}
        for mine_end, rules in by_type.items():
            goldens = [(rule, node) for rule in rules for node in _dumped(evidence.golden, rule.golden[0])]
            mines = _dumped(evidence.mine, mine_end)
            if not goldens or not mines or any((g, m) in ends for _, g in goldens for m in mines):
                continue
            rule, golden = goldens[0]
            why = "roles pair these nodes with others"
            if not any(match.mine.node in mines for match in matches):
                why = evidence.refusal(_plain(rule, golden, mines[0])) or "the roles of the two differ"
            values = joined(" or ", dict.fromkeys(rule.golden[0].op_type for rule, _ in goldens))
            yield Reason(
                "{}: {} is {}: not followed, for {}; "
                "an entry that names nodes instead of types is followed nevertheless",
                FILE_NAME,
                mine_end.op_type,
                values,
                why,
            )


def _dumped(side: DumpStep, end: Endpoint) -> list[Node]:
    """The nodes of a type whose tensor was dumped."""
    nodes = (node for node in side.tree.walk() if has_type(node, end, False))
    return [node for node in nodes if slot_of(end) in side.slots(node)]


def _named(tree: Tree, end: Endpoint) -> list[Node]:
    """The node whose name, path or id an entry gives; none for the name of a type."""
    text = end.op_type
    nodes = list(tree.walk())
    if any(node.op_type == text for node in nodes):
        return []
    for named in ([n for n in nodes if text in (n.name, n.path)], _of_id(nodes, text)):
        if named:
            return named
    return []


def _of_id(nodes: list[Node], text: str) -> list[Node]:
    return [node for node in nodes if (match := _ID.search(node.name)) and match[1] == text]


def _typed(tree: Tree, end: Endpoint, place: Mapping[Node, int], where: int | None) -> list[Node]:
    nodes = sorted(tree.walk(), key=lambda node: node.order)
    return [node for node in nodes if place.get(node) == where and has_type(node, end, False)]


def _free(scope: Scope, rule: TypeRule) -> tuple[list[Node], list[Node]]:
    """The nodes of a rule's types whose tensor has no partner yet: of golden, of mine.

    A linear of mine without bias stands for the add that completes it, unless the rule names its tensor.
    """
    [golden_end], mine_end = rule.golden, rule.mine
    golden = [node for node in scope.golden if has_type(node, golden_end, False)]
    mine = [node for node in scope.mine if has_type(node, mine_end, False)]
    mine = mine if mine_end.slot else list(dict.fromkeys(map(scope.bias_of, mine)))
    return (
        [node for node in golden if scope.free("golden", node, slot_of(golden_end))],
        [node for node in mine if scope.free("mine", node, slot_of(mine_end))],
    )


def _plain(rule: TypeRule, golden: Node, mine: Node) -> Match:
    [golden_end], mine_end = rule.golden, rule.mine
    ends = Export(golden, slot_of(golden_end), "user"), Export(mine, slot_of(mine_end), "user")
    return Match(
        *ends, POLICY, Reason("{} says that {} is {}", FILE_NAME, mine_end.op_type, golden_end.op_type)
    )


def _read(join: RoleJoin, rule: TypeRule, golden: Node, mine: Node) -> Match | None:
    plain = _plain(rule, golden, mine)
    match = join.read_as(plain.golden, plain.mine)
    return None if match is None else replace(match, policy=POLICY, reason=plain.reason)


def _read_if_possible(join: RoleJoin, rule: TypeRule, golden: Node, mine: Node) -> Match:
    return _read(join, rule, golden, mine) or _plain(rule, golden, mine)
