"""Is a module of torch right? By what golden's dump outlines of its model, without the model.

An outline is weaker than a model: golden may have run other code than the class that it names (a patched
method, a hook). So where mine is found wrong, and where its error is to be explained, golden's own module is
computed from golden's inputs too, and nothing is said unless that is right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from torch import nn

from ..capture.torch_hooks.names import module_tree
from ..dumps import open_dump
from ..dumps.base import Dump
from ..dumps.modules import ModuleDump
from ..dumps.torch_outline import Outline
from ..dumps.torch_weights import SavedWeight, weights_of
from ..errors import AccError
from ..mapping.pair import Pair, Plan
from .golden_model.outlined import outlined_model
from .projected import ProjectedLinear
from .projected_pairs import judged_by_golden, layers_of
from .recomputation import Recomputation, RecomputeBudget, Recomputer, attempted
from .recompute_torch import TorchRecomputer


class OutlinedRecomputer(Recomputer):
    """Computes modules of mine again as golden's `outline` says: of all ranks, or of that in the place of
    golden's where both sides have as many. `opened` opens their dumps."""

    def __init__(
        self, plan: Plan, outline: Outline, budget: RecomputeBudget, opened: Callable[[str], Dump] = open_dump
    ) -> None:
        self._opened = opened
        self._plan = plan
        self._outline = outline
        self._budget = budget
        self._lacking = ""
        self._mine = self._of(plan.mine_root, plan.pairs)

    def _of(self, root: str, pairs: Sequence[Pair]) -> TorchRecomputer:
        """The recomputer of the modules of one side."""
        dump, golden_dump = self._opened(root), self._opened(self._plan.golden_root)
        assert isinstance(dump, ModuleDump)
        if len(dump.ranks) == len(golden_dump.ranks):
            names = [rank.name for rank in golden_dump.ranks]
            dump = dump.of_rank(dump.ranks[names.index(os.path.basename(self._outline.home))])
        model = self._model(golden_dump)
        golden = _by_all_names(weights_of(Path(self._outline.home)))
        layers = _layers(self._outline, model, golden, _by_all_names(dump.weights(dump.ranks[0])))
        return TorchRecomputer(dump, pairs, model, self._budget, layers)

    def _model(self, golden: Dump) -> nn.Module:
        """Golden's modules; an empty one where they cannot be made: linear layers need none."""
        try:
            return outlined_model(self._outline, [step.directory for step in golden.steps])
        except AccError as error:
            self._lacking = str(error)
            return nn.Module()

    @cached_property
    def _golden(self) -> TorchRecomputer:
        turned = [replace(pair, mine=pair.golden) for pair in self._plan.pairs]
        return self._of(self._plan.golden_root, turned)

    def of_pair(self, number: int) -> Recomputation:
        """See `Recomputer.of_pair`. Wrong only where golden's own module is right."""
        result = self._mine.of_pair(number)
        if not result.outcome:
            result = self._of_ranks(number, result)
        if result.outcome == "wrong" and self._golden.of_pair(number).outcome != "right":
            return Recomputation(why="golden itself does not compute what its dump outlines")
        return replace(result, lacking=self._lacking)

    def _of_ranks(self, number: int, unknown: Recomputation) -> Recomputation:
        """Whether a linear layer that mine calls otherwise or shares out over ranks is golden's."""
        pair = self._plan.pairs[number]
        if pair.golden.node not in self._layers or pair.mine.slot != "output[0]" or pair.fed:
            return unknown
        limit = self._budget.limit
        return attempted(
            lambda: judged_by_golden(pair, self._layers, self._mine.inputs_of(number), limit),
            f"holding {pair.id} to golden",
        )

    @cached_property
    def _layers(self) -> dict[str, ProjectedLinear]:
        return layers_of(self._outline)

    def of_operator(self, number: int, path: str) -> Recomputation:
        """See `Recomputer.of_operator`."""
        result = self._mine.of_operator(number, path)
        return result if result.outcome == "right" else replace(result, outcome="")

    def of_golden(self, number: int) -> Recomputation:
        """Whether golden's module is what its dump outlines."""
        return self._golden.of_pair(number)


def _layers(
    outline: Outline, model: nn.Module, golden: Mapping[str, SavedWeight], mine: Mapping[str, SavedWeight]
) -> dict[str, ProjectedLinear]:
    """The linear layers whose weights the model has no values of."""
    modules = {place.name: place.module for place in module_tree(model).walk()}
    with_values = {
        name
        for name in outline.projections
        if name in modules and not any(weight.is_meta for weight in modules[name].parameters(recurse=False))
    }
    return {
        name: ProjectedLinear(
            projection,
            outline.weights.get(f"{name}.bias"),
            outline.outputs[name],
            _equal_weights(golden, mine, f"{name}.weight"),
        )
        for name, projection in outline.projections.items()
        if name in outline.outputs and name not in with_values
    }


def _equal_weights(golden: Mapping[str, SavedWeight], mine: Mapping[str, SavedWeight], name: str) -> bool:
    """Whether a weight is known to have the same values on both sides, in whatever dtypes: their sums are
    those of the same numbers in the same order.
    """
    ours, theirs = (side[name].digest if name in side else None for side in (golden, mine))
    if ours is None or theirs is None:
        return False
    return ours.shape == theirs.shape and (ours.sum, ours.squares) == (theirs.sum, theirs.squares)


def _by_all_names(saved: Mapping[str, SavedWeight]) -> Mapping[str, SavedWeight]:
    return {name: weight for first, weight in saved.items() for name in (first, *weight.aliases)}
