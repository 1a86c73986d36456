"""Ranges, ids, names, devices and places: one rule each."""

from __future__ import annotations

import pytest

from acc_pytest.lab.atb.probe import settings
from acc_pytest.lab.atb.probe.settings import EVERY, NONE


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("0,0", ((0, 0),)),
        ("0,1,5,7", ((0, 1), (5, 7))),
        ("3", NONE),
        ("0,1,9", ((0, 1),)),
        ("all", EVERY),
        ("none", NONE),
        ("", NONE),
    ],
)
def test_ranges_are_pairs_and_an_odd_end_is_ignored(text: str, ranges: settings.Ranges) -> None:
    assert settings.parse_ranges("ATB_SAVE_TENSOR_RANGE", text) == ranges


def test_a_range_holds_both_its_ends() -> None:
    assert [n for n in range(6) if settings.in_ranges(((1, 2), (4, 4)), n)] == [1, 2, 4]
    assert settings.in_ranges(EVERY, 10**9)
    assert not settings.in_ranges(NONE, 0)


def test_text_that_is_no_number_counts_as_zero_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="X='one' is not a whole number"):
        assert settings.integer("X", "one") == 0
    with pytest.warns(UserWarning, match="ER='b'"):
        assert settings.parse_ranges("ER", "b,2") == ((0, 2),)


def test_an_id_selects_itself_and_with_child_what_lies_below() -> None:
    assert settings.id_selected(("2_0",), "2_0", child=False)
    assert not settings.id_selected(("2_0",), "2_0_1", child=False)
    assert settings.id_selected(("2_0",), "2_0_1", child=True)


def test_an_id_is_no_prefix_of_a_longer_number() -> None:
    assert not settings.id_selected(("1_1",), "1_10", child=True)
    assert not settings.id_selected(("2",), "20", child=True)


def test_a_name_is_lower_cased_but_not_what_it_must_start_with() -> None:
    assert settings.name_selected(("linear",), "LinearOperation")
    assert not settings.name_selected(("Linear",), "LinearOperation")
    assert not settings.name_selected(("operation",), "LinearOperation")


def test_devices_are_compared_as_text_and_none_means_all() -> None:
    assert settings.device_selected((), 3)
    assert settings.device_selected(("0", "3"), 3)
    assert not settings.device_selected(("03",), 3)


BOTH = (("before", "in"), ("before", "out"), ("after", "in"), ("after", "out"))


@pytest.mark.parametrize(
    ("time", "splits", "expected"),
    [
        (0, False, BOTH[:2]),
        (1, False, BOTH[2:]),
        (2, False, BOTH),
        (3, False, ()),
        (1, True, (BOTH[0], BOTH[3])),
        (0, True, (BOTH[0], BOTH[3])),
    ],
)
def test_time_says_where_tensors_go(time: int, splits: bool, expected: tuple[settings.Place, ...]) -> None:
    assert settings.places(time, 2, in_before_out_after=splits) == expected


@pytest.mark.parametrize(("part", "sides"), [(0, {"in"}), (1, {"out"}), (2, {"in", "out"}), (7, set())])
def test_part_keeps_inputs_or_outputs(part: int, sides: set[str]) -> None:
    assert {side for _, side in settings.places(2, part, in_before_out_after=False)} == sides
