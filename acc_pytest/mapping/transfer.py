"""Matches of one layer, transferred to others that are made alike."""

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
                    reason = f"{match.reason} in another layer"
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
