"""Drawn cases on a device: it computes them, and our operators say what is right.

The standards of single-operator checks judge, so that a case that is found fails in the same words when it is
checked again from its files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import AccError, OperatorError
from ...judging.standards import Standard
from ...opcheck import backends
from ...opcheck.run import run_entry
from ...opcheck.settings import OpcheckSettings
from ...opcheck.stand_alone import from_values, write_case
from ...reference.sources import entries_of_csv


class Refused(AccError):
    """The device does not take a drawn case: nothing can be said of it."""


@dataclass
class Device:
    """A backend of single-operator checks, for drawn cases, and the standard that judges what it computes.

    `refused` are the reasons for which cases were not taken; kernels take fewer types and shapes than the
    rules that cases are drawn by.
    """

    backend: backends.Backend
    standard: Standard
    soc: str = ""
    refused: list[str] = field(default_factory=list)

    def compute(self, case: DrawnCase) -> Sequence[torch.Tensor]:
        """The outputs of the device for `case`. Raises `Refused`."""
        # a device that shares our memory may write into its inputs
        inputs = [None if tensor is None else tensor.clone() for tensor in case.inputs]
        try:
            return self.backend(case.operator, case.param, inputs)
        except (RuntimeError, OperatorError) as error:
            reason = str(error).partition("\n")[0]
            self.refused.append(reason)
            raise Refused(reason) from error

    def judge(self, case: DrawnCase, outputs: Sequence[torch.Tensor]) -> list[str]:
        """The errors that the standard finds in `outputs`, a sentence an output."""
        return disagreements(case, outputs, self.standard, self.soc)


def disagreements(
    case: DrawnCase, outputs: Sequence[torch.Tensor], standard: Standard, soc: str = ""
) -> list[str]:
    """The errors that `standard` finds in `outputs` of `case` against our operators, a sentence an output."""
    with tempfile.TemporaryDirectory() as home:
        csv = write_case(from_values(case.operator, case.param, case.inputs, outputs, soc), home)
        return [
            f"{row.mine.slot}: {row.sentence}"
            for entry in entries_of_csv(csv, "drawn")
            for row in run_entry(entry, OpcheckSettings((), standard=standard.name, soc=soc))
            if row.red
        ]


# One drawn case: an operator, its parameters and inputs, readable when a test prints it.


_MAX_VALUES = 16


@dataclass(frozen=True)
class DrawnCase:
    """The arguments of `acc_pytest.operators.compute`: an operator's name, parameters, inputs in order."""

    operator: str
    param: Mapping[str, Any]
    inputs: tuple[torch.Tensor | None, ...]

    def __repr__(self) -> str:
        """The values of small tensors, the shapes of large ones: hypothesis prints this of a failing case."""
        inputs = ", ".join(_text(tensor) for tensor in self.inputs)
        return f"DrawnCase({self.operator!r}, {dict(self.param)!r}, ({inputs}))"


def _text(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    kind = str(tensor.dtype).removeprefix("torch.")
    values = f" {tensor.tolist()}" if tensor.numel() <= _MAX_VALUES else ""
    return f"{kind}{list(tensor.shape)}{values}"
