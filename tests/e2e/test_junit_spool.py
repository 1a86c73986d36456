"""Test cases that wait on the disk: pytest's JUnit file is the same as if they had not."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

import acc_pytest.running.runtest
from acc_pytest.lab.demo import DemoPaths

from .conftest import QUICKER, Run, dump_options
from .test_junit import cases, properties

OWN = """
import pytest

def test_own(record_property, record_testsuite_property):
    record_property("engine", "<acc-stored />")
    record_testsuite_property("house", "here")
    print("said")

@pytest.fixture
def broken():
    yield
    raise RuntimeError("while it ended")

def test_error_behind_it(broken):
    pass

def test_both(broken):
    assert False
"""


def text(path: str = "j.xml") -> str:
    """The file without its times."""
    return re.sub(r' (time|timestamp)="[^"]*"', "", Path(path).read_text(encoding="utf-8"))


@pytest.fixture
def as_ever(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have JUnit files written as without us, until it is undone."""
    for module in (acc_pytest.running.runtest, acc_pytest.running.runtest):
        monkeypatch.setattr(module, "has_usual_report", lambda: False)
    return monkeypatch


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("-o", "junit_family=xunit1", "-o", "junit_logging=all", "-o", "junit_duration_report=call"),
        ("--maxfail=1", "--durations=3"),
    ],
    ids=["plain", "all", "stopped"],
)
def test_the_file_is_the_same(
    acc: Run,
    partly: DemoPaths,
    pytester: pytest.Pytester,
    as_ever: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    """Passing, failing, inherited, skipped pairs, and tests of the user's with errors in their teardown."""
    pytester.makepyfile(test_own=OWN)
    words = ("test_own.py", "msit_dump", "--junitxml=j.xml", *options)
    acc(partly, *words)
    expected = text()
    assert "acc-stored" in expected
    as_ever.undo()
    os.chdir(pytester.path)
    acc(partly, *words)
    assert text() == expected


def test_cases_wait_on_the_disk_as_soon_as_they_are_finished(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        from acc_pytest.running.runtest import StoredCase, junit_report

        def pytest_runtest_logfinish(nodeid):
            cases = junit_report(CONFIG).node_reporters_ordered
            with open("kinds", "a") as file:
                print(*{type(case).__name__ for case in cases}, file=file)

        def pytest_configure(config):
            global CONFIG
            CONFIG = config
        """
    )
    acc(clean, "--junitxml=j.xml").assert_outcomes(passed=81)
    assert set(Path("kinds").read_text().split()) == {"StoredCase"}
    assert len(cases()) == 81


def test_a_conftest_that_reads_the_file_when_it_finishes_sees_all_cases(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import pathlib

        def pytest_sessionfinish():
            pathlib.Path("seen.xml").write_text(pathlib.Path("j.xml").read_text())
        """
    )
    acc(clean, "--junitxml=j.xml", "-k", "RmsNorm")
    assert Path("seen.xml").read_text() == Path("j.xml").read_text()
    assert all(properties(case)["verdict"] == "pass" for case in cases("seen.xml").values())


def test_where_the_disk_is_full_cases_stay_in_memory(
    acc: Run, clean: DemoPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(acc_pytest.running.runtest, "_write", full)
    acc(clean, "--junitxml=j.xml", "-k", "RmsNorm").assert_outcomes(passed=6)
    assert all(properties(case)["verdict"] == "pass" for case in cases().values())


def test_ctrl_c_leaves_the_cases_that_have_ended(clean: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    pytester.makeconftest(
        """
        ENDED = []

        def pytest_runtest_logfinish(nodeid):
            ENDED.append(nodeid)
            if len(ENDED) == 5:
                raise KeyboardInterrupt
        """
    )
    pytester.inline_run(
        *QUICKER, *dump_options(clean), "--acc-output=out", "--junitxml=j.xml", no_reraise_ctrlc=True
    )
    assert len(cases()) == 5


def test_a_report_that_is_no_file_is_written_as_ever(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        acc(clean, "--junitxml=pipe", "-k", "RmsNorm and step0").assert_outcomes(passed=3)
        assert os.read(reader, 1 << 16).startswith(b"<?xml")
    finally:
        os.close(reader)
