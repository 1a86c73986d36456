"""Workers of pytest-xdist cost seconds each: none is started for nothing, torch waits for the first pair."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acc_pytest.demo import DemoPaths
from acc_pytest.modes import workers
from acc_pytest.modes.workers import start_fewer, worth
from acc_pytest.run_state import AUTO

from .conftest import QUICKER, Run, dump_options

NOTES_TORCH = """
import pathlib, sys, pytest

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    worker = getattr(session.config, "workerinput", None)
    if worker:
        pathlib.Path(worker["workerid"]).write_text(str(bool({"torch", "numpy"} & sys.modules.keys())))
"""
ONE, OTHER = (f"msit_dump::step0::model::GatherOperation_{number}_0" for number in (0, 1))


def torch_of_workers(home: Path) -> list[str]:
    """For each worker of the run, whether it had torch, or numpy, at its end."""
    return [file.read_text() for file in home.glob("gw*")]


def test_a_worker_without_a_pair_does_without_torch(clean: DemoPaths, pytester: pytest.Pytester) -> None:
    """In programs that nobody has given torch (`python_with_torch`)."""
    pytester.makeconftest(NOTES_TORCH)
    words = ("-n2", "-k", "GatherOperation_0_0 and model")
    pytester.runpytest_subprocess(*QUICKER, *dump_options(clean), *words).assert_outcomes(passed=1)
    assert sorted(torch_of_workers(pytester.path)) == ["False", "True"]


@pytest.mark.parametrize(("number", "named", "started"), [("8", (ONE, OTHER), 2), ("auto", (), 0)])
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
        (run_of("popen", "popen", "popen", "popen", auto=True), 0),
        (run_of("ssh=a", "ssh=b", "ssh=c", "ssh=d"), 4),
    ],
    ids=["as many as tests", "as many as asked for", "people's own tests", "auto: little to do", "elsewhere"],
)
def test_so_many_are_left_of_the_workers(config: Any, started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[Any] = []
    monkeypatch.setattr(workers, "_run_here", here.append)
    tests = [SimpleNamespace(compares=True, files=lambda: ())] * 3
    mode: Any = SimpleNamespace(chosen=tests, costs_by_size=True, settings=SimpleNamespace(threads=None))
    start_fewer(config, [mode])
    assert len(config.option.tx) == config.option.numprocesses == started
    assert here == ([] if started else [config])


def test_what_operators_cost_is_not_known() -> None:
    config = run_of("popen", "popen", "popen", "popen", auto=True)
    mode: Any = SimpleNamespace(chosen=[object()] * 3, costs_by_size=False)
    start_fewer(config, [mode])
    assert len(config.option.tx) == 3


SMALL, MIDDLE, HUGE = 2**14, 2**21, 2**30


@pytest.mark.parametrize(
    ("sizes", "cores", "threads", "started"),
    [
        ([], 8, 8, 0),
        ([SMALL] * 2000, 8, 8, 0),
        ([SMALL] * 100_000, 2, 2, 0),
        ([SMALL] * 100_000, 8, 8, 3),
        ([MIDDLE] * 20_000, 8, 8, 4),
        ([HUGE] * 200, 8, 8, 0),
        ([HUGE] * 200, 8, 1, 8),
    ],
    ids=[
        "nothing to do",
        "done before workers have started",
        "handing over takes as long",
        "three send as much as the controller takes",
        "four do",
        "threads share each tensor",
        "one thread",
    ],
)
def test_auto_starts_as_many_workers_as_are_done_first(
    sizes: list[int], cores: int, threads: int, started: int
) -> None:
    assert worth(sizes, cores, cores, threads) == started


def test_a_run_that_auto_leaves_to_one_process_looks_as_one(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "4")
    result = acc(clean, "-nauto", "--verbosity=0", subprocess=True)
    assert result.ret == 0
    result.assert_outcomes(passed=81)
    result.stdout.fnmatch_lines(["msit_dump *[[]100%[]]"])
    result.stdout.no_fnmatch_line("*workers*")
