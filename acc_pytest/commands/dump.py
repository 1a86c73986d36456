"""`acc dump`: run a program so that the ATB probe in it writes a dump; the old tool's flags."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..capture.atb.options import DEFAULT_SEED, OPTIONS, DumpOption, LaunchOptions, read_options
from ..capture.atb.words import split_command
from ..errors import AccError, SettingsError
from ..reporting.printable import message, shell
from ..tensors.stores.address import is_address
from .progress import size

if TYPE_CHECKING:
    from ..capture.atb.launch import Finished
    from ..capture.atb.written_files import WrittenFiles
    from .arguments import Commands

_TAKES: dict[str, dict[str, Any]] = {
    "one": {},
    "some": {"nargs": "+"},
    "perhaps": {"nargs": "?", "const": DEFAULT_SEED},
    "nothing": {"action": "store_true"},
}


def add_dump(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "dump",
        aliases=["dd"],
        help="run an ATB program and dump its tensors and topology",
        description="Run an ATB program with the probe, which dumps its tensors and topology.",
        epilog='The program may also stand after --: acc dump --type tensor model -- python run.py "a b"',
    )
    parser.add_argument(
        "--exec",
        metavar="COMMAND",
        help="the program, as one text; no shell reads it, quotes hold words together",
    )
    for option in OPTIONS:
        _add(parser, option)
    parser.set_defaults(run=run_dump, passes_on=True)


def _add(parser: argparse.ArgumentParser, option: DumpOption) -> None:
    settings = dict(_TAKES[option.takes])
    if option.metavar:
        settings["metavar"] = option.metavar
    # A value that was not given is absent, so that what was given can be told apart.
    parser.add_argument(
        *option.flags, dest=option.field, default=argparse.SUPPRESS, help=option.help, **settings
    )


def run_dump(arguments: argparse.Namespace) -> int:
    """Run the program; returns its exit code, or 1 where it succeeded but something asked for is missing."""
    if not is_address(arguments.output if hasattr(arguments, "output") else ""):
        return _run(arguments, str)
    from ..capture.uploading import StagedDump

    staged = StagedDump(arguments.output)
    arguments.output = staged.path
    try:
        code = _run(arguments, staged.shown)
    except AccError:
        staged.discard()
        raise
    staged.close()
    return code


def _run(arguments: argparse.Namespace, address_of: Callable[[str], str]) -> int:
    """Dump to a directory on the disk, which is told as `address_of` says."""
    from ..capture.atb import prepare

    launch = prepare(options_of(arguments))
    for note in launch.notes:
        print(f"acc: note: {message(address_of(note))}", file=sys.stderr)
    by = f"backend cpu, as {launch.era}" if launch.backend == "cpu" else f"probe of {launch.era}"
    print(f"acc: dumping below {message(address_of(str(launch.output)))} ({by})", flush=True)
    finished = launch.run()
    for problem in (*finished.problems, *finished.missing):
        print(f"acc: {message(address_of(problem))}", file=sys.stderr)
    for line in _closing(finished):
        print(f"acc: {address_of(line)}")
    return finished.code


def options_of(arguments: argparse.Namespace) -> LaunchOptions:
    """The checked options of a parsed command line."""
    raw = {
        option.field: getattr(arguments, option.field)
        for option in OPTIONS
        if hasattr(arguments, option.field)
    }
    return read_options(_command(arguments), raw)


def _command(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.exec is not None and arguments.for_pytest:
        raise SettingsError("--exec and a command after -- both name a program; give one of them")
    if arguments.exec is not None:
        return split_command(arguments.exec)
    if not arguments.for_pytest:
        raise SettingsError(
            '--exec: no program was given; write --exec "python run.py", or -- python run.py at the end'
        )
    return tuple(arguments.for_pytest)


def _closing(finished: Finished) -> list[str]:
    """The lines at the end: how the program failed, the files by kind and directory, the next command."""
    ended, files = finished.ended, finished.written
    lines = []
    if ended.signal:
        lines.append(
            f"interrupted by {signal.Signals(ended.signal).name}; what follows is what was written until then"
        )
    elif ended.code:
        lines.append(f"the program failed with exit code {ended.code}")
    if files.root is None:
        return [*lines, "nothing was dumped"] if ended.code else lines
    width = max(map(len, (*(kind.name for kind in files.kinds), *finished.absent)))
    for kind in files.kinds:
        count = f"{len(kind.files)} file{'s' * (len(kind.files) != 1)}"
        lines.append(f"{kind.name:{width}}  {count}, {size(kind.bytes)}, {message(str(kind.place))}")
    lines += [f"{name:{width}}  none" for name in finished.absent]
    return [*lines, _next(files)]


def _next(files: WrittenFiles) -> str:
    if not files.files("tensors", "statistic.csv"):
        return f"no tensors, so nothing to compare, in {message(str(files.root))}"
    if not files.files("model", "layer"):
        return f"no topology; dump again with --type tensor model to compare, {message(str(files.root))}"
    return "compare with: " + shell(["pytest", "--acc-golden=GOLDEN", f"--acc-mine={files.root}"])
