"""Workers of pytest-xdist cost seconds each: none is started for nothing, torch waits for the first pair."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acc_pytest import errors
from acc_pytest.base import threads as threads_of
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.rows_file import read_rows as read_stored
from acc_pytest.running import distribution
from acc_pytest.running.comparison import PAIR, RECOMPUTED, ComparisonMode
from acc_pytest.running.distribution import START, TORCH, start_fewer, worth
from acc_pytest.running.host import AUTO
from acc_pytest.settings import Settings
from tests.slow import slow

from .conftest import QUICKER, TWO_WORKERS, Run, dump_options, read_rows

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


@pytest.mark.slow
def test_a_worker_without_a_pair_does_without_torch(clean: DemoPaths, pytester: pytest.Pytester) -> None:
    """In programs that nobody has given torch (`python_with_torch`)."""
    pytester.makeconftest(NOTES_TORCH)
    words = (*TWO_WORKERS, "-k", "GatherOperation_0_0 and model")
    pytester.runpytest_subprocess(*QUICKER, *dump_options(clean), *words).assert_outcomes(passed=1)
    assert sorted(torch_of_workers(pytester.path)) == ["False", "True"]


@pytest.mark.parametrize(
    ("words", "started"),
    [
        (("-n8", ONE, OTHER), 0),
        slow(("-nauto",), 0),
        slow(("-n2", "-k", "RmsNorm"), 0),
        slow(("-n1", ONE), 1),
        (("--tx=popen", "--tx=popen", "--dist=load"), 2),
    ],
    ids=["two tests", "auto", "quickly done", "in a process of its own", "insisted on"],
)
def test_no_worker_is_started_for_nothing(
    words: tuple[str, ...],
    started: int,
    acc: Run,
    clean: DemoPaths,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "4")
    pytester.makeconftest(NOTES_TORCH)
    result = acc(clean, *words, "--verbosity=0", subprocess=True)
    assert result.ret == 0
    assert len(torch_of_workers(pytester.path)) == started
    said = [line for line in result.outlines if line.startswith("acc workers: ")]
    assert len(said) == (words[0] in ("-n8", "-n2"))
    assert all("--dist load starts all" in line for line in said)


def test_with_people_s_own_tests_all_workers_are_started(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(NOTES_TORCH)
    pytester.makepyfile(test_own="def test_own(): pass")
    result = acc(clean, "-n2", "test_own.py", ONE, subprocess=True)
    result.assert_outcomes(passed=2)
    assert len(torch_of_workers(pytester.path)) == 2


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


def run_of(number: int, *, args: tuple[str, ...] = (), auto: bool = False, **options: Any) -> Any:
    """What of a configuration matters here; `said` are the lines for the header."""
    values = {"numprocesses": number, "tx": ["popen"] * number, "dist": "load", "collectonly": False}
    said: list[str] = []
    return SimpleNamespace(
        option=SimpleNamespace(**values | {"keyword": "", "lf": False} | options),
        args=list(args),
        stash={AUTO: True} if auto else {},
        getoption=lambda name, _: options.get(name, False),
        cache=SimpleNamespace(get=lambda *_: {"comparison::t1": True, "comparison::t2": True}),
        pluginmanager=SimpleNamespace(register=lambda one, _: said.extend(one.pytest_report_header())),
        said=said,
    )


def mode_of(*names: str, by_size: bool = False) -> Any:
    """A mode with tests of these names."""
    tests = [
        SimpleNamespace(
            names=("comparison", name),
            node_id=f"comparison::{name}",
            keywords=("spoken",) if name == "t1" else (),
            marks=(pytest.mark.acc_op.mark,) if name == "t2" else (),
            compares=True,
            files=lambda: (),
        )
        for name in names
    ]
    settings = SimpleNamespace(threads=None, engine="local")
    return SimpleNamespace(chosen=tests, pair_seconds=PAIR if by_size else None, settings=settings)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations that were left to one process."""
    found: list[Any] = []
    monkeypatch.setattr(distribution, "_without_workers", found.append)
    return found


@pytest.mark.parametrize(
    ("config", "started"),
    [
        (run_of(4), 3),
        (run_of(2), 2),
        (run_of(1), 1),
        (run_of(1, auto=True), 0),
        (run_of(4, args=("test_own.py",)), 4),
        (run_of(4, dist="each"), 4),
        (run_of(4, collectonly=True), 4),
        (run_of(4, numprocesses=None), 4),
        (run_of(4, keyword="T0 or t2"), 2),
        (run_of(4, keyword="spoken or acc_op"), 2),
        (run_of(4, keyword="comparison and not t1"), 2),
        (run_of(4, keyword="t0"), 0),
        (run_of(4, keyword="t0 or"), 3),
        (run_of(4, lf=True), 2),
        (run_of(4, lf=True, keyword="t1"), 0),
    ],
    ids=[
        "as many as tests",
        "as many as asked for",
        "a process of its own",
        "auto: one",
        "people's own tests",
        "each runs all",
        "nothing runs",
        "--tx",
        "-k: names",
        "-k: keywords and markers",
        "-k: and not",
        "-k: one test",
        "-k: no expression",
        "--lf",
        "--lf -k",
    ],
)
def test_so_many_are_left_of_the_workers(config: Any, started: int, here: list[Any]) -> None:
    """Of three tests, whose costs are not known."""
    asked = config.option.numprocesses
    start_fewer(config, [mode_of("t0", "t1", "t2")])
    assert len(config.option.tx) == started
    assert config.option.numprocesses == (started if asked else None)
    assert here == ([] if started else [config])


