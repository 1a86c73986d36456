"""`acc dump-info`: replace the tensors of a GE or FX dump by their minimum, maximum, mean and norm."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import DumpError, SettingsError
from ..reporting.printable import message
from ..tensors.stores.address import path_on_disk
from .arguments import INTERRUPTED
from .progress import Progress, size

if TYPE_CHECKING:
    from ..capture.dump_info import InfoConversion
    from .arguments import Commands

_MOST_LINES = 20


def add_dump_info(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "dump-info",
        help="describe the tensors of a TorchAir dump by a few numbers each, while it is written or after",
        description="Write an info file (minimum, maximum, mean, norm) beside each file with tensors of a GE "
        "or FX dump. A file that is still being written is not read before it rests. Stopped at any time, "
        "it goes on where it was when it is run again.",
        epilog="Exit code: 0 when every file has its info file; 1 when some could not be read or decoded, or "
        "are still being written; 4 when there is nothing to convert; 130 when interrupted without --watch.",
    )
    parser.add_argument("path", metavar="PATH", help="the dump, any directory of it, or one file")
    parser.add_argument(
        "--watch", action="store_true", help="go on as files appear, until Ctrl-C, SIGTERM or --until-idle"
    )
    parser.add_argument(
        "--until-idle",
        type=float,
        metavar="S",
        help="watch, and end when nothing appeared or changed for S seconds",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--keep", action="store_true", help="keep the files with tensors (the default)")
    group.add_argument(
        "--delete",
        action="store_true",
        help="delete each file when its info file is on the disk and nothing of it could not be decoded",
    )
    parser.set_defaults(run=run_dump_info)


def run_dump_info(arguments: argparse.Namespace) -> int:
    """Convert once, or watch; returns the exit code that `--help` lists."""
    idle = arguments.until_idle
    if idle is not None and not (0 < idle < math.inf):
        raise SettingsError(f"--until-idle must be a number of seconds > 0, got {idle:g}")
    watch = arguments.watch or idle is not None
    from ..capture.dump_info import InfoConversion

    conversion = InfoConversion(path_on_disk(arguments.path), delete=arguments.delete)
    progress = Progress(sys.stderr)
    interrupted = False
    try:
        with _terminated_as_interrupted() if watch else contextlib.nullcontext():
            (_watch if watch else _once)(conversion, progress, math.inf if idle is None else idle)
    except KeyboardInterrupt:
        interrupted = not watch
    finally:
        progress.close()
    return _summary(conversion, interrupted)


def _once(conversion: InfoConversion, progress: Progress, _idle: float) -> None:
    """Two scans, and what rested between them. A file that changes while others are read stays."""
    from ..capture.dump_info import SETTLE_SECONDS

    conversion.scan()
    time.sleep(SETTLE_SECONDS)
    _convert(conversion, progress)


def _watch(conversion: InfoConversion, progress: Progress, idle: float) -> None:
    from ..capture.dump_info import SETTLE_SECONDS

    while True:
        started = time.monotonic()
        if os.path.lexists(conversion.path):  # the run that makes the dump may not have started yet
            _convert(conversion, progress)
        now = time.monotonic()
        if not conversion.waiting and now - conversion.changed >= idle:
            return
        # Looking at a large dump takes its time; as much again is left to the run that writes it.
        time.sleep(max(SETTLE_SECONDS, now - started))


def _convert(conversion: InfoConversion, progress: Progress) -> None:
    ready = conversion.scan()
    done, total = conversion.found - conversion.pending, conversion.found
    for number, file in enumerate(ready, start=1):
        conversion.convert(file)
        progress.show(done + number, total, _state(conversion))


def _state(conversion: InfoConversion) -> str:
    failed = f", {len(conversion.failed)} failed" if conversion.failed else ""
    return f"files, {size(conversion.nbytes)}{failed}"


def _summary(conversion: InfoConversion, interrupted: bool) -> int:
    """Print the outcome for the files; returns the exit code."""
    problems = [*conversion.failed.values(), *conversion.partly.values()]
    for line in problems[:_MOST_LINES]:
        print(f"acc: {message(line)}", file=sys.stderr)
    if len(problems) > _MOST_LINES:
        print(f"acc: ... and {len(problems) - _MOST_LINES} more like these", file=sys.stderr)
    counts = (
        (conversion.converted, f"converted ({size(conversion.nbytes)})"),
        (conversion.before, "had their info file already"),
        (conversion.deleted, "deleted"),
        (conversion.arguments, "hold an argument that is not a tensor"),
        (len(conversion.partly), "have tensors that cannot be decoded"),
        (len(conversion.failed), "failed"),
        (conversion.pending, "are still being written or not yet looked at twice; run again"),
    )
    clauses = [f"{count} {what}" for count, what in counts if count]
    if not clauses:
        raise DumpError(f"{conversion.path}: holds no GE or FX file, so there is nothing to convert")
    print(f"acc: {'; '.join(clauses)}")
    if interrupted:
        return INTERRUPTED
    return 1 if conversion.failed or conversion.pending or conversion.partly else 0


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """`kill` ends watching as Ctrl-C does: in a script that is the only way to end it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
