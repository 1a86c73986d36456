"""The page without its script: verdict, counts and roots are plain HTML, whatever names there are."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from acc_pytest.reporting.html.page import ROOTS
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis, Root, Run

from .made import HOSTILE, inherited, made_row
from .test_page import written


def seen(text: str) -> str:
    """What a browser without JavaScript shows: the text of the body, entities resolved."""
    body = text.partition("<body>")[2]
    body = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", body))


def root_of(row: Row) -> Root:
    assert row.number is not None
    return Root(row.number, row.name, row.test_id, row, 1, 1.8, 0.5, "dataflow", "", again="again at step 1")


def test_verdict_counts_and_roots_are_there_without_javascript(tmp_path: Path) -> None:
    row = made_row(2, share=40, layer=1)
    rows = [made_row(0), row, inherited(made_row(4, share=9), row)]
    run = Run(command=("pytest", "--acc-golden=g", "--acc-mine=m", "--acc-html=x.html"))
    text = seen(written(tmp_path, rows, run, diagnosis=Diagnosis((root_of(row),), 1, "")))
    for said in (
        "Breaks at RopeOperation, layers.1, prefill: 40 times its bound",
        "1  fail", "1  inherited", "RopeOperation_1_2", "again at step 1", "50% of the final error",
        "relative_euclidean_distance 0.16, allowed <= 0.004",
        "golden: model.layers.1.part2 output /g/x.pth", "mine: 1_RopeOperation_1_2 output[0] /m/y.bin",
        "pytest --acc-golden=g --acc-mine=m dump::step0::layers.1::RopeOperation_1_2",
    ):  # fmt: skip
        assert said in text


def test_the_worst_stand_there_where_no_root_is_known(tmp_path: Path) -> None:
    text = seen(written(tmp_path, [made_row(3, share=7)]))
    assert "Worst by their bounds" in text
    assert "SelfAttentionOperation_0_3" in text


def test_more_roots_than_there_is_room_for_are_counted(tmp_path: Path) -> None:
    rows = [made_row(n, share=7) for n in range(ROOTS + 3)]
    text = seen(written(tmp_path, rows, diagnosis=Diagnosis(tuple(map(root_of, rows)), 0, "")))
    assert "3 more roots are in the rows." in text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_there_too(tmp_path: Path, name: str) -> None:
    row = made_row(0, share=7, sentence=name, test_id=f"x::{name}")
    text = written(tmp_path, [row], diagnosis=Diagnosis((root_of(row),), 0, ""), problems=(name,))
    markup = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    tags = set(re.findall(r"<(/?\w+)", markup))
    plain = re.sub(r"<(script|style).*?</\1>", "", written(tmp_path, [made_row(0, share=7)]), flags=re.DOTALL)
    assert tags - {"pre", "/pre"} <= set(re.findall(r"<(/?\w+)", plain)) | {"ul", "/ul"}
