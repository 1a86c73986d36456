"""What a case must keep to: return, or refuse in one sentence, soon, in little memory, touching nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acc_pytest import errors
from acc_pytest.errors import AccError, Unforeseen
from acc_pytest.reporting.texts import message

SECONDS = 1.0
"""CPU time that a case may take."""
MEGABYTES = 200
"""Memory that a case may take beyond what the process had."""
LONGEST = 2000
"""Characters of a message."""
GIVEN_UP = 15.0
"""CPU seconds after which a case is interrupted."""
_ADDRESS_SPACE = 4 << 30
"""Bytes of address space a case may map beyond what the process had, for the sake of the machine."""

_CHANGES = {"os.mkdir": 2, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.link": 2, "os.symlink": 2}
"""Which argument of each event is the descriptor of the directory that its path counts from."""

RETURNED, REFUSED = "returned", "refused"
UNTYPED, UNCLEAR, SLOW, BIG, STRAY, CRASHED = "untyped", "unclear", "slow", "big", "stray", "crashed"
BAD = (UNTYPED, UNCLEAR, SLOW, BIG, STRAY, CRASHED)


@dataclass(frozen=True)
class Outcome:
    """How a case ended. `trace` is where an error came from, for people who mend it."""

    kind: str
    said: str = ""
    trace: str = ""


class _Interrupted(BaseException):
    """Raised in a case that has taken its time."""


class Watch:
    """Sees what the process opens for writing, makes, moves and removes outside of one directory.

    It sees too what guards catch, for much of that ends in a row and not in an exception.
    """

    def __init__(self, inside: Path) -> None:
        self._inside = str(inside)
        self.seen: list[str] = []
        self.caught: list[Exception] = []
        self.on = False
        sys.addaudithook(self._hook)
        self._sentence_of = errors.unforeseen
        errors.unforeseen = self._caught

    def _caught(self, doing: str, error: Exception) -> Unforeseen:
        self.caught.append(error)
        return self._sentence_of(doing, error)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = (*arguments, None, None, None)[:3]
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes or (isinstance(mode, str) and any(one in mode for one in "wax+")):
                self._note(event, path)
        elif event in _CHANGES:
            self._note(event, arguments[0], arguments[_CHANGES[event]])
        elif event == "os.truncate":
            self._note(event, arguments[0])
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"):
            self.seen.append(event)

    def _note(self, event: str, path: object, within: int = -1) -> None:
        """`within` is the directory that a path counts from, as a descriptor; -1 where it is the working
        directory."""
        if isinstance(path, int) or path is None:
            return
        above = os.readlink(f"/proc/self/fd/{within}") if within >= 0 else ""
        text = os.path.abspath(os.path.join(above, os.fsdecode(path)))  # type: ignore[arg-type]
        if not text.startswith((self._inside, "/dev/null", "/proc/self/")):
            self.seen.append(f"{event} {text}")


def limited() -> None:
    """Limit this process, so that a case that takes all memory takes none of the others'."""
    size = _status("VmSize") + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _interrupt)


def judged(run: Callable[[], object], watch: Watch) -> Outcome:
    """The outcome of one case. What was slow or big is run once more, to rule out noise."""
    outcome = _once(run, watch)
    return _once(run, watch) if outcome.kind in (SLOW, BIG) else outcome


def _once(run: Callable[[], object], watch: Watch) -> Outcome:
    watch.seen.clear()
    watch.caught.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _reset_peak()
        before, start = _status("VmRSS"), time.process_time()
        outcome = _called(run, watch)
        seconds, taken = time.process_time() - start, (_status("VmHWM") - before) >> 20
    if watch.caught:
        error = watch.caught[0]
        return Outcome(UNTYPED, f"caught by a guard: {type(error).__name__}: {error!s:.300}", _trace(error))
    if outcome.kind in (UNTYPED, UNCLEAR):
        return outcome
    if seconds > SECONDS:
        return Outcome(SLOW, f"{seconds:.1f} s: {outcome.said}", outcome.trace)
    if taken > MEGABYTES:
        return Outcome(BIG, f"{taken} MB: {outcome.said}", outcome.trace)
    if watch.seen or warned:
        return Outcome(STRAY, "; ".join([*watch.seen[:3], *(str(one.message) for one in warned[:3])]))
    return outcome


def _called(run: Callable[[], object], watch: Watch) -> Outcome:
    try:
        with _interrupted_after(GIVEN_UP):
            watch.on = True
            run()
    except AccError as error:
        said = str(error)
        wrong = unclear(said, message(said))
        return Outcome(UNCLEAR, f"{wrong}: {said!r:.400}", _trace(error)) if wrong else Outcome(REFUSED, said)
    except _Interrupted as error:
        return Outcome(SLOW, f"interrupted after {GIVEN_UP:.0f} s", _trace(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what is looked for
        return Outcome(UNTYPED, f"{type(error).__name__}: {error!s:.300}", _trace(error))
    finally:
        watch.on = False
    return Outcome(RETURNED)


def unclear(message: str, shown: str) -> str:
    """What is wrong with a message that people are shown; empty where it is one readable sentence."""
    if not message.strip():
        return "says nothing"
    if len(message) > LONGEST:
        return f"is {len(message)} characters long"
    bad = sorted(
        {f"U+{ord(one):04X}" for one in shown if unicodedata.category(one) in ("Cc", "Cs") and one != "\n"}
    )
    return f"holds {', '.join(bad)}" if bad else ""


@contextlib.contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _interrupt(*_: object) -> None:
    raise _Interrupted


def _trace(error: BaseException) -> str:
    """The frames of ours, or all where none is."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-12))[-6000:]


def _status(name: str) -> int:
    """Bytes that the kernel says of this process."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(name.encode()):
                return int(line.split()[1]) << 10
    raise LookupError(name)


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "wb") as file:
        file.write(b"5")
