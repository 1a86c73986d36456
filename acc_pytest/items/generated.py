"""`GeneratedItem`: what the tests that we generate have in common, which is how they say that they fail."""

from __future__ import annotations

import abc
from typing import Any

import pytest

from ..errors import AccError
from ..recording import ComparisonFailed
from ..reporting.failure_text import FailureText


class GeneratedItem(pytest.Item):
    """A test whose failure is told in our words, without a traceback of ours."""

    @property
    @abc.abstractmethod
    def rerun(self) -> str:
        """The command that runs the test again."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure in our words; anything unexpected keeps its traceback."""
        if isinstance(excinfo.value, ComparisonFailed):
            return FailureText(f"{excinfo.value}\nre-run: {self.rerun}")
        if isinstance(excinfo.value, pytest.xfail.Exception):
            # An expected failure has its reason; a traceback of each would take longer than comparing.
            return str(excinfo.value)
        if isinstance(excinfo.value, AccError):
            return FailureText(f"{excinfo.value}\nre-run: {self.rerun}")
        return super().repr_failure(excinfo, style)
