"""The steps of an ATB dump: which token directory is which, by the policy and what the first tensors say."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from ..errors import DumpError
from ..tensors.ref import TensorRef
from ..topology.atb_tree import joined
from ..topology.tree import Node, Tree
from .atb_files import AtbLayout, Executions
from .base import Dump, Slot, Step, StepLabel
from .evidence import TokenEvidence, gather
from .modules import is_of_a_model
from .token_policy import WARMUP, Facts, decide

SlotsIn = Callable[[str, Node], Mapping[Slot, TensorRef]]
"""The tensors of a node in a token directory."""

_EVIDENCE_STEPS = 4
"""Steps per model whose first tensors are read as evidence."""


def steps_of(
    layout: AtbLayout,
    models: Sequence[Tree],
    ran: Executions,
    slots_in: SlotsIn,
    policy: str,
    golden: Dump | None,
    notes: list[str],
) -> tuple[Step, ...]:
    """Steps in order; `notes` are told how they were decided.

    Raises `SettingsError` for an unknown policy, `DumpError` for one that contradicts what is on disk, for
    a named token directory without operations, and for a warm-up that `golden` does not have.
    """
    tokens = {int(token): token for token in ran}
    present = _models_present(models, ran)
    if not present:
        notes.append("no tensor of any operation was dumped; dump again with --type model tensor")
    _refuse_empty(layout, present)
    evidence = {
        (number, model): gather(tree, functools.partial(slots_in, tokens[number]))
        for model, tree in enumerate(models)
        for number in _first_of(model, present)
    }
    decision = decide(policy, Facts(len(models), present, evidence, _evidence_of(golden)))
    notes += decision.notes
    joint = models[0] if len(models) == 1 else joined("+".join(tree.model for tree in models), models)
    steps = tuple(
        Step(item.label, joint if item.model is None else models[item.model], tokens[item.directory])
        for item in decision.steps
    )
    if not layout.token:
        _refuse_warmup_alone(steps, golden)
        return steps
    selected = tuple(step for step in steps if step.directory == layout.token)
    return selected or (Step(int(layout.token), joint, layout.token),)


def _refuse_empty(layout: AtbLayout, present: Mapping[int, frozenset[int]]) -> None:
    """A token directory that was named must hold something of the model."""
    if layout.token and int(layout.token) not in present:
        raise DumpError(
            f"{layout.worker}/{layout.token}: holds no operation of the model; "
            f"token directories that do: {', '.join(map(str, sorted(present))) or 'none'}"
        )


def _first_of(model: int, present: Mapping[int, frozenset[int]]) -> list[int]:
    """The first token directories that a model ran in, as many as are read as evidence."""
    return [number for number in sorted(present) if model in present[number]][:_EVIDENCE_STEPS]


def _models_present(models: Sequence[Tree], ran: Executions) -> dict[int, frozenset[int]]:
    """The models that ran in each token directory that holds any."""
    paths = [{child.path for child in tree.root.children} for tree in models]
    present = {}
    for token, tops in ran.items():
        names = {f"{number}_{kind}" for number, kind in tops}
        present[int(token)] = frozenset(model for model, theirs in enumerate(paths) if names & theirs)
    return {number: indices for number, indices in present.items() if indices}


def _refuse_warmup_alone(steps: Sequence[Step], golden: Dump | None) -> None:
    labels = {step.label for step in golden.steps} if golden else set()
    if labels and WARMUP not in labels and steps and all(step.label == WARMUP for step in steps):
        raise DumpError(
            "holds only the warm-up run (directory 0), which golden does not have; dump later "
            "executions too (-er 0,3), or give --acc-token-policy no-warmup if it is not a warm-up"
        )


def _evidence_of(golden: Dump | None) -> dict[StepLabel, TokenEvidence]:
    if golden is None or not is_of_a_model(golden) or not golden.ranks:
        return {}
    rank = golden.ranks[0]
    steps = golden.steps[: 2 * _EVIDENCE_STEPS]
    return {step.label: gather(step.tree, functools.partial(golden.tensors, step, rank)) for step in steps}
