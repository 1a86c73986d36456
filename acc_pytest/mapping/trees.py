"""Match two trees: layers with layers, then every policy in its order. No files beyond headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..base.reason import Reason
from ..dumps.base import Slot
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from . import policies
from .dump_step import DumpStep, LayeredTree
from .evidence import Evidence
from .layers import Layer, align_layers
from .match import WHOLE, End, ExpertRule, Export, Match, ViewRule
from .policies import (
    Scope,
    aligned_types,
    before_reduction,
    containers,
    copies,
    equal_names,
    of_weights,
    only_file,
)
from .roles.join import MADE, RoleJoin
from .shapes import rows_and_width
from .steps import Layouts, StepPair, both_layouts
from .tables import Tables, TypeRule, type_rules
from .unlike import (
    Meanings,
    choice,
    largest,
    layer_exports,
    model_exports,
    position_tables,
    shares_rotary,
    turned,
    without_copies,
)
from .user_rules import UserRules

_PROBED_LAYERS = 3
"""Layers of one make that are probed before a rule is dropped because shapes disagree."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Ends that have a partner before roles are asked: the user's own, and by name."""

    forced: set[End]
    by_name: set[End]


class TreeMatcher:
    """All matches of two trees, with notes on rules that were not followed."""

    def __init__(self, evidence: Evidence, tables: Tables, user_rules: Sequence[TypeRule]) -> None:
        self._evidence = evidence
        self._tables = tables
        self._user = UserRules(user_rules, evidence.golden.tree, evidence.mine.tree)
        self.golden = LayeredTree(evidence.golden, tables)
        self.mine = LayeredTree(evidence.mine, tables)
        self.layer_pairs, note = align_layers(self.golden.layers, self.mine.layers)
        self.notes = [note] if note else []
        dumps = evidence.golden.dump, evidence.mine.dump
        modules = all(dump.has_modules for dump in dumps)
        self._kinds_agree = modules or dumps[0].kind == dumps[1].kind
        groups = evidence.rank_groups()
        ranks = len(groups[0][0]), len(groups[0][1])
        self._meanings = (
            Meanings(self.golden, self.mine, ranks, rank_by_rank=len(groups) > 1) if modules else None
        )
        self._policies = PolicyOrder(self._user, tables, self.unlike)

    @property
    def unlike(self) -> bool:
        """Whether these are torch dumps of models whose modules are not the same."""
        return self._meanings is not None and self._meanings.unlike

    def lay_out(self, evidence: Evidence, met: StepPair, before: Layouts | None) -> Layouts | None:
        """Lay out the tokens of both sides of a step; `before` are the layouts of the first step."""
        sides = (evidence.golden, self.golden.layers), (evidence.mine, self.mine.layers)
        evidence.cut(tensor for side, layers in sides for tensor in last_rows(side, layers))
        if met.layouts is not None:
            evidence.lay_out(*met.layouts, alike=met.alike and not self.unlike)
            return None
        several = any(len(side.dump.ranks) > 1 for side in (evidence.golden, evidence.mine))
        if self._meanings is None or not (self.unlike or several):
            return None
        earlier = before or (None, None)
        layouts = both_layouts(
            (evidence.golden, model_exports(self.golden), earlier[0]),
            (evidence.mine, model_exports(self.mine), earlier[1]),
        )
        turned = [layout is not None and layout.turned for layout in layouts]
        evidence.lay_out(*layouts, alike=not self.unlike and turned[0] == turned[1])
        return layouts

    def matches(self) -> list[Match]:
        """Every match, layers first; a slot of mine has one plain match at most."""
        matches = self._matches()
        matches += filter(self._fits, containers(matches, self._evidence.golden, self._evidence.mine))
        if self._meanings is None:
            return matches
        matches = [self._meanings.completed(match) for match in matches]
        matches += before_reduction(matches, self._evidence, self._fits)
        return [*matches, *copies(matches, self._evidence, self._fits)]

    def _matches(self) -> list[Match]:
        matches = list(self._user.named(self.places(), self._roles_of, self._fits))
        matches += self._by_order({end for match in matches for end in match.ends})
        forced = {end for match in matches for end in match.ends}
        alike = self._same_names() if self._kinds_agree else ()
        matches.extend(match for match in alike if not match.ends & forced)
        claims = Claims(forced, {end for match in matches for end in match.ends} - forced)
        groups = self._groups(forced)
        for group in groups:
            matches.extend(self._layer_matches(group, claims))
        # Rows of tokens at their experts are in an order of their own: names do not pair them.
        by_expert = {end for match in matches if match.experts is not None for end in match.ends}
        matches = [
            m for m in matches if m.experts is not None or m.policy != "name" or not m.ends & by_expert
        ]
        if self.unlike and len(groups) > 1:
            matches.extend(as_elsewhere(matches, self.layer_pairs, self._fits))
        matches.extend(self._model_matches(claims))
        if self.unlike:
            from .alike import by_flow

            weights = self._evidence.weights
            matches.extend(by_flow((self.golden, self.mine), matches, weights, self.places(), self._fits))
        self.notes.extend(self._user.ignored(matches, self._evidence))
        return matches

    def _by_order(self, forced: set[End]) -> Iterator[Match]:
        """Matches of what modules give whose weights hold golden's rows in another order: names and roles
        would read them as they lie."""
        for weight in self._evidence.weights:
            if any(span is not None and span.order for span in weight[2:]):
                match = of_weights(self.golden, self.mine, weight)
                if match is not None and not match.ends & forced and self._fits(match):
                    yield match

    def _fits(self, match: Match) -> bool:
        return not self._evidence.refusal(match)

    def _roles_of(self, place: int | None) -> RoleJoin:
        """The roles of a layer pair by its number, or of what is outside of layers."""
        if place is None:
            return self._join(self._model_exports(), self._fits, None)
        golden, mine = self.layer_pairs[place]
        exports = self._layer_exports(golden, mine)
        return self._join(exports, self._fits, mine.node)

    def _layer_exports(self, golden: Layer, mine: Layer) -> tuple[list[Export], list[Export]]:
        if self.unlike:
            return layer_exports(self.golden, golden), layer_exports(self.mine, mine)
        return self.golden.layer_exports(golden), self.mine.layer_exports(mine)

    def _model_exports(self) -> tuple[list[Export], list[Export]]:
        if self.unlike:
            return model_exports(self.golden), model_exports(self.mine)
        return self.golden.model_exports(), self.mine.model_exports()

    def places(self) -> dict[Node, int]:
        """The number of the layer pair that a node lives in; absent outside."""
        return {
            node: number
            for number, pair in enumerate(self.layer_pairs)
            for layer in pair
            for node in layer.node.walk()
        }

    def _same_names(self) -> Iterator[Match]:
        golden, mine = self.golden, self.mine
        sides = golden.side.tree, mine.side.tree, golden.slots, mine.slots
        named = list(equal_names(*sides, self._evidence.calls))
        if self._meanings is not None and self._meanings.unlike:
            readings = [match for match in map(self._meanings.named, named) if match is not None]
            named = [match for match in readings if self._fits(match)]
        yield from named
        if golden.side.dump.kind == "atb":
            met = {end[:2] for match in named for end in match.ends}
            typed = aligned_types(*sides, self._tables)
            yield from (match for match in typed if not {end[:2] for end in match.ends} & met)
        elif golden.side.dump.kind == "tensor" and not named:
            yield from only_file(*sides)

    def _groups(self, forced: set[End]) -> list[list[tuple[Layer, Layer]]]:
        """Layer pairs of one make: same nodes, types, dumped slots and `forced` ends on both sides."""
        groups: dict[object, list[tuple[Layer, Layer]]] = {}
        for golden, mine in self.layer_pairs:
            nodes = {node: layer.below(node) for layer in (golden, mine) for node in layer.node.walk()}
            ends = frozenset((side, nodes[node], slot) for side, node, slot in forced if node in nodes)
            make = (_make(self.golden, golden), _make(self.mine, mine), ends)
            groups.setdefault(make, []).append((golden, mine))
        return list(groups.values())

    def _layer_matches(self, group: list[tuple[Layer, Layer]], claims: Claims) -> Iterator[Match]:
        """Match the first layer of a make, then transfer its matches to the others."""
        transfers = [Transfer(group[0], pair) for pair in group]
        probed = [transfers[0], *transfers[1:-1][: _PROBED_LAYERS - 2], *transfers[1:][-1:]]

        def fits(match: Match) -> bool:
            return any(not self._evidence.refusal(transfer(match)) for transfer in probed)

        golden, mine = group[0]
        scope = self._scope(list(golden.node.walk()), list(mine.node.walk()), fits, True, claims)
        exports = self._layer_exports(golden, mine)
        if not any(export.form == "table" for export in exports[0]):
            exports[0].extend(export for export in self.golden.model_exports() if export.form == "table")
        if self.unlike:
            for tree, layer, side in zip((self.golden, self.mine), group[0], exports):
                tables = position_tables(tree, layer)
                side.extend((*turned(side, tree.model_exports(), tables), *largest(side)))
        inside = self._in_experts(exports, fits)
        scope.claimed |= {end for match in inside for end in match.ends}
        join = self._join(self._unmatched(*exports, claims.by_name | scope.claimed), fits, mine.node)
        read: set[Export] = set()
        for match in (*inside, *self._policies.matches(scope, join)):
            read.add(match.golden)
            for transfer in transfers:
                yield transfer(match)
        unturned = [export for export in exports[0] if export.form == "turned" and export not in read]
        for match in self._by_values(scope, [probed[0], *probed[1:][-1:]], unturned):
            for transfer in transfers:
                yield transfer(match)

    def _in_experts(
        self, exports: tuple[list[Export], list[Export]], fits: Callable[[Match], bool]
    ) -> list[Match]:
        """Matches, in unlike modules, of tensors whose rows are tokens at their experts; no others have roles
        there."""
        if not self.unlike:
            return []
        matches = list(expert_matches((self.golden, exports[0]), (self.mine, exports[1]), fits))
        ends = {end for match in matches for end in match.ends}
        for name, side in zip(("golden", "mine"), exports):
            side[:] = [
                e for e in side if not e.role.startswith("experts.") and (name, e.node, e.slot) not in ends
            ]
        return matches

    def _by_values(
        self,
        scope: Scope,
        layers: Sequence[Callable[[Match], Match]],
        unturned: Sequence[Export],
    ) -> Iterator[Match]:
        """Matches by values, in unlike modules, of tensors without a partner and a name in common."""
        if self._meanings is not None and self.unlike:
            from .alike import by_values

            sides = (self.golden, scope.golden), (self.mine, scope.mine)
            completed, outside = self._meanings.completed, not scope.layered
            yield from by_values(self._evidence, sides, scope.claimed, layers, completed, outside, unturned)

    def _model_matches(self, claims: Claims) -> Iterator[Match]:
        scope = self._scope(self.golden.outside(), self.mine.outside(), self._fits, False, claims)
        exports = self._model_exports()
        yield from self._policies.matches(
            scope, self._join(self._unmatched(*exports, claims.by_name), self._fits, None)
        )
        yield from self._by_values(scope, [lambda match: match], ())

    def _unmatched(
        self, golden: list[Export], mine: list[Export], claimed: set[End]
    ) -> tuple[list[Export], list[Export]]:
        """Exports of nodes that have no partner by name: dumps of one kind need roles for those only. Of
        unlike modules those of tensors that have none."""
        if self.unlike:
            free = [e for e in mine if e.form in MADE or ("mine", e.node, e.slot) not in claimed]
            sides = (golden, self.golden), (free, self.mine)
            golden, free = (without_copies(side, shares_rotary(tree)) for side, tree in sides)
            return golden, free
        matched = {(side, node) for side, node, _ in claimed}
        return (
            [export for export in golden if ("golden", export.node) not in matched],
            [export for export in mine if ("mine", export.node) not in matched],
        )

    def _join(
        self, exports: tuple[list[Export], list[Export]], fits: Callable[[Match], bool], layer: Node | None
    ) -> RoleJoin:
        ranks = self._evidence.rank_groups()[0]
        sharded = len(ranks[1]) > len(ranks[0])
        modules = self._meanings is not None
        tables = replace(self._tables, stand_in={}) if modules else self._tables
        sharded = len(ranks[1]) != len(ranks[0]) if modules else sharded
        return RoleJoin(
            *exports, tables, fits, layer, sharded=sharded, is_user_pair=self._user.says, modules=modules
        )

    def _scope(
        self,
        golden: list[Node],
        mine: list[Node],
        fits: Callable[[Match], bool],
        layered: bool,
        claims: Claims,
    ) -> Scope:
        return Scope(
            sorted(golden, key=lambda node: node.order),
            sorted(mine, key=lambda node: node.order),
            self._tables,
            fits,
            self.golden.has,
            self.mine.has,
            self.mine.bias_of,
            layered,
            claims.forced | claims.by_name,
        )


