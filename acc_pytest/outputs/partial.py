"""Names of reports that are being written, by which those of killed runs are found again.

`report.csv` grows as `report.csv.partial` and gets its name when the run ends, so that a run that is killed
leaves the previous `report.csv` and, beside it, the rows it had. Where that name is taken (by another run
that is going on, or one that was killed), it is `report.csv.2.partial` and so on: nobody writes over the
rows of another run. Whoever writes such a file holds a lock on it, which ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator

from ..tensors.whole_file import FILE_MODE

SUFFIX = ".partial"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def new_partial(path: str) -> tuple[int, str]:
    """The file as which the report `path` grows: its descriptor and its name. Raises `OSError`."""
    number = 1
    while True:
        name = f"{path}{'' if number == 1 else f'.{number}'}{SUFFIX}"
        with contextlib.suppress(FileExistsError):
            return _locked(os.open(name, _FLAGS, FILE_MODE)), name
        number += 1


def new_report(path: str) -> tuple[int, str, str]:
    """As `new_partial`, for a report that replaces none: descriptor, name while it grows, own name.

    The own name is `path`, or where that is taken `{stem}_1{extension}`, `..._2`, and so on. Of two runs
    that ask at the same time each gets another one: a name is free when neither it nor its partial is
    there, and that is asked while we hold the partial, which becomes the report in one step.
    """
    stem, extension = os.path.splitext(path)
    number = 0
    while True:
        name = f"{stem}_{number}{extension}" if number else path
        number += 1
        try:
            descriptor = os.open(name + SUFFIX, _FLAGS, FILE_MODE)
        except FileExistsError:
            continue
        if not os.path.lexists(name):
            return _locked(descriptor), name + SUFFIX, name
        os.close(descriptor)
        os.unlink(name + SUFFIX)


def left_behind(path: str) -> list[str]:
    """The files that killed runs left of the report `path`, the newest first; none that a run still holds."""
    home, base = os.path.split(path)
    ours = re.compile(re.escape(base) + r"(\.\d+)?" + re.escape(SUFFIX), re.ASCII)
    dated = []
    with contextlib.suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if (
                ours.fullmatch(entry.name)
                and entry.is_file(follow_symlinks=False)
                and not is_held(entry.path)
            ):
                dated.append((entry.stat().st_mtime_ns, entry.path))
    return [name for _, name in sorted(dated, reverse=True)]


def partials(path: str) -> Iterator[str]:
    """Files that the report `path` grew as, or grows as now, in the order of their names."""
    number = 1
    while os.path.isfile(name := f"{path}{'' if number == 1 else f'.{number}'}{SUFFIX}"):
        yield name
        number += 1


def _locked(descriptor: int) -> int:
    """The descriptor, with a lock on its file where the file system has locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_held(path: str) -> bool:
    """Whether a run that goes on writes the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
