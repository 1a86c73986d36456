"""The directory that gets a dump: checked before the program runs, since the probe is silent about it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ...errors import LaunchError
from ...tensors.whole_file import DIRECTORY_MODE, make_directory

LEAST_FREE = 2 * 2**30
"""Bytes; the probe itself stops writing below this."""
_PROBE_PATH = re.compile(r"[a-zA-Z0-9_./-]{1,4096}")
"""Directories that the probe of msit (2024-08 and later) and `atb_cpu` take; elsewhere they write nothing."""


def output_directory(given: Path) -> Path:
    """The output directory as a real path, made where it is missing, with room in it."""
    path = given.expanduser().resolve()
    if not _PROBE_PATH.fullmatch(str(path)):
        raise LaunchError(
            f"-o {path}: the probe writes only below directories named by letters, digits and _./-; "
            f"give another directory with -o"
        )
    try:
        make_directory(path)
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise LaunchError(f"-o {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise LaunchError(f"-o {path}: you may not write there; give a directory of your own with -o")
    if free < LEAST_FREE:
        raise LaunchError(
            f"-o {path}: {free / 2**30:.2f} GiB free, and the probe stops writing below 2 GiB; make room, or "
            f"give another directory with -o"
        )
    return path


def reserve_timestamp(output: Path, era: str) -> str:
    """A timestamp (UTC, as the old tool's) that no other run in this directory has."""
    moment = datetime.now(timezone.utc)
    while True:
        timestamp = moment.strftime("%Y%m%d_%H%M%S")
        if era == "msprobe" and not (output / f"atb_dump_config_{timestamp}.json").exists():
            return timestamp
        if era == "msit" and not (output / f"ait_dump_{timestamp}").exists():
            try:
                (output / f"msit_dump_{timestamp}").mkdir(mode=DIRECTORY_MODE)
            except FileExistsError:
                pass
            except OSError as error:
                raise LaunchError(f"-o {output}: {error.strerror}") from error
            else:
                return timestamp
        moment += timedelta(seconds=1)


def clock(output: Path) -> int:
    """The time as the file system of `output` tells it, in nanoseconds."""
    with tempfile.NamedTemporaryFile(dir=output, prefix=".acc_") as file:
        return os.fstat(file.fileno()).st_mtime_ns