def last_rows(side: DumpStep, layers: Sequence[Layer]) -> Iterator[tuple[Node, Slot]]:
    """The tensors of the last layer as short as what it hands out, where that has fewer rows than what the
    first one does: some engines go on there with the rows alone whose logits are wanted."""

    def rows(ref: TensorRef | None) -> int:
        header = readable(ref)
        return rows_and_width(header.shape)[0] if header is not None else 0

    ends = (*layers[:1], *layers[-1:])
    counts = [rows(side.slots(layer.node).get(policies.FIRST_OUTPUT)) for layer in ends]
    if counts and 0 < counts[-1] < counts[0]:
        for node in layers[-1].node.walk():
            yield from ((node, slot) for slot, ref in side.slots(node).items() if rows(ref) == counts[-1])


def _make(tree: LayeredTree, layer: Layer) -> tuple[object, ...]:
    return tuple((layer.below(node), node.op_type, tuple(tree.slots(node))) for node in layer.node.walk())


@dataclass(frozen=True, slots=True)
class PolicyOrder:
    """The policies for two trees; where their modules are `unlike` the tables say nothing."""

    user: UserRules
    tables: Tables
    unlike: bool

    def matches(self, scope: Scope, join: RoleJoin) -> Iterator[Match]:
        """Every match of a scope, whose slots it claims."""
        yield from _claimed(scope, self.user.precise(scope, join))
        user_ends = {end for end in scope.claimed if end[0] == "mine"}
        for match in join.matches():
            if not match.ends & user_ends:
                scope.claimed |= match.ends
                yield match
        if self.user.hints:
            trial = replace(scope, claimed=set(scope.claimed))
            weak = [match for policy in self._by_tables(trial) for match in _claimed(trial, policy)]
            yield from _claimed(scope, self.user.refined(scope, join, weak))
        for policy in self._by_tables(scope):
            yield from _claimed(scope, policy)
        yield from _claimed(scope, self.user.added(scope, join))

    def _by_tables(self, scope: Scope) -> tuple[Iterator[Match], ...]:
        if self.unlike:
            return ()  # the order of modules that differs says nothing, and the tables are of ATB
        in_layers = type_rules(self.tables.types_in) if scope.layered else []
        exact = type_rules(self.tables.types, exact=True) if scope.layered else []
        return (
            policies.special(scope),
            policies.modules(scope),
            policies.by_types(scope, in_layers, "types"),
            policies.fragments(scope),
            policies.by_types(scope, exact, "types"),
            policies.sequence(scope),
        )


