"""How generated tests run: by pytest's own protocol, without what would be in vain for each of thousands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from .generated import GeneratedItem
from .run import RUN

LOGGING, CAPTURE = "logging-plugin", "capturemanager"
"""Plugins of pytest that surround each phase of a test, by their names."""
NO_OUTPUT = ("_pytest.", "acc_pytest.", "xdist.", "_hypothesis_pytestplugin")
"""Modules whose hooks of these phases neither log nor print."""
PHASES = ("pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown")
THRESHOLDS = ("pytest_acc_thresholds", "pytest_acc_case_thresholds")


class RuntestProtocol:
    """A plugin for generated tests that another one of the same collector follows.

    Of skipped tests there may be 30,000: each gets one report, not a whole protocol. Others run with
    `PhaseHooks`. The last below a collector goes the usual way, which also tears down what tests before have
    set up.
    """

    def __init__(self) -> None:
        self._hooks: dict[Path, PhaseHooks | None] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Report the skip of a skipped test; have another one use the hooks it needs."""
        if not isinstance(item, GeneratedItem) or nextitem is None or nextitem.parent is not item.parent:
            return None
        if not (reason := item.test.skip_reason):
            item.phase_hooks = self._hooks_of(item)
            return None
        keywords: dict[str, Literal[1]] = dict.fromkeys((item.name, *(m.name for m in item.test.marks)), 1)
        why = (str(item.path), 0, f"Skipped: {reason}")
        report = pytest.TestReport(item.nodeid, item.location, keywords, "skipped", why, "setup")
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _hooks_of(self, item: GeneratedItem) -> PhaseHooks | None:
        """The hooks of all items of a directory; `None` where what pytest captures might be missed."""
        if item.path not in self._hooks:
            hooks = item.session.gethookproxy(item.path)
            self._hooks[item.path] = (
                PhaseHooks(item.config, hooks) if _is_silent(item.config, hooks) else None
            )
        return self._hooks[item.path]


class PhaseHooks:
    """The hooks of a directory, those of phases without the plugins that capture what nobody writes there.

    Before each phase pytest puts two handlers on every logger that does not propagate, of which torch has
    forty, and takes them off afterwards: that is as much as all else it does for a test.
    """

    def __init__(self, config: pytest.Config, hooks: Any) -> None:
        self._hooks = hooks
        manager = config.pluginmanager

        def without(name: str, *left_out: str) -> Callable[..., Any]:
            here = {id(one.plugin) for one in _implementations(hooks, name)}
            here -= {id(manager.get_plugin(plugin)) for plugin in left_out}
            return manager.subset_hook_caller(name, [p for p in manager.get_plugins() if id(p) not in here])

        self.pytest_runtest_setup = without("pytest_runtest_setup", LOGGING, CAPTURE)
        self.pytest_runtest_call = without("pytest_runtest_call", LOGGING)
        self.pytest_runtest_teardown = without("pytest_runtest_teardown", LOGGING, CAPTURE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hooks, name)


def _is_silent(config: pytest.Config, hooks: Any) -> bool:
    """Whether only code of pytest, of ours and of libraries runs in generated tests, and no log is shown.

    What a library logs all the same is a warning or an error, which Python then writes to standard error,
    and that is captured.
    """
    if not all(
        _module(one).startswith(NO_OUTPUT) for name in PHASES for one in _implementations(hooks, name)
    ):
        return False
    if any(_implementations(hooks, name) for name in THRESHOLDS):
        return False
    if config.pluginmanager.hasplugin(LOGGING) and _shows_logs(config):
        return False
    modes = [mode.settings for mode in config.stash[RUN].modes]
    return not any(settings.metrics or settings.model for settings in modes)


def _implementations(hooks: Any, name: str) -> list[Any]:
    return list(getattr(hooks, name).get_hookimpls())


def _module(implementation: Any) -> str:
    return str(getattr(implementation.function, "__module__", ""))


def _shows_logs(config: pytest.Config) -> bool:
    """Whether logs are shown while tests run, or kept in a file: both name the phase."""
    given = [config.getoption(name, None) for name in ("log_cli_level", "log_file")]
    return any(given) or bool(config.getini("log_cli")) or bool(config.getini("log_file"))
