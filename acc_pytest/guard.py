"""Doors: what nobody foresaw becomes one sentence that says what was being done, and with which file.

Readers and planners raise `AccError` for what they know may be wrong. For all else `guarded` stands at the
doors: around opening a dump, planning, judging a pair, writing a report. So bad input ends in a sentence
and in exit code 4 or a failed test, never in pytest's internal error.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import ContextDecorator
from types import TracebackType

from .errors import AccError, OperatorError, Unforeseen

FLAG = "--acc-debug"
_LONGEST = 300
"""Characters of a foreign message that are kept: it may hold what a file said."""
_with_traceback = False


def show_tracebacks(show: bool) -> None:
    """Whether unforeseen errors of this process print their traceback to stderr as well."""
    global _with_traceback
    _with_traceback = show


def shows_tracebacks() -> bool:
    """Whether they do, for a process that is started in its turn."""
    return _with_traceback


class guarded(ContextDecorator):
    """`with guarded("planning G against M"):` raises `Unforeseen` for what is no `AccError`.

    MemoryError and RecursionError are among these. Exceptions of the kinds `passing`, and what is no
    `Exception` (Ctrl-C, outcomes of tests), go through unchanged.
    """

    def __init__(self, doing: str, passing: tuple[type[Exception], ...] = ()) -> None:
        self._doing = doing
        self._passing: tuple[type[Exception], ...] = (AccError, *passing)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, self._passing):
            raise self._error(error) from error

    def _error(self, error: Exception) -> AccError:
        return unforeseen(self._doing, error)


class calling(guarded):
    """A guard around code of others (torch, a model) called with values of a file, which may raise anything.
    Raises `OperatorError`."""

    def _error(self, error: Exception) -> AccError:
        return OperatorError(_sentence(self._doing, error))


def unforeseen(doing: str, error: Exception) -> Unforeseen:
    """An error that nobody foresaw."""
    return Unforeseen(_sentence(doing, error))


def _sentence(doing: str, error: Exception) -> str:
    """The sentence of an error; with `--acc-debug` its traceback goes to stderr."""
    if _with_traceback:
        traceback.print_exception(error, file=sys.stderr)
        hint = "its traceback is on stderr"
    else:
        hint = f"pass {FLAG} for the traceback"
    reason = " ".join(str(error).split())
    if len(reason) > _LONGEST:
        reason = f"{reason[:_LONGEST]}..."
    return f"{doing}: {type(error).__name__}{f': {reason}' if reason else ''} ({hint})"