def _claimed(scope: Scope, policy: Iterable[Match]) -> Iterator[Match]:
    for match in policy:
        if not match.ends & scope.claimed:
            scope.claimed |= match.ends
            yield match


_INSIDE = re.compile(r"^(?:expert\.(\d+)|experts)\.(\w+)$")
_HALVES = ("gate", "up")
"""The roles that `mlp_in` packs."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """A tensor inside of experts, which of them (`None` for all), and what it is there."""

    export: Export
    expert: int | None
    part: str


def expert_matches(
    golden: tuple[LayeredTree, Sequence[Export]],
    mine: tuple[LayeredTree, Sequence[Export]],
    fits: Callable[[Match], bool],
) -> Iterator[Match]:
    """Matches inside the experts of one layer, where both sides say which experts each token has."""
    golden_choice, golden_router = choice(golden[1])
    mine_choice, mine_router = choice(mine[1])
    if golden_choice is None or mine_choice is None:
        return
    sides = [list(_inside(exports)) for _, exports in (golden, mine)]
    indices = tuple(tuple(_indices(tree, exports)) for tree, exports in (golden, mine))
    for first in sides[0]:
        for second in sides[1]:
            rules = _rules(first.part, second.part)
            if rules is None or (None not in (first.expert, second.expert) and first.expert != second.expert):
                continue
            experts = ExpertRule(
                (golden_choice, mine_choice),
                (golden_router, mine_router),
                (first.expert, second.expert),
                (indices[0], indices[1]),
            )
            number = first.expert if first.expert is not None else second.expert
            tag = first.part if number is None else f"{first.part}{number}"
            reason = Reason("`{}` of experts, row by row of their tokens", first.part)
            match = Match(first.export, second.export, "role", reason, *rules, tag=tag, experts=experts)
            if fits(match):
                yield match


def _inside(exports: Sequence[Export]) -> Iterator[_Inside]:
    outputs = {export.role for export in exports if export.slot.kind == "output"}
    for export in exports:
        match = _INSIDE.match(export.role)
        copied = export.slot.kind == "input" and export.role in outputs
        if match and export.form == "plain" and not copied:
            yield _Inside(export, int(match[1]) if match[1] else None, match[2])


def _rules(golden: str, mine: str) -> tuple[ViewRule, ViewRule] | None:
    """The rules by which both are read: as they are, or the half that one packs."""
    if golden == mine:
        return WHOLE, WHOLE
    if mine == "mlp_in" and golden in _HALVES:
        return WHOLE, ViewRule("own_columns", _HALVES.index(golden))
    if golden == "mlp_in" and mine in _HALVES:
        return ViewRule("own_columns", _HALVES.index(mine)), WHOLE
    return None


def _indices(tree: LayeredTree, exports: Sequence[Export]) -> Iterator[Export]:
    """Exports of integers in one row, in the module around the experts."""
    around = {export.node.parent for export in exports if export.role.startswith("experts.")}
    around |= {node.parent for node in around if node is not None}
    for node in tree.side.tree.walk():
        if node.parent in around or node in around:
            for slot, ref in tree.side.slots(node).items():
                header = readable(ref)
                if header is not None and len(header.shape) == 1 and header.dtype.name.startswith("int"):
                    yield Export(node, Slot(slot.kind, slot.index), "index")


# Matches of one layer, transferred to others that are made alike.


LayerPair = tuple[Layer, Layer]


def as_elsewhere(
    matches: Sequence[Match], pairs: Sequence[LayerPair], fits: Callable[[Match], bool]
) -> list[Match]:
    """Matches by values of layers of one make, transferred to those of another, where values may be wrong."""
    used = {end for match in matches for end in match.ends}
    transferred: dict[frozenset[End], Match] = {}
    for source in pairs:
        nodes = set(source[1].node.walk())
        for match in [match for match in matches if match.policy == "values" and match.mine.node in nodes]:
            for target in pairs:
                candidate = Transfer(source, target, partly=True).transferred(match)
                if candidate is not None and not candidate.ends & used and fits(candidate):
                    ends = {end for end in candidate.ends if candidate.view_of(end[0]).kind == "whole"}
                    reason = Reason("{} in another layer", match.reason)
                    transferred.setdefault(frozenset(ends), replace(candidate, reason=reason))
    return list(transferred.values())


class Transfer:
    """Transfers a match of one layer pair to another one of the same make."""

    def __init__(self, model: tuple[Layer, Layer], target: tuple[Layer, Layer], partly: bool = False) -> None:
        """With `partly` the target may have other nodes than the model."""
        self._is_identity = model == target
        self._nodes: dict[Node, Node] = {}
        for source_layer, target_layer in zip(model, target):
            by_path = {target_layer.below(node): node for node in target_layer.node.walk()}
            nodes = {node: source_layer.below(node) for node in source_layer.node.walk()}
            self._nodes.update(
                (node, by_path[path]) for node, path in nodes.items() if path in by_path or not partly
            )

    def transferred(self, match: Match) -> Match | None:
        """The match of the target, if it has these nodes."""
        exports = (*match.golden_view.parts, *match.mine_view.parts)
        nodes = {export.node for export in (match.golden, match.mine, *exports)}
        return self(match) if nodes <= self._nodes.keys() else None

    def __call__(self, match: Match) -> Match:
        if self._is_identity:
            return match
        return replace(
            match,
            golden=self._export(match.golden),
            mine=self._export(match.mine),
            golden_view=self._view_rule(match.golden_view),
            mine_view=self._view_rule(match.mine_view),
            experts=self._expert_rule(match.experts),
        )

    def _expert_rule(self, rule: ExpertRule | None) -> ExpertRule | None:
        if rule is None:
            return None
        choices = self._export(rule.choices[0]), self._export(rule.choices[1])
        first, second = (None if router is None else self._export(router) for router in rule.routers)
        golden_indices, mine_indices = (tuple(map(self._export, indices)) for indices in rule.indices)
        return replace(rule, choices=choices, routers=(first, second), indices=(golden_indices, mine_indices))

    def _export(self, export: Export) -> Export:
        return replace(export, node=self._nodes.get(export.node, export.node))

    def _view_rule(self, rule: ViewRule) -> ViewRule:
        return (
            replace(rule, parts=tuple(self._export(export) for export in rule.parts)) if rule.parts else rule
        )
