"""Masks of which only statistics were dumped are compared by how much they let be seen."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch

from acc_pytest.comparison.statistics import _as_mask
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.statistics import statistics_of

KEPT = ("max", "min", "mean", "l2norm")


def stated(least: float, hidden: int, dtype: torch.dtype = torch.float64) -> Statistics:
    mask = torch.zeros(64, dtype=dtype)
    mask[:hidden] = least
    return statistics_of(mask.double())


@pytest.mark.parametrize("least", [-1e4, -65504.0, torch.finfo(torch.float32).min])
def test_whatever_number_hides_it_is_the_share_that_counts(least: float) -> None:
    seen = _as_mask(stated(least, 16))
    assert [getattr(seen, name) for name in KEPT] == pytest.approx([0.0, -1.0, -0.25, 4.0])
    assert _as_mask(stated(least, 24)).mean == pytest.approx(-0.375)


def test_what_hides_nothing_or_has_no_least_number_stays_as_it_is() -> None:
    for untouched in (stated(-3.0, 5), Statistics(0.0, -math.inf, -math.inf, math.inf)):
        assert _as_mask(untouched) is untouched


def test_a_norm_that_overflowed_says_nothing() -> None:
    seen = _as_mask(Statistics(0.0, -65504.0, -100.0, math.inf))
    assert (seen.l2norm, seen.min) == (None, -1.0)
    assert {field.name for field in fields(seen)} >= set(KEPT)
