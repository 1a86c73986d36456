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


def add(commands: Commands) -> None:
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
    parser.set_defaults(run=run)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    part = parser.add_argument_group("a part of the dump (--to acc)")
    part.add_argument(
        "--step",
        action="append",
        default=[],
        metavar="N,...",
        help="keep these steps only: 0,3-5; warmup is the name of what ran before step 0",
    )
    part.add_argument(
        "--rank",
        action="append",
        default=[],
        metavar="N,...",
        help="keep these ranks only: 0,2-3",
    )
    part.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="GLOB",
        help="keep these nodes only, by path or name: 'root.model.layers.0*'",
    )


def run(given: argparse.Namespace) -> int:
    """Convert, and say what became of it."""
    from ..capture.keeping import DumpPart, keep, restore

    selection = DumpPart.of(given.step, given.rank, given.node)
    if given.to == FILES and selection:
        raise SettingsError("--step, --rank and --node choose what --to acc keeps; --to files writes it all")
    if given.to == FILES:
        restored = restore(given.path, given.out)
        print(f"acc: {message(restored.path)}: {_files(restored)}, {size(restored.after)}")
        return 0
    progress = Progress(sys.stderr)

    def said(kept: Kept) -> None:
        progress.show(kept.files, 0, f"{_files(kept)}, {size(kept.before)} in {size(kept.after)}")

    try:
        kept = keep(given.path, given.out, said, selection)
    finally:
        progress.close()
    for note in kept.notes:
        print(f"acc: {message(note)}", file=sys.stderr)
    print(
        f"acc: {message(kept.path)}: {_files(kept)} of a dump of {kept.kind}, "
        f"{size(kept.before)} in {size(kept.after)}"
    )
    return 0


def _files(kept: Kept) -> str:
    return f"{kept.files} file{'s' * (kept.files != 1)}"
