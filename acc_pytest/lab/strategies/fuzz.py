"""Fuzzing one operator: cases are drawn until one disagrees, which is then made as small as possible.

    device = Device(backend, standard)
    example = fuzz("LinearOperation", 200, device.compute, device.judge)
    example.reasons  # what is wrong, one sentence an output; None instead of `example` when nothing was
    save(example, "acc_fuzz")

Importing this imports hypothesis and torch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hypothesis import HealthCheck, Verbosity, given, settings

from ...opcheck.stand_alone import from_values, write_case
from ...operators import compute
from . import cases
from .device import DrawnCase, Refused

Backend = Callable[[DrawnCase], Sequence[torch.Tensor]]
"""The computation of a case: outputs, then new values of the inputs that are written in place."""
Judge = Callable[[DrawnCase, Sequence[torch.Tensor]], Sequence[str]]
"""Says what is wrong with the outputs of a case, a sentence each."""


@dataclass(frozen=True)
class Counterexample:
    """The smallest case that disagrees, the reasons, and how many were drawn before.

    `outputs` are what was computed, `None` where nothing was.
    """

    case: DrawnCase
    reasons: tuple[str, ...]
    drawn: int
    outputs: tuple[torch.Tensor, ...] | None = None


class _Disagrees(Exception):
    """Tells hypothesis that a case is of the kind that is looked for."""


def fuzz(operator: str, examples: int, backend: Backend, judge: Judge) -> Counterexample | None:
    """Draw `examples` cases of `operator` and let `judge` say what is wrong with what `backend` computes.

    The smallest case that disagrees, `None` when none does. An exception of the backend is a disagreement
    too, but for `Refused`. Raises `OperatorError` for an operator without strategy, `MissingPackage`
    without hypothesis.
    """
    smallest: Counterexample | None = None
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
        nonlocal drawn, smallest
        drawn += smallest is None
        example = _counterexample(case, backend, judge, drawn)
        if example is not None:
            smallest = example
            raise _Disagrees

    # hypothesis runs the smallest case last
    with contextlib.suppress(_Disagrees):
        agrees()
    return smallest


def _counterexample(case: DrawnCase, backend: Backend, judge: Judge, drawn: int) -> Counterexample | None:
    try:
        outputs = tuple(backend(case))
    except Refused:
        return None
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is what the case has found
        return Counterexample(case, (f"{type(error).__name__}: {error}",), drawn)
    reasons = tuple(judge(case, outputs))
    return Counterexample(case, reasons, drawn, outputs) if reasons else None


def save(example: Counterexample, directory: str | os.PathLike[str], soc: str = "") -> Path:
    """Write the case with its outputs below `directory`, in a new directory.

    Where nothing was computed, the outputs are those of our operator. Returns the path of an operation CSV,
    which `pytest --acc-opcheck` and ATB's own test runner run. Raises `DumpError`.
    """
    case, outputs = example.case, example.outputs
    if outputs is None:
        outputs = compute(case.operator, case.param, case.inputs)
    stand_alone = from_values(case.operator, case.param, case.inputs, outputs, soc)
    return write_case(stand_alone, _unused(Path(directory) / case.operator))


def _unused(first: Path) -> Path:
    """`first`, with a number behind it where earlier runs have left something."""
    path, number = first, 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}_{number}")
    return path
