"""without_values: what torch makes of a tensor of the meta device is no result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

from acc_pytest.diagnosis.golden_model.replay import refusing_mixtures
from acc_pytest.errors import OperatorError

REAL = torch.ones(3, 3)
META = torch.empty(3, 3, device="meta")


@pytest.mark.parametrize(
    "mixed", [lambda: REAL @ META, lambda: REAL.clone().add_(META), lambda: REAL.T.mm(META)]
)
def test_values_made_of_none_are_refused(mixed: Callable[[], torch.Tensor]) -> None:
    with refusing_mixtures(nn.Linear(3, 3, device="meta")), pytest.raises(OperatorError, match="not there"):
        mixed()


def test_what_has_no_values_itself_and_what_has_all_are_made() -> None:
    with refusing_mixtures(nn.Linear(3, 3, device="meta")):
        assert (META @ REAL).is_meta
        assert torch.equal(REAL @ REAL, torch.full((3, 3), 3.0))


def test_a_module_with_all_its_weights_is_computed_as_ever() -> None:
    assert isinstance(refusing_mixtures(nn.Linear(3, 3)), contextlib.nullcontext)
