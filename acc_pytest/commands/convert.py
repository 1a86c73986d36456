"""`acc convert`: a dump of any kind as a few files that hold each tensor once, and back."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..errors import SettingsError
from ..reporting.printable import message
from .progress import Progress, size

if TYPE_CHECKING:
    from ..capture.keeping import Kept
    from .arguments import Commands

KEPT, FILES = "acc", "files"


def add_convert(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "convert",
        help="keep a dump of any kind as a few files, each tensor once; or make it what it was",
        description="Write a dump of any kind as a kept dump: a directory of a few files that holds equal "
        "tensors once. It is compared like the dump that it was made of, with the same pairs, verdicts and "
        "roots. With --to files, write the files of a kept dump as they were.",
        epilog="Exit code: 0 when the dump was written; 4 when it was not, and then nothing of it is left.",
    )
    parser.add_argument("path", metavar="DUMP", help="the dump, or a place inside it")
    parser.add_argument(
        "--to",
        required=True,
        choices=(KEPT, FILES),
        help="acc: a kept dump; files: the files that a kept dump was made of",
    )
    parser.add_argument(
        "--out",
        default="",
        metavar="DIR",
        help="the directory to write, which must not exist (default: in the working directory, the name of "
        "the dump with _kept, or without it)",
    )
    _add_selection(parser)
    parser.set_defaults(run=run_convert)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a part of the dump (--to acc)")
    group.add_argument(
        "--step",
        action="append",
        default=[],
        metavar="N,...",
        help="keep these steps only: 0,3-5; warmup is the name of what ran before step 0",
    )
    group.add_argument(
        "--rank",
        action="append",
        default=[],
        metavar="N,...",
        help="keep these ranks only: 0,2-3",
    )
    group.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="GLOB",
        help="keep these nodes only, by path or name: 'root.model.layers.0*'",
    )


def run_convert(arguments: argparse.Namespace) -> int:
    """Convert, and say what became of it."""
    from ..capture.keeping import DumpPart, keep, restore

    selection = DumpPart.of(arguments.step, arguments.rank, arguments.node)
    if arguments.to == FILES and selection:
        raise SettingsError("--step, --rank and --node choose what --to acc keeps; --to files writes it all")
    if arguments.to == FILES:
        restored = restore(arguments.path, arguments.out)
        print(f"acc: {message(restored.path)}: {_files(restored)}, {size(restored.after)}")
        return 0
    progress = Progress(sys.stderr)

    def report(dump: Kept) -> None:
        progress.show(dump.files, 0, f"{_files(dump)}, {size(dump.before)} in {size(dump.after)}")

    try:
        dump = keep(arguments.path, arguments.out, report, selection)
    finally:
        progress.close()
    for note in dump.notes:
        print(f"acc: {message(note)}", file=sys.stderr)
    print(
        f"acc: {message(dump.path)}: {_files(dump)} of a dump of {dump.kind}, "
        f"{size(dump.before)} in {size(dump.after)}"
    )
    return 0


def _files(dump: Kept) -> str:
    return f"{dump.files} file{'s' * (dump.files != 1)}"
