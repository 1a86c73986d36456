"""Running pytest for a subcommand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..guard import FLAG, shows_tracebacks
from ..options import command_line


def run_pytest(values: Mapping[str, object], arguments: Sequence[str]) -> int:
    """Run pytest with the options `values`, by `Settings` field, and further words; returns its exit code."""
    import pytest

    # -p acc: also where plugins are not loaded by themselves (PYTEST_DISABLE_PLUGIN_AUTOLOAD).
    # acc_pytest is loaded already, which pytest would warn of.
    quiet = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    debug = [FLAG] if shows_tracebacks() else []
    return int(pytest.main(["-p", "acc", *quiet, *command_line(values), *debug, *arguments]))
