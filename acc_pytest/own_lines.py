"""A line of ours between those of pytest while tests run, which garbles none of them."""

from __future__ import annotations

import pytest

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
