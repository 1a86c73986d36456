"""Independent formulations of operators: torch's own functions in float64, loops, sorted lists.

They share no line with `acc_pytest.operators` but the names of parameters and operands. Each says what the
outputs are and, from the lengths and magnitudes of its sums, how far float32 may be off (`expected`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

import torch

from acc_pytest.errors import OperatorError
from acc_pytest.lab.strategies.device import DrawnCase
from acc_pytest.operators import operator_of
from acc_pytest.operators.registry import read

from .expected import Expected
from .table import ORACLES


def with_oracle() -> tuple[str, ...]:
    """The operators that have an independent formulation."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return tuple(sorted(ORACLES))


def expected(case: DrawnCase) -> list[Expected]:
    """The outputs of `case`, then the new values of inputs it writes. Raises `OperatorError`."""
    if case.operator not in with_oracle():
        raise OperatorError(f"{case.operator}: no independent formulation to check it with")
    operator = operator_of(case.operator, case.param)
    names = [name.rstrip("?") for name in operator.inputs]
    given = {name: tensor for name, tensor in zip(names, case.inputs) if tensor is not None}
    return list(ORACLES[case.operator](read(case.operator, operator.schema, case.param), given))


def disagreements(case: DrawnCase, outputs: Sequence[torch.Tensor]) -> list[str]:
    """What is wrong with `outputs`, a sentence each."""
    wanted = expected(case)
    if len(outputs) != len(wanted):
        return [f"{len(outputs)} outputs, not {len(wanted)}"]
    found = (one.disagreement(mine) for one, mine in zip(wanted, outputs))
    return [f"output {i}: {text}" for i, text in enumerate(found) if text]
