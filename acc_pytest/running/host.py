"""Onlookers of generated tests: plugins that are neither pytest's nor ours."""

from __future__ import annotations

from typing import Any

import pytest

XDIST = ("xdist.", "__channelexec__")
"""Modules of xdist. What it runs in its workers has a name that execnet gives it."""
KNOWN = ("_pytest.", "acc_pytest.", *XDIST, "_hypothesis_pytestplugin")
"""Modules of plugins that neither log nor print around a test, and do with its report what pytest says."""
READERS = (
    *("pytest_runtest_makereport", "pytest_runtest_logreport", "pytest_report_to_serializable"),
    *("pytest_report_teststatus", "pytest_terminal_summary", "pytest_sessionfinish", "pytest_unconfigure"),
)
"""Hooks that are given a report, or come when the terminal has them all."""


def implementations(hooks: Any, name: str) -> list[Any]:
    """The implementations of a hook among `hooks`."""
    return list(getattr(hooks, name).get_hookimpls())


def strange(hooks: Any, *names: str) -> bool:
    """Whether some plugin of the user's, a conftest among them, implements one of these hooks."""
    return any(not _module(hook).startswith(KNOWN) for name in names for hook in implementations(hooks, name))


def runs_tests_otherwise(hooks: Any) -> bool:
    """Whether a plugin has a protocol of its own for tests, to run them again or in other processes."""
    return any(
        not (hook.wrapper or hook.hookwrapper) and not _module(hook).startswith(KNOWN)
        for hook in implementations(hooks, "pytest_runtest_protocol")
    )


KEPT = pytest.StashKey[bool]()


WATCHED = "acc_watched"
"""Key in xdist's `workerinput`: whether the controller has somebody who reads reports (`is_read`)."""


def is_read(config: pytest.Config, hooks: Any) -> bool:
    """Whether a plugin of the user's reads reports, here or in the controller of this worker."""
    return strange(hooks, *READERS) or watched(config)


def watched(config: pytest.Config) -> bool:
    """Whether this is a worker, and a plugin that may be only in its controller reads reports."""
    return bool(getattr(config, "workerinput", {}).get(WATCHED, False))


def want_properties(config: pytest.Config) -> bool:
    """Whether somebody may read the properties of tests: the JUnit file of pytest, or a plugin of the user's.

    Nobody else does, and a hundred thousand tests have a gigabyte of them.
    """
    if KEPT not in config.stash:
        writes_junit = bool(config.getoption("xmlpath", None))
        config.stash[KEPT] = writes_junit or is_read(config, config.hook)
    return config.stash[KEPT]


def of_xdist(hooks: Any, name: str) -> list[object]:
    """The plugins of xdist that implement a hook."""
    return [hook.plugin for hook in implementations(hooks, name) if _module(hook).startswith(XDIST)]


def _module(implementation: Any) -> str:
    return str(getattr(implementation.function, "__module__", ""))


# The state of a run before anything of ours is imported: whether it has any options of ours.


REPORTS = "acc_reports"
"""The plugin that takes rows. A run that asks for nothing has it from the first of our fixtures on."""
AUTO = pytest.StashKey[bool]()
"""In `config.stash` where the number of xdist's workers was left open: `-n auto`, `-n logical`."""


def is_open(config: pytest.Config) -> bool:
    """Whether the run has something of ours."""
    return config.pluginmanager.hasplugin(REPORTS)


# A line of ours between those of pytest while tests run, which garbles none of them.


QUIETEST = -1
"""Verbosity below which nothing is said: `-q -q`."""


def say(config: pytest.Config, line: str) -> None:
    """Write `line`, unless there is no terminal, or it is to be quiet.

    A line of dots is ended before, whether or not pytest has put the name of a file in front of it.
    """
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or config.get_verbosity() < QUIETEST:
        return
    terminal.ensure_newline()
    if config.get_terminal_writer().width_of_current_line:
        terminal.write_line("")
    terminal.write_line(line)
