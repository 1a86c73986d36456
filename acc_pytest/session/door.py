"""`door`: the way from errors of ours to pytest, at the start of a run and in its hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ..errors import AccError
from ..guard import guarded
from ..reporting.printable import message
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
        raise pytest.UsageError(paragraph(message(f"{where}{error}"), "ERROR: ")) from None
