"""Lines about how far a run is, with every line due."""

from __future__ import annotations

import re
import threading
from unittest.mock import Mock

import pytest

import acc_pytest.reporting.progress
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.texts import LONGEST, columns
from acc_pytest.running.distribution import while_it_lasts
from tests.slow import slow

from .conftest import QUICKER, Run, dump_options

LINE = re.compile(r"acc: (\d+) of \d+ pairs, [\d.]+ of [\d.]+ kB(, about [\w ]+ left)?")
ALWAYS = """
import acc_pytest.reporting.progress as pace
pace.FIRST = pace.EVERY = 0.0
"""


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acc_pytest.reporting.progress, "FIRST", 0.0)
    monkeypatch.setattr(acc_pytest.reporting.progress, "EVERY", 0.0)


def counts(result: pytest.RunResult) -> list[int]:
    return [int(found[1]) for line in result.outlines if (found := LINE.fullmatch(line))]


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("words", [(), slow(("-v",)), slow(("-q",))])
def test_lines_stand_between_those_of_pytest(acc: Run, faulty: DemoPaths, words: tuple[str, ...]) -> None:
    result = acc(faulty, *words, "--tb=no")
    assert counts(result) == sorted(set(counts(result)))
    assert len(counts(result)) == str(result.stdout).count(" pairs, ") > 1


@pytest.mark.usefixtures("_always")
def test_only_what_is_selected_counts(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, "-k", "RmsNorm", "--tb=no")
    assert re.search(r"^acc: 1 of \d pairs", result.stdout.str(), re.MULTILINE)


@pytest.mark.usefixtures("_always")
def test_nothing_is_said_where_everything_is_quiet(acc: Run, faulty: DemoPaths) -> None:
    assert "acc: " not in acc(faulty, "-q", "-q", "--tb=no").stdout.str()


def test_nothing_is_said_of_a_short_run(acc: Run, faulty: DemoPaths) -> None:
    assert counts(acc(faulty, "--tb=no")) == []


def test_with_workers_it_is_the_same(acc: Run, faulty: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(ALWAYS)
    result = acc(faulty, "-n", "1", "--tb=no", subprocess=True)
    assert len(counts(result)) == str(result.stdout).count(" pairs, ") > 1


def test_what_takes_long_before_the_first_test_is_said() -> None:
    terminal, told = Mock(), threading.Event()

    def write(line: str) -> None:
        if terminal.write_line.call_count > 1:
            told.set()

    terminal.write_line.side_effect = write
    config = Mock()
    config.get_verbosity.return_value = 0
    config.pluginmanager.get_plugin.return_value = terminal
    config.get_terminal_writer.return_value.width_of_current_line = 0
    with while_it_lasts(config, "mapping", first=0.0, every=0.0):
        assert told.wait(60)
    terminal.write_line.assert_called_with("acc: mapping, 0 s so far")


# What a red run prints fits a screen: 80 columns where our words can be broken, never more than 100.


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
    "words",
    [(), ("-v", "-rA"), *map(slow, (("-q",), ("--tb=short",), ("--tb=line",))), ("--tb=no", "-rA", "-v")],
)
def test_a_red_run_fits_the_screen(acc: Run, faulty: DemoPaths, words: tuple[str, ...]) -> None:
    result = acc(faulty, "-oacc_inherited=fail", *words, columns=80)
    assert overlong(result) == []
    assert max(blocks(result), default=0) <= TALLEST
    assert bool(blocks(result)) == (not any(word in words for word in ("--tb=line", "--tb=no")))


@pytest.mark.slow
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


# What a person reads when a pair fails.


PRINTED: list[str] = []


@pytest.fixture
def text(acc: Run, faulty: DemoPaths) -> str:
    """The output of the first failing test alone, of one run for all."""
    if not PRINTED:
        PRINTED.append(acc(faulty, "-x").stdout.str())
    return PRINTED[0]


def test_the_first_line_is_the_verdict(text: str) -> None:
    lines = text.splitlines()
    headline = next(n for n, line in enumerate(lines) if line.startswith("____"))
    assert "ElewiseOperation" in lines[headline]
    assert "layers.1 of step 0" in lines[headline]
    assert re.fullmatch(r"relative L2 [\d.]+, allowed [\d.]+ \(\d+ times\)", lines[headline + 1])


def test_the_table_has_metric_measured_and_allowed_the_headline_s_first(text: str) -> None:
    lines = text.splitlines()
    head = next(n for n, line in enumerate(lines) if line.split() == ["metric", "measured", "allowed"])
    assert re.match("FAIL  relative_euclidean_distance .* <= ", lines[head + 1])
    assert any(line.startswith("ok    new_nonfinite") for line in lines[head:])


def test_every_broken_bound_says_why_and_the_derivation_is_said_once(text: str) -> None:
    lines = text.splitlines()
    why = lines.index("why allowed (default):")
    assert lines[why + 1].startswith("  relative_euclidean_distance: T = 8*(u + ")
    assert [line.split()[0] for line in lines[why + 2 : why + 4]] == [
        "cosine_similarity:",
        "max_absolute_error:",
    ]
    assert text.count("2^-11 of float16") == 1


def test_the_worst_element_shapes_files_and_rule_are_named(text: str, faulty: DemoPaths) -> None:
    lines = text.splitlines()
    assert any(line.startswith("worst element [") and ": golden " in line for line in lines)
    assert any(line.startswith("golden  torch.float32 [") for line in lines)
    assert any(line.startswith("mine    torch.float16 [") for line in lines)
    assert any(line.startswith(f"mine    {faulty.mine}") for line in lines)
    assert any(line.startswith("matched by ") for line in lines)


def test_no_traceback_of_ours(text: str) -> None:
    assert "Traceback" not in text
    assert "acc_pytest/items.py" not in text


def test_the_command_that_is_printed_runs_this_one_test(
    text: str, faulty: DemoPaths, pytester: pytest.Pytester
) -> None:
    import shlex

    (line,) = [line for line in text.splitlines() if line.startswith("re-run: ")]
    words = shlex.split(line.removeprefix("re-run: "))
    assert words[0] == "pytest"
    assert words[1:3] == dump_options(faulty)
    result = pytester.runpytest_inprocess(*QUICKER, *words[1:])
    result.assert_outcomes(failed=1)


def test_an_unexpected_error_keeps_its_traceback(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        metric="""
        def broken(golden, mine):
            if golden.numel() > 1:
                raise KeyError("mine alone")
            return 0.0, ""
        """
    )
    result = acc(clean, "--acc-metric=metric.py:broken", "-k", "RmsNorm and step0", "-x")
    result.stdout.fnmatch_lines(["*KeyError: 'mine alone'*"])
