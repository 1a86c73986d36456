"""Formats of single operators: operation CSVs and parameters, computed and judged as `--acc-opcheck` does."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from acc_pytest.errors import AccError
from acc_pytest.lab import strategies
from acc_pytest.lab.strategies.device import DrawnCase
from acc_pytest.opcheck.run import run_entry
from acc_pytest.opcheck.settings import OpcheckSettings, listed
from acc_pytest.opcheck.stand_alone import CSV, from_values, write_case
from acc_pytest.operators import compute

from . import dumps, json_mutations, text_mutations
from .case import Format, Seed

_EACH = 2
"""Cases drawn of each operator."""
_LARGEST = 4096
"""Elements of an input; a case of more says nothing more and takes its time."""


def formats() -> list[Format]:
    """All of them."""
    return [
        Format("op-csv", _csvs, text_mutations.mutated, _checked_csv),
        Format("op-param", _params, json_mutations.mutated, _checked_directory),
    ]


@functools.cache
def _operators(shelf: Path) -> list[Path]:
    """A folder for each drawn case: the CSV, the parameters and the tensors."""
    homes = []
    for number, case in enumerate(case for operator in strategies.covered() for case in _drawn(operator)):
        home = shelf / "operators" / f"{number}"
        try:
            values = compute(case.operator, case.param, case.inputs)
            write_case(from_values(case.operator, case.param, case.inputs, values), home)
        except AccError:
            continue  # a type that ATB's files have not
        homes.append(home)
    return homes


def _drawn(operator: str) -> Iterator[DrawnCase]:
    """Small cases of an operator, the same ones in every run."""
    found: list[DrawnCase] = []

    @seeded(1)
    @settings(max_examples=4 * _EACH, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategies.cases(operator))
    def keep(case: DrawnCase) -> None:
        if all(tensor is None or tensor.numel() <= _LARGEST for tensor in case.inputs):
            found.append(case)

    keep()
    yield from found[:: max(1, len(found) // _EACH)][:_EACH]


def _csvs(directory: Path) -> list[Seed]:
    of_probe = dumps.seeds(dumps.operations(directory.parent), "operation_tensors_*.csv")
    return [*(Seed(home, CSV) for home in _operators(directory.parent)), *of_probe]


def _params(directory: Path) -> list[Seed]:
    return [
        Seed(home, str(next(home.glob("*/op_param.json")).relative_to(home)))
        for home in _operators(directory.parent)
    ]


def _checked_csv(home: Path, file: str) -> None:
    _checked(str(home / file))


def _checked_directory(home: Path, _file: str) -> None:
    _checked(str(home))


def _checked(source: str) -> None:
    """The operations that the source lists: rows say what is wrong with one, nothing is raised."""
    for _, entry in listed(OpcheckSettings(sources=(source,)))[:3]:
        for row in run_entry(entry):
            repr(row)
