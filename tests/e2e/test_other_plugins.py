"""Generated tests beside plugins and options that people have anyway."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import Run

REPEATER = """
import pytest

class Repeater:
    def pytest_configure(self, config):
        config.addinivalue_line("markers", "flaky(reruns, condition): may be run again")

    def pytest_collection_modifyitems(self, items):
        marked = [item for item in items if item.get_closest_marker("flaky")]
        print("marked:", len(marked), "of", len(items))

def pytest_configure(config):
    config.pluginmanager.register(Repeater(), "rerunfailures")
"""


def test_tests_are_marked_against_repetition_where_something_repeats(
    acc: Run, partly: DemoPaths, pytester: pytest.Pytester
) -> None:
    assert "marked" not in acc(partly, "--co", "-q").stdout.str()
    pytester.makeconftest(REPEATER)
    pytester.makepyfile(test_own="def test_own(): pass")
    result = acc(partly, "--co", "-q", "-s", "--strict-markers")
    result.stdout.fnmatch_lines(["marked: 42 of 42"])


@pytest.mark.parametrize(
    ("plugin", "words"),
    [("pytest_rerunfailures", ("--reruns", "2")), ("pytest_retry", ("--retries", "2"))],
)
def test_a_deterministic_failure_is_not_run_again(
    acc: Run, faulty: DemoPaths, plugin: str, words: tuple[str, ...]
) -> None:
    pytest.importorskip(plugin, reason=f"{plugin} is not installed")
    result = acc(faulty, *words, "--tb=no", subprocess=True)
    result.assert_outcomes(failed=1, passed=65)
    result.stdout.no_fnmatch_line("* rerun*")
    result.stdout.no_fnmatch_line("* retried*")


@pytest.mark.parametrize("words", [("--co",), ("--setup-plan",), ("--setup-only", "--co")])
def test_what_runs_nothing_reports_nothing(acc: Run, clean: DemoPaths, words: tuple[str, ...]) -> None:
    result = acc(clean, *words)
    assert result.ret == pytest.ExitCode.OK
    assert not Path("out").exists()
    assert "verdict hash" not in result.stdout.str()


def test_a_run_of_everything_in_every_worker_is_refused(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, "--dist=each", "--tx=2*popen", subprocess=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --dist each runs every comparison *; use --dist load*"])


@pytest.mark.parametrize("words", [("-p", "no:terminal"), ("-p", "no:cacheprovider"), ("-p", "no:junitxml")])
def test_without_plugins_of_pytest_the_verdict_is_the_same(
    acc: Run, faulty: DemoPaths, words: tuple[str, ...]
) -> None:
    assert acc(faulty, *words).ret == 1