@pytest.mark.parametrize("far", ["", "golden_root", "mine_root"])
def test_how_long_a_store_takes_is_not_known(far: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "mirrors", ("/c/acc_mirror/",))
    place = "/c/acc_mirror/0/s3/dump"
    roots = {name: place if name == far else "/dump" for name in ("golden_root", "mine_root")}
    plan: Any = SimpleNamespace(**roots, mine_kind="torch")
    mode = ComparisonMode(Settings.from_values({}), {}, plan=plan)
    mode._outlines = ()  # which would be read from the dump
    assert mode.pair_seconds == (None if far else PAIR)


@pytest.mark.parametrize(
    ("kind", "replay", "seconds"),
    [("atb", None, PAIR + RECOMPUTED), ("atb", False, PAIR), ("fx", None, PAIR)],
)
def test_small_operators_of_atb_that_are_computed_again_take_time(
    kind: str, replay: bool | None, seconds: float
) -> None:
    plan: Any = SimpleNamespace(golden_root="/golden", mine_root="/mine", mine_kind=kind)
    mode = ComparisonMode(replace(Settings.from_values({}), replay=replay), {}, plan=plan)
    mode._outlines = ()
    assert mode.pair_seconds == seconds


@pytest.mark.parametrize("auto", [False, True])
def test_what_files_say_is_quickly_done_is_left_to_one_process(here: list[Any], auto: bool) -> None:
    config = run_of(4, auto=auto)
    start_fewer(config, [mode_of("t0", "t1", "t2", by_size=True)])
    assert here == [config]
    assert bool(config.said) == (not auto)


def test_the_header_says_how_many_and_how_all_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(distribution, "worth", lambda *_: 2)
    config = run_of(8)
    start_fewer(config, [mode_of("t0", "t1", "t2", by_size=True)])
    assert config.said == [
        "acc workers: 2 of 8 are started: more would not be done with 3 tests sooner; "
        "--tx '8*popen' --dist load starts all"
    ]


