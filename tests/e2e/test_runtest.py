"""Generated tests run without what pytest captures, but where somebody could write something."""

from __future__ import annotations

import pytest

from acc_pytest.demo import DemoPaths

from .conftest import Run

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
    acc(clean, *LOGGING).assert_outcomes(passed=81)
    captured = (pytester.path / seen).read_text().split()
    assert (
        captured.count("False") > captured.count("True") > 0
    )  # the last below a collector goes the usual way


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_what_a_conftest_writes_in_a_phase_is_captured(
    acc: Run, faulty: DemoPaths, pytester: pytest.Pytester, phase: str
) -> None:
    pytester.makeconftest(CONFTEST.format(phase=phase))
    result = acc(faulty, *LOGGING, "--acc-inherited=fail")
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
    acc(clean, *LOGGING, "-o", "log_cli=true").assert_outcomes(passed=81)
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
    result.assert_outcomes(passed=82, errors=1)
    result.stdout.fnmatch_lines(["*Captured stdout teardown*", "engine stopped"])
