"""Every exception that acc_pytest raises on purpose.

A message says what is wrong, where (the file or option), and how to fix it: `rtol must be >= 0, got -1`.
While the plugin opens dumps or settings, it turns an `AccError` into a `pytest.UsageError` (exit code 4).
While a pair is judged, an `AccError` makes only the test of that pair fail or skip.
"""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import ContextDecorator
from types import TracebackType

from .base.reason import Reason

_LONG_WORD = re.compile(r"([^\s/]{200})[^\s/]{100,}")
"""Longer than a component of a path can be (255 bytes): a name out of a damaged or hostile file."""


mirrors: tuple[str, ...] = ()
"""Directories of mirrors of all caches in use, with a slash at the end (`tensors.address.use_caches`)."""


def with_addresses(text: str) -> str:
    """A text in which paths below the mirrors in use are the addresses that they stand for."""
    for directory in mirrors:
        text = re.sub(re.escape(directory) + r"[0-9a-f]{12}/([a-z][a-z0-9+.-]*)/(?:-(?=/))?", r"\1://", text)
    return text


class AccError(Exception):
    """Base class. The cause is the input or the environment, not a bug of acc_pytest.

    A word of more than 300 characters is cut to 200: a message stays one sentence whatever name a file holds.
    The path of a mirror (`remote/stores`) is told as the address that it stands for.
    """

    def __str__(self) -> str:
        message = super().__str__()
        text = _LONG_WORD.sub(r"\1...", with_addresses(message))
        return self.args[0] if self.args and text == self.args[0] else text

    @property
    def lines(self) -> tuple[str, ...]:
        """The message, and what is listed below it: each is one line, whatever the names in it hold."""
        return (str(self),)


class FormatError(AccError):
    """A file breaks its format: it is truncated, its sizes are wrong, or it has another format."""


class CannotDecode(AccError):
    """The bytes are there, but no decoder can turn them into numbers (int4, fp6, fp4, ...)."""


class NoPayload(AccError):
    """The file describes a tensor without holding its values (`-sd`, statistics, dropped alias)."""


class DumpError(AccError):
    """A path is not a dump, holds several dumps, or lacks a part that the comparison needs (topology)."""


class SeveralDumps(DumpError):
    """A path that means several dumps: a sentence, and the paths to choose from."""

    def __init__(self, sentence: str, choices: Iterable[str]) -> None:
        super().__init__(sentence, tuple(choices))

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The sentence, and a line for each path."""
        sentence, choices = self.args
        return (with_addresses(sentence), *(f"  {with_addresses(path)}" for path in choices))


class MappingError(AccError):
    """A mapping file is wrong, or the two dumps have nothing in common (no step, no rank)."""


class Incomparable(AccError):
    """Two tensors cannot be compared; the message becomes the reason in the row."""


class ShapesDiffer(Incomparable):
    """No rule makes the shapes of two tensors equal."""


class Unforeseen(AccError):
    """An exception of another type, wrapped by `guard.py`; the message says what was being done."""


class SettingsError(AccError):
    """An option, an ini value, a marker or a config file holds a wrong value."""


class OperatorError(AccError):
    """An operator is unknown, or it does not accept its parameters or inputs."""


class RefusedCall(OperatorError):
    """A file names a call that is not made: it does more than compute, or takes too much."""


class LaunchError(AccError):
    """A program cannot be started for dumping: no probe, no such command, no space, or no permission."""


class CaptureError(AccError):
    """A model cannot be hooked for dumping, or its tensors cannot be written."""


class MissingPackage(CaptureError, ModuleNotFoundError):
    """A package that only some machines have (torch_npu, torchair) cannot be imported."""


class DumpConfigError(SettingsError, ValueError):
    """An argument of a dump config has a wrong value."""


class DumpConfigTypeError(DumpConfigError, TypeError):
    """An argument that says what to dump is of a type that it never can be."""


MOST_NAMES = 30
"""Names that are listed: more would hide the nearest."""


def unknown_name(what: str, name: str, valid: Iterable[str], where: str) -> SettingsError:
    """The error for a misspelt name: says where it stands, the nearest known name, and all of them.

    Of very many names it says the nearest alone, where there is one.
    """
    names = list(valid)
    near = did_you_mean(name, names)
    known = "" if near and len(names) > MOST_NAMES else f"known: {', '.join(names)}"
    return SettingsError(f"{where}: unknown {what} {name!r:.100}; {near}{known}".rstrip())


def did_you_mean(name: str, names: Sequence[str], prefix: str = "") -> str:
    """The question for the known name (after `prefix`) that is nearest to `name`; empty without one."""
    bare = name.removeprefix(prefix)
    near = difflib.get_close_matches(bare, names, n=1) or [n for n in names if bare and bare in n]
    return f"did you mean {prefix + near[0]!r}? " if near else ""


# Doors: what nobody foresaw becomes one sentence that says what was being done, and with which file.
#
# Readers and planners raise `AccError` for what they know may be wrong. For all else `guarded` stands at the
# doors: around opening a dump, planning, judging a pair, writing a report. So bad input ends in a sentence
# and in exit code 4 or a failed test, never in pytest's internal error.


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
    Raises `OperatorError`, with the words of the error if these are to be `quoted`."""

    def __init__(self, doing: str, quoted: bool = True) -> None:
        super().__init__(doing)
        self._quoted = quoted

    def _error(self, error: Exception) -> AccError:
        return OperatorError(_sentence(self._doing, error, self._quoted))


def unforeseen(doing: str, error: Exception) -> Unforeseen:
    """An error that nobody foresaw."""
    return Unforeseen(_sentence(doing, error))


def _sentence(doing: str, error: Exception, quoted: bool = True) -> str:
    """The sentence of an error; with `--acc-debug` its traceback goes to stderr."""
    if _with_traceback:
        traceback.print_exception(error, file=sys.stderr)
        hint: str = "its traceback is on stderr"
    else:
        hint = Reason("pass {} for the traceback", FLAG)
    reason = " ".join(str(error).split()) if quoted else "its code does not run on what was dumped"
    if len(reason) > _LONGEST:
        reason = f"{reason[:_LONGEST]}..."
    kind = type(error).__name__
    return Reason("{}: {} ({})", doing, Reason("{}: {}", kind, reason) if reason else kind, hint)
