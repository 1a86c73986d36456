"""Rows of `statistic.csv`."""

from __future__ import annotations

from pathlib import Path

import torch

from acc_pytest.lab.atb.probe.statistic_csv import STATISTIC_COLUMNS, StatisticRows, statistic_row

PATH = ("1_Prefill_layer", "0_RmsNormOperation", "0_RmsNormKernel")


def test_a_row_with_statistics() -> None:
    text = statistic_row(
        "0_39943", 0, PATH, "outtensor0.bin", torch.full((1, 2), 4.0), "/o/outtensor0.bin", True
    )
    assert text == (
        "0_39943,0,Prefill_layer/RmsNormOperation/RmsNormKernel,RmsNormKernel,1_0_0,output,0,float,nd,1x2,"
        "4.000000,4.000000,4.000000,5.656854,/o/outtensor0.bin\n"
    )
    assert len(text.split(",")) == len(STATISTIC_COLUMNS)


def test_what_was_not_asked_for_is_not_available() -> None:
    x = torch.zeros(3, dtype=torch.int64)
    text = statistic_row("0_1", 2, ("0_A",), "intensor1_x.bin", x, "", False)
    assert text == "0_1,2,A,A,0,input,1_x,int64,nd,3,N/A,N/A,N/A,N/A,N/A\n"


def test_negative_numbers_stay_and_minus_infinity_drops_the_row() -> None:
    assert ",-1.500000," in statistic_row("0_1", 0, ("0_A",), "intensor0.bin", torch.tensor([-1.5]), "", True)
    infinite = torch.tensor([0.0, float("-inf")])
    assert statistic_row("0_1", 0, ("0_A",), "intensor0.bin", infinite, "", True) == ""


def test_squares_are_summed_in_double() -> None:
    text = statistic_row("0_1", 0, ("0_A",), "intensor0.bin", torch.tensor([1e10, 1e-8]), "", True)
    assert text.split(",")[13] == "10000000000.000000"


def test_rows_come_in_the_order_of_the_graph_although_children_end_first(tmp_path: Path) -> None:
    rows, file = StatisticRows(), f"{tmp_path}/statistic.csv"
    rows.add(("1_L", "0_A", "0_K"), "k in\n", "k out\n", file)
    rows.add(("1_L", "0_A"), "a in\n", "a out\n", file)
    rows.add(("1_L", "1_B"), "b in\n", "b out\n", file)
    assert not Path(file).exists()
    rows.add(("1_L",), "in\n", "out\n", file)
    rows.add(("2_M",), "m in\n", "", file)
    rows.add(("3_N",), "", "", file)
    lines = Path(file).read_text().splitlines()
    assert lines[0] == ",".join(STATISTIC_COLUMNS)
    assert lines[1:] == ["in", "a in", "k in", "k out", "a out", "b in", "b out", "out", "m in"]
