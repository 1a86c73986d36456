"""Strategies of hypothesis for ATB's operators: parameters and inputs that are valid by construction.

    @given(acc_pytest.lab.strategies.cases("LinearOperation"))
    def test_my_linear(case):
        assert check(case, [my_linear(case.param, *case.inputs)]) == []

`cases` knows which shapes fit each other, `params` only the schema of the parameters. `check` judges outputs
against the reference computation, as `--acc-opcheck` does. hypothesis is needed when the first strategy is
asked for, not before.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...base.vocabulary import DEFAULT_STANDARD
from ...errors import MissingPackage, OperatorError

if TYPE_CHECKING:
    import torch
    from hypothesis.strategies import SearchStrategy

    from .device import DrawnCase
    from .values import Rule

__all__ = ["WITHOUT_STRATEGY", "cases", "check", "covered", "params"]

FAMILIES = ("attention", "elementwise", "experts", "moving", "norms", "paged")
"""The modules of this room that have shape rules, one for each family of operators."""

_RANKS = "it computes between ranks, and a case here is that of one rank"

WITHOUT_STRATEGY: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "AllGatherOperation",
            "AllGatherVOperation",
            "AllReduceOperation",
            "AllToAllOperation",
            "AllToAllVOperation",
            "AllToAllVV2Operation",
            "BroadcastOperation",
            "LinearParallelOperation",
            "RecvOperation",
            "ReduceScatterOperation",
            "ReduceScatterVOperation",
            "SendOperation",
        ),
        _RANKS,
    )
}
"""Operators that have no strategy, and why."""


def covered() -> tuple[str, ...]:
    """The operators that `cases` can draw. Raises `MissingPackage` without hypothesis."""
    return tuple(sorted(_rules()))


def cases(operator: str) -> SearchStrategy[DrawnCase]:
    """Cases of `operator` that `operators.compute` takes, of small shapes and all modes that have a rule.

    Raises `OperatorError` for an operator without a rule, `MissingPackage` without hypothesis.
    """
    rules = _rules()
    if operator not in rules:
        raise OperatorError(f"{operator}: no strategy; {_why_not(operator, rules)}")
    from hypothesis import strategies as st

    from .device import DrawnCase

    @st.composite
    def drawn(draw: Any) -> DrawnCase:
        param, inputs = rules[operator](draw)
        return DrawnCase(operator, param, tuple(inputs))

    return drawn()


def params(operator: str) -> SearchStrategy[dict[str, Any]]:
    """Parameters that the schema of `operator` allows: any of its keys, each with a value of its kind.

    They need not make sense together; `cases` draws those that do. Raises `OperatorError` for an unknown
    operator, `MissingPackage` without hypothesis.
    """
    _rules()
    from ...operators import operator_of
    from .values import of_schema

    return of_schema(operator_of(operator).schema)


def check(
    case: DrawnCase, outputs: Sequence[torch.Tensor], standard: str = DEFAULT_STANDARD, soc: str = ""
) -> list[str]:
    """The errors of `outputs` of `case`, a sentence each; empty when there is none.

    `standard` of `--acc-opcheck-standard` judges, as for a device of type `soc`. New values of inputs that
    are written in place follow the outputs, as `operators.compute` returns them. Raises `OperatorError` for
    an operator without a reference computation, `SettingsError` for an unknown standard.
    """
    from ...judging.standards import of_operators
    from ...operators import compute
    from .device import disagreements

    reference = compute(case.operator, case.param, case.inputs)
    if len(outputs) != len(reference):
        return [f"{len(outputs)} outputs, not {len(reference)}"]
    shapes = [
        f"output[{number}]: shape {list(output.shape)} is not {list(golden.shape)}"
        for number, (output, golden) in enumerate(zip(outputs, reference))
        if output.shape != golden.shape
    ]
    return shapes or disagreements(case, outputs, of_operators(standard), soc)


def _rules() -> Mapping[str, Rule]:
    if not importlib.util.find_spec("hypothesis"):
        raise MissingPackage(
            "acc_pytest.lab.strategies needs hypothesis, which is not installed; pip install hypothesis"
        )
    from .values import RULES

    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
    return RULES


def _why_not(operator: str, rules: Mapping[str, Rule]) -> str:
    if operator in WITHOUT_STRATEGY:
        return WITHOUT_STRATEGY[operator]
    close = difflib.get_close_matches(operator, rules, 3)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(rules))}"
