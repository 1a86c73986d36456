"""sglang_names: file names of every era, and values that break their grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.dumps.sglang_calls import SglangFile, is_sglang_file, sglang_file

NOW = "step=2___rank=1___dump_index=10___name=attn_q___recompute_status=disabled___layer_id=3.pt"


def read(name: str, meta: Mapping[str, Any] | None = None, rank: int = 0) -> SglangFile | None:
    return sglang_file(f"/dump/{name}", 5, lambda _: meta or {}, rank)


def never(path: str) -> Mapping[str, Any]:
    raise AssertionError(f"{path} was read")


def test_a_name_says_all_without_reading_the_file() -> None:
    found = sglang_file(f"/dump/{NOW}", 0, never)
    assert found == SglangFile(f"/dump/{NOW}", 2, 1, 10, "attn_q", 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("forward_pass_id=1___rank=2___name=a___dump_index=7___layer_id=4", (0, 2, 7, "a", 4, ())),
        ("forward_pass_id=3___rank=0___dump_index=7___name=a", (2, 0, 7, "a", None, ())),
        ("forward_pass_id=1___name=a", (0, 6, 5, "a", None, ())),
        (
            "step=0___rank=0___dump_index=1___name=a___recompute_status=disabled___pp_rank=0___attn_tp_rank=3",
            (0, 0, 1, "a", None, ()),
        ),
        (
            "step=0___rank=0___dump_index=1___name=a___recompute_status=disabled___expert=3___scale=0.5",
            (0, 0, 1, "a", None, (("expert", "3"), ("scale", "0.5"))),
        ),
    ],
)
def test_every_era(name: str, expected: tuple[object, ...]) -> None:
    found = read(f"{name}.pt", rank=6)
    assert found is not None
    assert (found.step, found.rank, found.index, found.name, found.layer, found.kwargs) == expected


@pytest.mark.parametrize("name", ["a___b", "a___b=c", "a=b", "a___rank=9", "a___name=b", "a__b.c", "___a"])
def test_a_name_may_hold_what_separates_tags(name: str) -> None:
    found = sglang_file(
        f"step=0___rank=1___dump_index=2___name={name}___recompute_status=disabled.pt", 0, never
    )
    assert found is not None
    assert (found.name, found.rank, found.kwargs) == (name, 1, ())


def test_the_file_is_asked_where_a_name_can_be_read_in_two_ways() -> None:
    name = "step=0___rank=0___dump_index=2___name=grad__a___b=c.pt"
    one, other = read(name, {"name": "grad__a___b=c"}), read(name, {"name": "grad__a", "b": "c"})
    assert one is not None
    assert other is not None
    assert (one.name, one.kwargs) == ("grad__a___b=c", ())
    assert (other.name, other.kwargs) == ("grad__a", (("b", "c"),))


def test_what_ran_again_is_told_from_what_ran() -> None:
    for status, again in (("disabled", False), ("original", False), ("recompute", True)):
        found = read(f"step=0___rank=0___dump_index=2___name=a___recompute_status={status}.pt")
        assert found is not None
        assert found.recomputed == again


@pytest.mark.parametrize(
    "name",
    [
        "step=x___rank=0___dump_index=2___name=a.pt",
        "step=0___rank=-1___dump_index=2___name=a.pt",
        "step=0___rank=0___dump_index=2___name=.pt",
        "step=0___rank=0___dump_index=999999999999999999999___name=a.pt",
        "step=٣___rank=0___dump_index=2___name=a.pt",
    ],
)
def test_other_names_are_none(name: str) -> None:
    assert read(name) is None


@given(st.text(max_size=80))
def test_any_name_is_read_or_none(text: str) -> None:
    for name in (f"step=0___{text}.pt", f"step=0___rank=0___name={text}.pt"):
        is_sglang_file(name)
        found = read(name, {"name": 3, "step": None, "layer_id": text})
        assert found is None or found.step == 0


def test_only_files_of_the_dumper_are_taken_for_such() -> None:
    assert is_sglang_file(NOW)
    for name in ("comparator_report.jsonl", "step=0.pt", "name=a.pt", "x.pth", NOW[:-3]):
        assert not is_sglang_file(name)
