"""What a red run prints fits a screen: 80 columns where our words can be broken, never more than 100."""

from __future__ import annotations

import re

import pytest

from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.texts import LONGEST, columns

from .conftest import Run

TALLEST = 40
"""Lines of a failure."""


def overlong(result: pytest.RunResult) -> list[str]:
    """Lines that do not fit, but for what pytest and xdist say of themselves and paths to be pasted."""
    theirs = ("rootdir: ", "plugins: ", "platform ", "[gw0] linux", "    --acc-golden=", "    --acc-mine=")
    return [line for line in result.outlines if columns(line) > LONGEST and not line.startswith(theirs)]


def blocks(result: pytest.RunResult) -> list[int]:
    """Heights of the failures, headlines included."""
    lines = result.outlines
    starts = [number for number, line in enumerate(lines) if re.fullmatch(r"_+ .* at .* of step .* _+", line)]
    end = next((n for n, line in enumerate(lines) if re.fullmatch("=+ acc-pytest =+", line)), len(lines))
    return [after - start for start, after in zip(starts, [*starts[1:], end])]


@pytest.mark.parametrize(
    "words", [(), ("-v", "-rA"), ("-q",), ("--tb=short",), ("--tb=line",), ("--tb=no", "-rA", "-v")]
)
def test_a_red_run_fits_the_screen(acc: Run, faulty: DemoPaths, words: tuple[str, ...]) -> None:
    result = acc(faulty, "-oacc_inherited=fail", *words, columns=80)
    assert overlong(result) == []
    assert max(blocks(result), default=0) <= TALLEST
    assert bool(blocks(result)) == (not any(word in words for word in ("--tb=line", "--tb=no")))


def test_it_fits_with_workers_too(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, "-n", "1", "-rA", "-v", columns=80, subprocess=True)
    assert overlong(result) == []
    assert 0 < max(blocks(result)) <= TALLEST


def test_the_short_summary_has_both_numbers_where_pytest_would_cut_them(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, columns=80)
    result.stdout.fnmatch_lines(
        ["FAILED msit_dump::step0::layers.1::ElewiseOperation_3_3 - L2 0.86 > 0.0092"]
    )
    result = acc(faulty, columns=100)
    result.stdout.fnmatch_lines(["FAILED *_3_3 - relative L2 0.856, allowed 0.00921"])
    result = acc(faulty, "--tb=line", columns=80)
    result.stdout.fnmatch_lines(["relative L2 0.856, allowed 0.00921 (93 times)"])


def test_reasons_of_expected_failures_and_skips_fit(acc: Run, partly: DemoPaths) -> None:
    result = acc(partly, "-rxs", columns=80)
    found = [line for line in result.outlines if line.startswith(("XFAIL", "SKIPPED"))]
    assert found
    assert overlong(result) == []
