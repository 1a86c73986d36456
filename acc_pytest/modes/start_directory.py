"""The directory that a run was started in, which somebody may remove while it goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import pytest

from ..tensors.whole_file import make_directory


class StartDirectory:
    """Makes it again: pytest changes into it when it ends, and would give up before any report is whole."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """After the last test."""
        try:
            return (yield)
        finally:
            with contextlib.suppress(OSError):
                make_directory(session.startpath)
