"""Workers of pytest-xdist cost seconds each: none is started for nothing, torch waits for the first pair."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acc_pytest.demo import DemoPaths
from acc_pytest.modes.workers import WORTH, start_fewer, worth
from acc_pytest.run_state import AUTO

from .conftest import QUICKER, Run, dump_options

NOTES_TORCH = """
import pathlib, sys, pytest

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    worker = getattr(session.config, "workerinput", None)
    if worker:
        pathlib.Path(worker["workerid"]).write_text(str("torch" in sys.modules))
"""
ONE, OTHER = (f"msit_dump::step0::model::GatherOperation_{number}_0" for number in (0, 1))


def torch_of_workers(home: Path) -> list[str]:
    """For each worker of the run, whether it had torch at its end."""
    return [file.read_text() for file in home.glob("gw*")]


def test_a_worker_without_a_pair_does_without_torch(clean: DemoPaths, pytester: pytest.Pytester) -> None:
    """In programs that nobody has given torch (`python_with_torch`)."""
    pytester.makeconftest(NOTES_TORCH)
    words = ("-n2", "-k", "GatherOperation_0_0 and model")
    pytester.runpytest_subprocess(*QUICKER, *dump_options(clean), *words).assert_outcomes(passed=1)
    assert sorted(torch_of_workers(pytester.path)) == ["False", "True"]


@pytest.mark.parametrize(("number", "named", "started"), [("8", (ONE, OTHER), 2), ("auto", (), 1)])
def test_no_worker_is_started_for_nothing(
    number: str,
    named: tuple[str, ...],
    started: int,
    acc: Run,
    clean: DemoPaths,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "4")
    pytester.makeconftest(NOTES_TORCH)
    result = acc(clean, f"-n{number}", *named, subprocess=True)
    assert result.ret == 0
    assert len(torch_of_workers(pytester.path)) == started


@pytest.mark.usefixtures("python_with_torch")
def test_rows_of_a_worker_arrive_where_nothing_of_ours_was_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_plain():
            pass

        def test_compared(acc_compare):
            acc_compare([1.0], [1.0])

        def test_wrong(acc_compare):
            acc_compare([1.0], [2.0])
        """
    )
    result = pytester.runpytest_subprocess(*QUICKER, "-n1")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*= acc-pytest =*", "verdicts: 1 pass, 1 fail"])


def run_of(*tx: str, args: tuple[str, ...] = (), auto: bool = False) -> Any:
    """What of a configuration matters here."""
    options = SimpleNamespace(tx=list(tx), numprocesses=len(tx))
    return SimpleNamespace(option=options, args=list(args), stash={AUTO: True} if auto else {})


@pytest.mark.parametrize(
    ("config", "started"),
    [
        (run_of("popen", "popen", "popen", "popen"), 3),
        (run_of("popen", "popen"), 2),
        (run_of("popen", "popen", "popen", "popen", args=("test_own.py",)), 4),
        (run_of("popen", "popen", "popen", "popen", auto=True), 1),
        (run_of("ssh=a", "ssh=b", "ssh=c", "ssh=d"), 4),
    ],
    ids=["as many as tests", "as many as asked for", "people's own tests", "auto: little to do", "elsewhere"],
)
def test_so_many_are_left_of_the_workers(config: Any, started: int) -> None:
    tests = [SimpleNamespace(compares=True, files=lambda: ())] * 3
    mode: Any = SimpleNamespace(chosen=tests, costs_by_size=True)
    start_fewer(config, [mode])
    assert len(config.option.tx) == config.option.numprocesses == started


def test_what_operators_cost_is_not_known() -> None:
    config = run_of("popen", "popen", "popen", "popen", auto=True)
    mode: Any = SimpleNamespace(chosen=[object()] * 3, costs_by_size=False)
    start_fewer(config, [mode])
    assert len(config.option.tx) == 3


def test_auto_starts_a_worker_for_each_half_second_of_work() -> None:
    assert worth([], 8) == 1
    assert worth([WORTH], 8) == 1
    assert worth([WORTH, 1], 8) == 2
    assert worth([WORTH] * 5, 8) == 5
    assert worth([WORTH] * 300, 8) == 8
    assert worth([WORTH] * 300, 1) == 1
