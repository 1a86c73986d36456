"""Fuzzing one operator: cases are drawn until one disagrees, which is then made as small as possible.

    found = fuzz("LinearOperation", examples=200)
    found.wrong      # what is wrong, one sentence an output; None instead of `found` when nothing was
    save(found, "acc_fuzz")

Importing this imports hypothesis and torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hypothesis import HealthCheck, Verbosity, given, settings

from ..opcheck.stand_alone import StandAlone, write_case
from ..operators import compute, operator_of
from . import cases
from .drawn import DrawnCase
from .oracles import disagreements, expected

Backend = Callable[[DrawnCase], Sequence[torch.Tensor]]
"""What computes a case: outputs, then new values of the inputs that are written in place."""


@dataclass(frozen=True)
class Found:
    """The smallest case that disagrees, what is wrong with its outputs, and how many were drawn before."""

    case: DrawnCase
    wrong: tuple[str, ...]
    drawn: int


class _Disagrees(Exception):
    """Tells hypothesis that a case is of the kind that is looked for."""


def on_cpu(case: DrawnCase) -> Sequence[torch.Tensor]:
    """The case on our own operators."""
    return compute(case.operator, case.param, case.inputs)


def fuzz(operator: str, examples: int, backend: Backend = on_cpu) -> Found | None:
    """Draw `examples` cases of `operator` and compare what `backend` computes with the oracle.

    The smallest case that disagrees, `None` when none does. An exception of the backend is a disagreement
    too. Raises `OperatorError` for an operator without strategy, `MissingPackage` without hypothesis.
    """
    worst: list[tuple[DrawnCase, tuple[str, ...]]] = []
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
        wrong = _wrong(case, backend)
        if wrong:
            worst[:] = [(case, wrong)]
            raise _Disagrees

    try:
        agrees()
    except _Disagrees:
        # hypothesis runs the smallest case last
        return Found(*worst[0], drawn)
    return None


def _wrong(case: DrawnCase, backend: Backend) -> tuple[str, ...]:
    try:
        outputs = backend(case)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is what the case has found
        return (f"{type(error).__name__}: {error}",)
    return tuple(disagreements(case, outputs))


def save(found: Found, directory: str | os.PathLike[str]) -> Path:
    """Write the case with the oracle's outputs below `directory`, in a new directory; the path of its CSV.

    The CSV is an operation CSV: `pytest --acc-opcheck` and ATB's own test runner run it. Raises `DumpError`.
    """
    case = found.case
    operator = operator_of(case.operator, case.param)
    values = [one.rounded() for one in expected(case)]
    count = len(values) - len(operator.writes)
    written = dict(zip(operator.writes, values[count:]))
    stand_alone = StandAlone(case.operator, case.param, case.inputs, values[:count], written)
    return write_case(stand_alone, _unused(Path(directory) / case.operator))


def _unused(wanted: Path) -> Path:
    """`wanted`, with a number behind it where earlier runs have left something."""
    place, number = wanted, 1
    while place.exists():
        number += 1
        place = wanted.with_name(f"{wanted.name}_{number}")
    return place
