"""sglang_dims: what a program says of the dimensions of its tensors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.dumps.sglang import Axis, Dims, parsed_dims

SIZES = {"tp_rank": 1, "tp_size": 4, "ep_rank": 9, "ep_size": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t h", Dims(("t", "h"), (), {})),
        ("t h # tp:replicated", Dims(("t", "h"), (Axis("tp", "replicated", None, 1, 4),), {})),
        (
            "t (num_heads*head_dim)[tp]",
            Dims(("t", "num_heads*head_dim"), (Axis("tp", "sharded", 1, 1, 4),), {}),
        ),
        ("t h[tp:partial]", Dims(("t", "h"), (Axis("tp", "partial", 1, 1, 4),), {})),
        (
            "b s[cp:zigzag,sp] 1 d # dp:=attn_dp",
            Dims(
                ("b", "s", "1", "d"),
                (Axis("cp", "sharded", 1, order="zigzag"), Axis("sp", "sharded", 1)),
                {"dp": "attn_dp"},
            ),
        ),
        ("t[ep:sharded+natural]", Dims(("t",), (Axis("ep", "sharded", 0),), {})),
    ],
)
def test_an_annotation(text: str, expected: Dims) -> None:
    assert parsed_dims(text, SIZES) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# tp:replicated",
        "t h[tp] d[tp]",
        "t h[tp] # tp:replicated",
        "t h[tp:sideways]",
        "t (h",
        "t # tp:sharded",
        "t h[tp,]",
        "t " * 600,
    ],
)
def test_what_is_no_annotation_says_nothing(text: str) -> None:
    assert parsed_dims(text, SIZES) is None


@given(st.text(alphabet="th1[]():,*#+= tp", max_size=40))
def test_any_text_is_read_or_none(text: str) -> None:
    found = parsed_dims(text, SIZES)
    assert found is None or found.names
