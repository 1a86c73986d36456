"""Fuzzing one operator: cases are drawn until one disagrees, which is then made as small as possible.

    found = fuzz("LinearOperation", examples=200)
    found.wrong      # what is wrong, one sentence an output; None instead of `found` when nothing was
    save(found, "acc_fuzz")

Our own operators are fuzzed against an oracle, a device (`on_device.py`) against our operators.

Importing this imports hypothesis and torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hypothesis import HealthCheck, Verbosity, given, settings

from ..opcheck.stand_alone import from_values, write_case
from ..operators import compute
from . import cases
from .drawn import DrawnCase
from .on_device import Refused
from .oracles import disagreements, expected

Backend = Callable[[DrawnCase], Sequence[torch.Tensor]]
"""What computes a case: outputs, then new values of the inputs that are written in place."""
Judge = Callable[[DrawnCase, Sequence[torch.Tensor]], Sequence[str]]
"""Says what is wrong with the outputs of a case, a sentence each."""


@dataclass(frozen=True)
class Found:
    """The smallest case that disagrees, what is wrong with its outputs, and how many were drawn before.

    `outputs` are what was computed, `None` where nothing was.
    """

    case: DrawnCase
    wrong: tuple[str, ...]
    drawn: int
    outputs: tuple[torch.Tensor, ...] | None = None


class _Disagrees(Exception):
    """Tells hypothesis that a case is of the kind that is looked for."""


def on_cpu(case: DrawnCase) -> Sequence[torch.Tensor]:
    """The case on our own operators."""
    return compute(case.operator, case.param, case.inputs)


def fuzz(
    operator: str, examples: int, backend: Backend = on_cpu, judge: Judge = disagreements
) -> Found | None:
    """Draw `examples` cases of `operator` and let `judge` say what is wrong with what `backend` computes.

    The smallest case that disagrees, `None` when none does. An exception of the backend is a disagreement
    too, but for `Refused`. Raises `OperatorError` for an operator without strategy, `MissingPackage`
    without hypothesis.
    """
    worst: list[Found] = []
    drawn = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(operator))
    def agrees(case: DrawnCase) -> None:
        nonlocal drawn
        drawn += not worst
        found = _found(case, backend, judge, drawn)
        if found is not None:
            worst[:] = [found]
            raise _Disagrees

    try:
        agrees()
    except _Disagrees:
        # hypothesis runs the smallest case last
        return worst[0]
    return None


def _found(case: DrawnCase, backend: Backend, judge: Judge, drawn: int) -> Found | None:
    try:
        outputs = tuple(backend(case))
    except Refused:
        return None
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is what the case has found
        return Found(case, (f"{type(error).__name__}: {error}",), drawn)
    wrong = tuple(judge(case, outputs))
    return Found(case, wrong, drawn, outputs) if wrong else None


def save(
    found: Found,
    directory: str | os.PathLike[str],
    outputs: Sequence[torch.Tensor] | None = None,
    soc: str = "",
) -> Path:
    """Write the case with `outputs`, or with the oracle's, below `directory`, in a new directory.

    Returns the path of its CSV, which is an operation CSV: `pytest --acc-opcheck` and ATB's own test runner
    run it. Raises `DumpError`.
    """
    case = found.case
    values = [one.rounded() for one in expected(case)] if outputs is None else outputs
    stand_alone = from_values(case.operator, case.param, case.inputs, values, soc)
    return write_case(stand_alone, _unused(Path(directory) / case.operator))


def _unused(wanted: Path) -> Path:
    """`wanted`, with a number behind it where earlier runs have left something."""
    place, number = wanted, 1
    while place.exists():
        number += 1
        place = wanted.with_name(f"{wanted.name}_{number}")
    return place
