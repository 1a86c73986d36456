"""The entry that is offered for a failing row accepts that row, and not its neighbours."""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace

import pytest

from acc_pytest.gate.known import KnownGate
from acc_pytest.gate.known_entry import entry_of
from acc_pytest.judging.known import Known, known_from_table
from acc_pytest.reporting.row import Row, RowSide

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TODAY = datetime.datetime.now(datetime.timezone.utc).date()
ROW = Row(
    "d::step1::layers.1::Norm_3",
    "fail",
    "error is 5",
    layer="layers.1",
    step=1,
    mine=RowSide(node="3_layer/1_Norm", name="Norm_3"),
    metrics={"relative_euclidean_distance": 0.856},
)


def known_of(row: Row) -> Known:
    """The entry that is offered for a row, as it is read from a config file."""
    (table,) = tomllib.loads("\n".join(entry_of(row, TODAY)))["known"]
    return known_from_table(table, "pasted", TODAY)


def gate(row: Row) -> KnownGate:
    return KnownGate([known_of(row)])


@pytest.mark.parametrize("error", [0.0, 1e-30, 0.0104999, 0.856, 0.96, 1.0, 123456.0])
@pytest.mark.parametrize("name", ["3_layer/1_Norm", 'a "b" [0]*?', "\u6f02\u79fb\\x", "n\x7f\n"])
def test_the_pasted_entry_accepts_the_row(name: str, error: float) -> None:
    row = replace(ROW, mine=RowSide(node=name), metrics={"relative_euclidean_distance": error})
    assert gate(row).apply(row).verdict == "known"
    worse = replace(row, metrics={"relative_euclidean_distance": error * 1.2 + 1e-33})
    assert gate(row).apply(worse).verdict == "fail"


@pytest.mark.parametrize(
    "other",
    [
        replace(ROW, step=2),
        replace(ROW, layer="layers.2"),
        replace(ROW, mine=RowSide(node="3_layer/2_Norm", name="Norm_4")),
    ],
)
def test_another_operator_layer_or_step_stays_red(other: Row) -> None:
    assert gate(ROW).apply(other).verdict == "fail"