@pytest.mark.parametrize(
    ("given", "had", "threads"), [(3, "", 3), (3, "1", 3), (None, "", 8), (None, "2", 2), (None, "99", 8)]
)
def test_threads_are_those_that_this_process_would_have(
    given: int | None, had: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(threads_of, "cores", lambda: 8)

    def noting(sizes: list[int], each: float, most: int, cores: int, threads: int, start: float) -> int:
        asked.append(threads)
        return most

    monkeypatch.setattr(distribution, "worth", noting)
    monkeypatch.setenv("OMP_NUM_THREADS", had)
    mode = mode_of("t0", "t1", by_size=True)
    mode.settings.threads = given
    start_fewer(run_of(2), [mode])
    assert asked == [threads]


SMALL, MIDDLE, HUGE = 2**14, 2**21, 2**30


@pytest.mark.parametrize(
    ("sizes", "each", "cores", "threads", "started"),
    [
        ([], PAIR, 8, 8, 0),
        ([SMALL] * 2000, PAIR, 8, 8, 0),
        ([SMALL] * 2000, PAIR + RECOMPUTED, 8, 8, 6),
        ([SMALL] * 100_000, PAIR, 2, 2, 0),
        ([SMALL] * 100_000, PAIR, 8, 8, 3),
        ([MIDDLE] * 20_000, PAIR, 8, 8, 4),
        ([HUGE] * 200, PAIR, 8, 8, 0),
        ([HUGE] * 200, PAIR, 8, 1, 8),
    ],
    ids=[
        "nothing to do",
        "done before workers have started",
        "operators of ATB are computed again",
        "handing over takes as long",
        "three send as much as the controller takes",
        "four do",
        "threads share each tensor",
        "one thread",
    ],
)
def test_auto_starts_as_many_workers_as_are_done_first(
    sizes: list[int], each: float, cores: int, threads: int, started: int
) -> None:
    assert worth(sizes, each, cores, cores, threads, START + TORCH) == started


@pytest.mark.parametrize(("has_torch", "started"), [(True, 0), (False, 4)])
def test_workers_that_need_no_torch_are_worth_it_sooner(
    has_torch: bool, started: int, monkeypatch: pytest.MonkeyPatch, here: list[Any]
) -> None:
    """Of 1,500 pairs of 2 MB on eight cores."""
    names = [f"t{number}" for number in range(1500)]
    monkeypatch.setattr(distribution, "bytes_of", lambda test: MIDDLE)
    monkeypatch.setattr(threads_of, "cores", lambda: 8)
    if not has_torch:
        monkeypatch.delitem(sys.modules, "torch")
    config = run_of(8)
    start_fewer(config, [mode_of(*names, by_size=True)])
    assert len(config.option.tx) == started


def test_a_run_that_auto_leaves_to_one_process_looks_as_one(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "4")
    result = acc(clean, "-nauto", "--verbosity=0", subprocess=True)
    assert result.ret == 0
    result.assert_outcomes(passed=41)
    result.stdout.fnmatch_lines(["msit_dump *[[]100%[]]"])
    result.stdout.no_fnmatch_line("*workers*")


# -n: the same verdicts and report as without, the plan sent to workers (test_baseline.py: any --dist).


def report(path: str = "out/acc.csv") -> list[list[str]]:
    """The report's lines in an order that does not depend on who finished first."""
    with open(path, newline="", encoding="utf-8") as file:
        return sorted(csv.reader(file))


def test_two_workers_give_the_verdicts_and_the_report_of_one_process(
    acc: Run, faulty: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import os
        from pathlib import Path
        import acc_pytest.session.planning as planning

        original = planning.make_plan

        def noted(settings):
            Path(f"planned.{os.environ.get('PYTEST_XDIST_WORKER', 'controller')}").touch()
            return original(settings)

        planning.make_plan = noted
        """
    )
    alone = acc(faulty)
    expected = report()
    both = acc(faulty, *TWO_WORKERS, "--junitxml=j.xml", "-rf", subprocess=True)
    assert both.parseoutcomes() == {**alone.parseoutcomes(), **both.parseoutcomes()}
    assert alone.ret == both.ret == pytest.ExitCode.TESTS_FAILED
    assert report() == expected
    assert [path.name for path in pytester.path.glob("planned.*")] == ["planned.controller"]
    # The verdict sentence survives the trip, although xdist makes plain text of failures.
    both.stdout.fnmatch_lines([f"FAILED msit_dump::step0::layers.1::{faulty.faulty[0]} - *"])
    assert 'name="threshold.relative_euclidean_distance"' in Path("j.xml").read_text()


def test_a_worker_that_dies_leaves_a_row_for_the_pair_it_was_at(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import os

        def pytest_runtest_call(item):
            if item.name == "GatherOperation_0_0":
                os._exit(1)
        """
    )
    chosen = ("msit_dump::step0", "-k", "GatherOperation_0_0 or RmsNorm")
    acc(clean, "-n1", *chosen, subprocess=True)
    rows = [row for row in read_rows() if row["verdict"] != "unmapped"]
    assert {row["token_id"] for row in rows} == {"0"}
    assert len({row["test_id"] for row in rows}) == len(rows) > 2
    (row,) = [row for row in rows if row["verdict"] == "incomparable"]
    assert row["my_name"] == "GatherOperation_0_0"
    assert row["cmp_fail_reason"].startswith("not compared: ")
    assert "crashed" in row["cmp_fail_reason"]


@pytest.mark.parametrize("restarts", [0, 9])
def test_a_worker_that_dies_after_its_comparison_makes_the_run_incomplete(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester, restarts: int
) -> None:
    """Its row is there and passes; without another worker the tests after it have no row at all."""
    pytester.makeconftest(
        """
        import os

        def pytest_runtest_teardown(item):
            if item.name == "GatherOperation_0_0":
                os._exit(1)
        """
    )
    words = ("-n1", f"--max-worker-restart={restarts}", "msit_dump::step0", "-k", "Gather or RmsNorm")
    result = acc(clean, *words, "--acc-rows=out/r.jsonl", subprocess=True)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    compared = [row for row in read_rows() if row["verdict"] != "unmapped"]
    assert {row["verdict"] for row in compared} == {"pass"}
    result.stdout.fnmatch_lines([f"verdicts: {len(compared)} pass*; the run is incomplete"])
    (line,) = (line for line in result.outlines if line.startswith("incomplete: "))
    counts = re.fullmatch(
        r"incomplete: (\d+) of (\d+) tests did not come to their end, the first (\S+)", line
    )
    assert counts is not None
    assert counts[3] == "msit_dump::step0::model::GatherOperation_0_0"
    assert (counts[1] == "1") is bool(restarts)
    assert len(compared) == int(counts[2]) - int(counts[1]) + 1
    assert not read_stored("out/r.jsonl").complete


def test_workers_that_die_before_they_know_their_tests_leave_no_whole_file(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    """Else an empty shard would make those beside it green."""
    pytester.makeconftest(
        """
        import os

        def pytest_collection_modifyitems(config):
            if hasattr(config, "workerinput"):
                os._exit(1)
        """
    )
    words = ("-n1", "--max-worker-restart=0", "--acc-shard=1/2", "--acc-rows=out/r.jsonl")
    result = acc(clean, *words, subprocess=True)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["verdicts: none; the run is incomplete", "incomplete: no worker collected the tests"]
    )
    assert not read_stored("out/r.jsonl").complete
