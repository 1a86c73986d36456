"""The way from errors of ours, and from Ctrl-C, to pytest, at the start of a run and in its hooks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from ..errors import AccError
from ..guard import guarded
from ..reporting.printable import error_text
from ..reporting.wrapping import paragraph


@contextmanager
def door(doing: str, where: str = "") -> Iterator[None]:
    """Raise `pytest.UsageError` (exit code 4) for every error of what is done inside, foreseen or not.

    `doing` says in a sentence about the unforeseen what it was, `where` begins every sentence.
    """
    try:
        with guarded(doing, (pytest.UsageError,)):
            yield
    except AccError as error:
        raise pytest.UsageError(paragraph(error_text(error, where), "ERROR: ")) from None


@contextmanager
def noting_interrupts() -> Iterator[None]:
    """End in `KeyboardInterrupt` whatever became of the one that a Ctrl-C in here has raised.

    torch and numpy turn one that comes while they are imported into errors of their own, or swallow it: an
    interrupted import of numpy, met by another import that goes on without it, is an `ImportError` that
    nobody can make sense of. Does nothing outside of the main thread, or where others handle the signal.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt
