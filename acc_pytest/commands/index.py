"""`acc index`: the index of a dump, so that it opens without its directories listed and its files read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..reporting.printable import message
from .progress import size

if TYPE_CHECKING:
    from .arguments import Commands


def add_index(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "index",
        help="write the names, sizes and headers of a dump into one file, which opens it fast",
        description="Write the index of a dump into its directory. A comparison that finds an index neither "
        "lists directories nor opens files to see what they hold. One that is no longer true is not used.",
        epilog="Exit code: 0 when the index was written, else 4.",
    )
    parser.add_argument(
        "path", metavar="DUMP", help="the dump: a directory, or an address as s3://bucket/dump"
    )
    parser.add_argument(
        "--cache-dir", default="", metavar="DIR", help="as acc_cache_dir, for the dump of an address"
    )
    parser.set_defaults(run=run_index)


def run_index(arguments: argparse.Namespace) -> int:
    """Write the index and say where."""
    from ..dumps.indexing import index
    from ..dumps.roots import Cache

    summary = index(arguments.path, Cache(arguments.cache_dir))
    files, headers = f"{summary.files} files", f"{summary.headers} headers of tensors"
    print(f"acc: {message(summary.place)}: {files}, {headers}, {size(summary.nbytes)}")
    return 0
