"""How far a long run is, by a clock that the test turns."""

from __future__ import annotations

import pytest

from acc_pytest.reporting.progress import EVERY, FIRST, Pace, duration, still


def test_short_runs_say_nothing_and_long_ones_every_half_minute() -> None:
    pace = Pace(100.0)
    assert not pace.due(100.0 + FIRST - 1)
    assert pace.due(100.0 + FIRST)
    pace.line(110.0, "pairs", (1, 0, 1), (2, 0, 2))
    assert not pace.due(110.0 + EVERY - 1)
    assert pace.due(110.0 + EVERY)


def test_in_a_run_of_hours_lines_come_less_often() -> None:
    pace = Pace(0.0)
    pace.line(7200.0, "pairs", (1, 0, 1), (2, 0, 2))
    assert not pace.due(7200.0 + 300)
    assert pace.due(7200.0 + 360)


def test_the_time_left_is_that_of_the_bytes_and_not_of_the_tests() -> None:
    pace = Pace(0.0)
    few_but_large = pace.line(60.0, "pairs", (2, int(9e9), int(9e9)), (1000, int(10e9), int(10e9)))
    assert few_but_large == "acc: 2 of 1,000 pairs, 9 of 10 GB, about 7 s left"
    many_but_small = pace.line(60.0, "pairs", (999, int(1e9), int(1e9)), (1000, int(10e9), int(10e9)))
    assert many_but_small == "acc: 999 of 1,000 pairs, 1 of 10 GB, about 9 min left"


def test_what_has_no_bytes_says_none() -> None:
    assert (
        Pace(0.0).line(10.0, "operators", (1, 0, 5), (3, 0, 15)) == "acc: 1 of 3 operators, about 20 s left"
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (154, "2 min 30 s"), (3600, "1 h"), (7505, "2 h 5 min")],
)
def test_durations_are_read_at_a_glance(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_what_cannot_say_how_far_it_is_says_how_long_it_has_been() -> None:
    assert still(70.0, 30.0, "reading the dumps") == "acc: reading the dumps, 40 s so far"
