"""Generated tests run without what pytest captures, but where somebody could write something."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from acc_pytest.lab.demo import DemoPaths
from tests.slow import slow

from .conftest import QUICKER, Run, dump_options

LOGGING = ("-p", "logging")

CONFTEST = """
import logging, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_{phase}(item):
    logging.getLogger("house").warning("about %s", item.name)
    print("beside", item.name)
"""

CUSTOM = """
import logging

def fifth(golden, mine):
    logging.getLogger("house").warning("a fifth measured")
    return 5.0, ""
"""


@pytest.fixture
def seen(pytester: pytest.Pytester) -> str:
    """Have the names of the plugins around each call written to the returned file."""
    pytester.makeconftest(
        """
        import pytest

        class Watch:
            @pytest.hookimpl(tryfirst=True)
            def pytest_runtest_makereport(self, item, call):
                if call.when != "call":
                    return
                hook = item.ihook.pytest_runtest_call
                with open("seen", "a") as file:
                    print("logging-plugin" in [one.plugin_name for one in hook.get_hookimpls()], file=file)

        def pytest_configure(config):
            config.pluginmanager.register(Watch())
        """
    )
    return "seen"


def test_pairs_run_without_handlers_on_every_logger(
    acc: Run, clean: DemoPaths, seen: str, pytester: pytest.Pytester
) -> None:
    acc(clean, *LOGGING).assert_outcomes(passed=41)
    captured = (pytester.path / seen).read_text().split()
    assert (
        captured.count("False") > captured.count("True") > 0
    )  # the last below a collector goes the usual way


@pytest.mark.parametrize("phase", [slow("setup"), "call", slow("teardown")])
def test_what_a_conftest_writes_in_a_phase_is_captured(
    acc: Run, faulty: DemoPaths, pytester: pytest.Pytester, phase: str
) -> None:
    pytester.makeconftest(CONFTEST.format(phase=phase))
    result = acc(faulty, *LOGGING, "-oacc_inherited=fail")
    name = "ElewiseOperation_3_3"
    result.stdout.fnmatch_lines_random(
        [f"*Captured log {phase}*", f"*about {name}", f"*Captured stdout {phase}*"]
    )
    assert sum(line == f"beside {name}" for line in result.outlines) == 1


def test_what_a_metric_logs_is_captured(acc: Run, faulty: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mymetrics=CUSTOM)
    result = acc(faulty, *LOGGING, "--acc-metric=mymetrics.py:fifth")
    result.stdout.fnmatch_lines(["*Captured log call*", "*a fifth measured*"])


def test_live_logs_name_the_phase(acc: Run, clean: DemoPaths, seen: str, pytester: pytest.Pytester) -> None:
    acc(clean, *LOGGING, "-o", "log_cli=true").assert_outcomes(passed=41)
    assert set((pytester.path / seen).read_text().split()) == {"True"}


def test_fixtures_of_the_session_end_as_ever(acc: Run, clean: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_own="""
        import pytest

        @pytest.fixture(scope="session")
        def engine():
            yield
            print("engine stopped")
            raise RuntimeError("while it stopped")

        def test_engine(engine):
            pass
        """
    )
    result = acc(clean, *LOGGING, "test_own.py", "msit_dump")
    result.assert_outcomes(passed=42, errors=1)
    result.stdout.fnmatch_lines(["*Captured stdout teardown*", "engine stopped"])


@pytest.mark.usefixtures("python_with_torch")
@pytest.mark.parametrize(
    ("options", "phases"),
    [
        ((), ["call"]),
        (("--durations=3",), ["setup", "call", "teardown"]),
        (("--junitxml=j.xml",), ["call"]),
        (("-p", "xdist", "-n1"), ["call"]),
    ],
    ids=["plain", "durations", "junit", "from a worker"],
)
def test_a_pair_that_passes_has_the_reports_that_somebody_asks_for(
    clean: DemoPaths, pytester: pytest.Pytester, options: tuple[str, ...], phases: list[str]
) -> None:
    pytester.makeini("[pytest]")
    ran = pytester.inline_run(*QUICKER, *dump_options(clean), "--acc-output=out", *options)
    ran.assertoutcome(passed=41)
    calls = ran.getcalls("pytest_runtest_logreport")
    reports = [call.report for call in calls if "step0::layers.0::RmsNorm" in call.report.nodeid]
    assert [report.when for report in reports[: len(phases)]] == phases
    assert all(not report.user_properties for report in reports)
    started = [call.nodeid for call in ran.getcalls("pytest_runtest_logstart")]
    assert len(started) == 41
    assert started == [call.nodeid for call in ran.getcalls("pytest_runtest_logfinish")]


@pytest.mark.usefixtures("python_with_torch")
def test_a_plugin_of_the_controller_alone_sees_the_reports_of_workers_whole(
    stepped: DemoPaths, pytester: pytest.Pytester
) -> None:
    """Workers are not given what `pytest.main(plugins=...)` is."""
    seen: list[pytest.TestReport] = []

    class Looks:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            seen.append(report)

    pytester.makeini("[pytest]")
    words = (*QUICKER, *dump_options(stepped), "--acc-output=out", "-k", "step1 and RmsNorm")
    pytester.inline_run(*words, "-p", "xdist", "-n1", plugins=[Looks()]).assertoutcome(passed=3)
    assert [report.when for report in seen] == 3 * ["setup", "call", "teardown"]
    calls = [report for report in seen if report.when == "call"]
    assert all("cosine_similarity" in dict(report.user_properties) for report in calls)
    assert all("step1" in report.keywords for report in calls)


@pytest.mark.usefixtures("python_with_torch")
@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n1")], ids=["here", "from a worker"])
def test_a_pair_that_may_fail_has_one_report_and_one_element(
    faulty: DemoPaths, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makeini("[pytest]")
    words = (*QUICKER, *dump_options(faulty), "--acc-output=out", "--junitxml=j.xml", *workers)
    ran = pytester.inline_run(*words)
    reports: dict[str, list[str]] = {}
    for report in ran.getreports("pytest_runtest_logreport"):
        reports.setdefault(report.nodeid, []).append(f"{report.when} {report.outcome}")
    inherited = [id for id, seen in reports.items() if any("skipped" in one for one in seen)]
    assert inherited
    alone = [reports[id] for id in inherited if len(reports[id]) == 1]
    # the last of a collector goes the usual way
    assert len(alone) > len(inherited) / 2
    assert all(seen == ["call skipped"] for seen in alone)
    cases = ElementTree.parse(pytester.path / "j.xml").getroot().iter("testcase")
    skipped = [len(case.findall("skipped")) for case in cases if case.findall("skipped")]
    assert skipped == [1] * len(inherited)


def test_a_pair_that_fails_has_all_reports(faulty: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    ran = pytester.inline_run(*QUICKER, *dump_options(faulty), "--acc-output=out", "-x")
    (failed,) = ran.getreports("pytest_runtest_logreport")[-2:-1]
    assert failed.outcome == "failed"
    when = [one.when for one in ran.getreports("pytest_runtest_logreport") if one.nodeid == failed.nodeid]
    assert when == ["setup", "call", "teardown"]
    started = [call.nodeid for call in ran.getcalls("pytest_runtest_logstart")]
    assert started == [call.nodeid for call in ran.getcalls("pytest_runtest_logfinish")]
    assert started[-1] == failed.nodeid


def test_a_conftest_that_looks_at_reports_sees_each_phase_and_the_numbers(
    acc: Run, stepped: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        def pytest_runtest_logreport(report):
            with open("reports", "a") as file:
                print(report.when, *(name for name, _ in report.user_properties), file=file)
        """
    )
    acc(stepped, "-k", "step1 and RmsNorm").assert_outcomes(passed=3)
    lines = [line.split() for line in (pytester.path / "reports").read_text().splitlines()]
    assert [line[0] for line in lines] == 3 * ["setup", "call", "teardown"]
    assert all("cosine_similarity" in line for line in lines if line[0] == "call")


def test_a_conftest_that_looks_at_all_reports_at_the_end_finds_them_whole(
    acc: Run, stepped: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        def pytest_terminal_summary(terminalreporter):
            for report in terminalreporter.stats["passed"]:
                terminalreporter.line(f"{len(report.user_properties) > 10} {sorted(report.keywords)}")
        """
    )
    result = acc(stepped, "-k", "step1 and RmsNorm")
    lines = [line for line in result.outlines if line.startswith("True [")]
    assert len(lines) == 3
    assert all("'step1'" in line and "RmsNorm" in line for line in lines)


def test_a_plugin_with_a_protocol_of_its_own_is_asked(
    acc: Run, clean: DemoPaths, pytester: pytest.Pytester
) -> None:
    """As those that run failing tests again have one."""
    pytester.makeconftest(
        """
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            with open("asked", "a") as file:
                print(item.nodeid, file=file)
            runtestprotocol(item, nextitem=nextitem)
            return True
        """
    )
    acc(clean).assert_outcomes(passed=41)
    assert len((pytester.path / "asked").read_text().splitlines()) == 41
