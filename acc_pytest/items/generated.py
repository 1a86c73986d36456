"""`GeneratedItem`: what the tests that we generate have in common, which is how they say that they fail."""

from __future__ import annotations

import abc
from typing import Any

import pytest

from ..errors import AccError
from ..marks import once
from ..recording import ComparisonFailed
from ..reporting.failure_text import RERUN, FailureText


class GeneratedItem(pytest.Item):
    """A test whose failure is told in our words, without a traceback of ours."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.own_markers.extend(once(self.config))

    @property
    @abc.abstractmethod
    def rerun(self) -> str:
        """The command that runs the test again."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure in our words; anything unexpected keeps its traceback."""
        if isinstance(excinfo.value, ComparisonFailed):
            return FailureText(f"{excinfo.value.text}\n{RERUN}{self.rerun}")
        if isinstance(excinfo.value, pytest.xfail.Exception):
            # An expected failure has its reason; a traceback of each would take longer than comparing.
            return str(excinfo.value)
        if isinstance(excinfo.value, AccError):
            return FailureText(f"{excinfo.value}\nre-run: {self.rerun}")
        return super().repr_failure(excinfo, style)
