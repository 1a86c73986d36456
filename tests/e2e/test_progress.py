"""Lines about how far a run is, with every line due."""

from __future__ import annotations

import re
import threading
from unittest.mock import Mock

import pytest

import acc_pytest.reporting.progress
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.running.distribution import while_it_lasts

from .conftest import Run

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
@pytest.mark.parametrize("words", [(), ("-v",), ("-q",)])
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
