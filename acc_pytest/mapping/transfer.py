"""What was said of one layer, said of others that are made alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..topology.tree import Node
from .layers import Layer
from .match import End, ExpertRule, Match, ViewRule
from .roles.export import Export

LayerPair = tuple[Layer, Layer]


def as_elsewhere(
    matches: Sequence[Match], pairs: Sequence[LayerPair], fits: Callable[[Match], bool]
) -> list[Match]:
    """What values told of layers of one make, said of those of another one, where they may be wrong."""
    taken = {end for match in matches for end in match.ends}
    said: dict[frozenset[End], Match] = {}
    for source in pairs:
        own = set(source[1].node.walk())
        for match in [match for match in matches if match.policy == "values" and match.mine.node in own]:
            for target in pairs:
                moved = Transfer(source, target, partly=True).moved(match)
                if moved is not None and not moved.ends & taken and fits(moved):
                    whole = {end for end in moved.ends if moved.view_of(end[0]).kind == "whole"}
                    reason = f"{match.reason} in another layer"
                    said.setdefault(frozenset(whole), replace(moved, reason=reason))
    return list(said.values())


class Transfer:
    """Says of one layer pair what was said of another one of the same make."""

    def __init__(self, model: tuple[Layer, Layer], target: tuple[Layer, Layer], partly: bool = False) -> None:
        """The other one may have `partly` other nodes."""
        self._same = model == target
        self._nodes: dict[Node, Node] = {}
        for source_layer, target_layer in zip(model, target):
            there = {target_layer.below(node): node for node in target_layer.node.walk()}
            nodes = {node: source_layer.below(node) for node in source_layer.node.walk()}
            self._nodes.update(
                (node, there[below]) for node, below in nodes.items() if below in there or not partly
            )

    def moved(self, match: Match) -> Match | None:
        """The same of the other layer, if it has these nodes."""
        parts = (*match.golden_view.parts, *match.mine_view.parts)
        nodes = {export.node for export in (match.golden, match.mine, *parts)}
        return self(match) if nodes <= self._nodes.keys() else None

    def __call__(self, match: Match) -> Match:
        if self._same:
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
        first, second = (None if each is None else self._export(each) for each in rule.routers)
        one, other = (tuple(map(self._export, each)) for each in rule.indices)
        return replace(rule, choices=choices, routers=(first, second), indices=(one, other))

    def _export(self, export: Export) -> Export:
        return replace(export, node=self._nodes.get(export.node, export.node))

    def _view_rule(self, rule: ViewRule) -> ViewRule:
        return replace(rule, parts=tuple(self._export(part) for part in rule.parts)) if rule.parts else rule
