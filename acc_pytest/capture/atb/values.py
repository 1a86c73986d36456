"""Read the value of one option, as typed on a command line or given from Python, and say what is wrong.

Each reader takes a text, a list of texts, or the Python value that it stands for, and raises
`ValueError` with the sentence that the user shall read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...json_text import parsed
from ...vocabulary import words_of

TYPES = ("model", "layer", "op", "kernel", "tensor", "cpu_profiling", "onnx", "stats")
LOG_LEVELS = ("debug", "info", "warning", "error", "fatal", "critical")
"""In the order of the probe's numbers."""
_IDS = re.compile(r"\d+(_\d+)*(,\d+(_\d+)*)*", re.ASCII)
_YES = frozenset({"yes", "true", "t", "y", "1"})
_NO = frozenset({"no", "false", "f", "n", "0"})
_LARGEST_CONFIG = 2**30
_LARGEST_SEED = 2**32 - 1
"""Python does not start with a larger PYTHONHASHSEED."""


def types(value: Any) -> tuple[str, ...]:
    """Kinds of files to write, in the given order, each once."""
    names = [value] if isinstance(value, str) else list(value)
    for name in names:
        if name not in TYPES:
            raise ValueError(f"must be one of {' '.join(TYPES)}, got {name!r}")
    if not names:
        raise ValueError(f"name at least one of {' '.join(TYPES)}")
    return tuple(dict.fromkeys(names))


def ids(value: Any) -> str:
    """Ids of operations, without the spaces that may stand around commas."""
    text = _list(value)
    if text and not _IDS.fullmatch(text):
        raise ValueError(f"{text!r}: an id is numbers joined by _, and commas separate ids, as in 2,3_1")
    return text


def ranges(value: Any) -> str:
    """Pairs of first and last execution, both included; or `all`."""
    text = _list(value)
    if text == "all":
        return text
    numbers = text.split(",")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"{text!r}: give first and last execution, as in 0,2 or 0,0,5,7; or all")
    if len(numbers) % 2:
        alone = numbers[-1]
        raise ValueError(
            f"{text!r} has no pairs of first and last execution (the probe would ignore {alone}); "
            f"for execution {alone} alone write {alone},{alone}"
        )
    for first, last in zip(numbers[::2], numbers[1::2]):
        if int(first) > int(last):
            raise ValueError(
                f"the first execution must not be after the last, got {first},{last}; write {last},{first}"
            )
    return text


def names(value: Any) -> str:
    """Beginnings of operation names; the probe compares them with names in lower case."""
    return ",".join(name for name in _list(value).lower().split(",") if name)


def devices(value: Any) -> str:
    """Numbers of devices."""
    text = _list(value)
    if not all(number.isascii() and number.isdecimal() for number in text.split(",")):
        raise ValueError(f"a device must be a whole number >= 0, got {text!r}")
    return text


def truth(value: Any) -> bool:
    """True or False in one of the old tool's spellings."""
    word = str(value).lower()
    if word not in _YES | _NO:
        raise ValueError(f"must be True or False, got {value!r}")
    return word in _YES


def flag(value: Any) -> bool:
    """A switch: on the command line it is there or not."""
    if not isinstance(value, bool):
        raise ValueError(f"must be True or False, got {value!r}")
    return value


def up_to(last: int) -> Callable[[Any], int]:
    """A reader of whole numbers from 0 to `last`."""

    def read(value: Any) -> int:
        if str(value) not in map(str, range(last + 1)):
            raise ValueError(f"must be a whole number from 0 to {last}, got {value!r}")
        return int(value)

    return read


def seed(value: Any) -> int | None:
    """A seed, or `None` for no determinism."""
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be a whole number, got {value!r}") from None
    if not 0 <= number <= _LARGEST_SEED:
        raise ValueError(f"must be from 0 to {_LARGEST_SEED} (the range of PYTHONHASHSEED), got {number}")
    return number


def choice_of(*choices: str) -> Callable[[Any], str]:
    """A reader of one word out of `choices`."""

    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {' '.join(choices)}, got {value!r}")
        return str(value)

    return read


def path(value: Any) -> Path:
    """A path. Whether it exists is checked when it is used."""
    if not str(value):
        raise ValueError("the path is empty")
    return Path(value)


def config(value: Any) -> Path:
    """A dump configuration that the probe will accept: it re-reads the file while the program runs.

    The probe wants a regular file of the user's own that nobody else may write, and otherwise dumps
    nothing without a word.
    """
    file = Path(value)
    try:
        status = file.lstat()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{file}: must be a regular file (the probe does not follow links)")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"{file}: other users may write this file, so the probe refuses it; run: chmod go-w {file}"
        )
    if status.st_uid != os.getuid():
        raise ValueError(f"{file}: belongs to another user, so the probe refuses it; make your own copy")
    if not 1 <= status.st_size <= _LARGEST_CONFIG:
        raise ValueError(f"{file}: must have 1 byte to 1 GiB for the probe, got {status.st_size} bytes")
    try:
        content = parsed(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f'{file}: must hold a JSON object such as {{"dump_enable": "true", "er": "0,0"}}')
    return file.absolute()


def _list(value: Any) -> str:
    """`2, 3_1` as a shell hands it over (`["2,", "3_1"]`), or numbers from Python, as `2,3_1`."""
    pieces: Iterable[Any] = value if isinstance(value, (list, tuple)) else [value]
    return ",".join(words_of(*map(str, pieces)))
