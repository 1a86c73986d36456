"""Is a module of torch right? By what golden's dump outlines of its model, without the model.

An outline is weaker than a model: golden may have run other code than the class that it names (a patched
method, a hook). So where mine is found wrong, and where its error is to be explained, golden's own module is
computed from golden's inputs too, and nothing is said unless that is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from torch import nn

from ..capture.torch_hooks.names import module_tree
from ..dumps import open_dump
from ..dumps.modules import ModuleDump
from ..dumps.torch_outline import Outline
from ..dumps.torch_weights import SavedWeight
from ..errors import AccError
from ..mapping.pair import Pair, Plan
from .golden_model.outlined import outlined_model
from .projected import ProjectedLinear
from .recomputation import Recomputation, RecomputeBudget
from .recompute_torch import TorchRecomputer


class OutlinedRecomputer:
    """Computes modules of mine again as golden's `outline` says."""

    def __init__(self, plan: Plan, outline: Outline, budget: RecomputeBudget) -> None:
        self._plan = plan
        self._outline = outline
        self._budget = budget
        self._mine = self._of(plan.mine_root, plan.pairs)

    def _of(self, root: str, pairs: Sequence[Pair]) -> TorchRecomputer:
        """What computes the modules of one side again."""
        model = _model(self._outline)
        layers = _layers(self._outline, model, _weights(self._plan.golden_root), _weights(root))
        return TorchRecomputer(root, pairs, model, self._budget, projected=layers)

    @cached_property
    def _golden(self) -> TorchRecomputer:
        turned = [replace(pair, mine=pair.golden) for pair in self._plan.pairs]
        return self._of(self._plan.golden_root, turned)

    def of_pair(self, number: int) -> Recomputation:
        """See `Recomputer.of_pair`. Wrong only where golden's own module is right."""
        found = self._mine.of_pair(number)
        if found.outcome == "wrong" and self._golden.of_pair(number).outcome != "right":
            return Recomputation(why="golden itself does not compute what its dump outlines")
        return found

    def of_operator(self, number: int, path: str) -> Recomputation:
        """See `Recomputer.of_operator`."""
        found = self._mine.of_operator(number, path)
        return found if found.outcome == "right" else replace(found, outcome="")

    def of_golden(self, number: int) -> Recomputation:
        """Whether golden's module is what its dump outlines."""
        return self._golden.of_pair(number)

    def unlike(self, number: int, path: str) -> str:
        """See `TorchRecomputer.unlike`."""
        return ""


def _layers(
    outline: Outline, model: nn.Module, golden: Mapping[str, SavedWeight], mine: Mapping[str, SavedWeight]
) -> dict[str, ProjectedLinear]:
    """The linear layers whose weights the model has no values of."""
    modules = {place.name: place.module for place in module_tree(model).walk()}
    known = {
        name
        for name in outline.projections
        if name in modules and not any(weight.is_meta for weight in modules[name].parameters(recurse=False))
    }
    return {
        name: ProjectedLinear(
            projection,
            outline.weights.get(f"{name}.bias"),
            outline.outputs[name],
            _same(golden, mine, f"{name}.weight"),
        )
        for name, projection in outline.projections.items()
        if name in outline.outputs and name not in known
    }


def _same(golden: Mapping[str, SavedWeight], mine: Mapping[str, SavedWeight], name: str) -> bool:
    """Whether a weight is known to have the same values on both sides, in whatever dtypes: their sums are
    those of the same numbers in the same order.
    """
    one, other = (side[name].digest if name in side else None for side in (golden, mine))
    if one is None or other is None:
        return False
    return one.shape == other.shape and (one.sum, one.squares) == (other.sum, other.squares)


def _weights(root: str) -> Mapping[str, SavedWeight]:
    """What the dump at `root` says of its weights, by all their names."""
    dump = open_dump(root)
    assert isinstance(dump, ModuleDump)
    saved = dump.weights(dump.ranks[0])
    return {name: one for first, one in saved.items() for name in (first, *one.aliases)}


def _model(outline: Outline) -> nn.Module:
    """Golden's modules; an empty one where they cannot be made: linear layers need none."""
    try:
        return outlined_model(outline)
    except AccError:
        return nn.Module()
