"""What is said of how far the nodes are."""

from __future__ import annotations

from acc_pytest.remote.engine.engine import EnginePace
from acc_pytest.reporting.progress import EVERY, FIRST


def test_a_line_has_nodes_pace_and_what_is_left() -> None:
    pace = EnginePace()
    pace.begin(100.0, 2000, 8 * 10**9)
    pace.ended(500, 2 * 10**9)
    assert not pace.due(100.0 + FIRST - 1)
    assert pace.due(100.0 + FIRST)
    assert pace.line(110.0, 2) == "acc: 2 nodes, 0.2 GB/s, 1,500 of 2,000 pairs left, about 30 s"
    assert not pace.due(110.0 + EVERY - 1)
    assert pace.due(110.0 + EVERY)
    pace.ended(1500, 6 * 10**9)
    assert not pace.due(1000.0)


def test_nothing_is_estimated_before_anything_came_back() -> None:
    pace = EnginePace()
    pace.begin(0.0, 3, 10)
    assert pace.line(10.0, 1) == "acc: 1 node, 3 of 3 pairs left"
