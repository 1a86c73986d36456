"""`acc dump`: run a program so that the ATB probe in it writes a dump; the old tool's flags."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.atb import prepare
from ..capture.atb.options import DEFAULT_SEED, OPTIONS, LaunchOptions, read_options, split_command
from ..errors import AccError, DumpError, SettingsError
from ..reporting.progress import Progress, size
from ..reporting.texts import message, shell
from ..tensors.address import Cache, is_address, path_on_disk
from .arguments import INTERRUPTED, USAGE_ERROR

if TYPE_CHECKING:
    from ..capture.atb.launch import Finished
    from ..capture.atb.written_files import WrittenFiles
    from ..capture.dump_info import InfoConversion
    from ..remote.keeping import Kept
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
        settings = dict(_TAKES[option.takes])
        if option.metavar:
            settings["metavar"] = option.metavar
        # A value that was not given is absent, so that what was given can be told apart.
        parser.add_argument(
            *option.flags, dest=option.field, default=argparse.SUPPRESS, help=option.help, **settings
        )
    parser.set_defaults(run=run_dump, passes_on=True)


def run_dump(arguments: argparse.Namespace) -> int:
    """Run the program; returns its exit code, or 1 where it succeeded but something asked for is missing."""
    if not is_address(arguments.output if hasattr(arguments, "output") else ""):
        return _run(arguments, str)
    from ..remote.uploading import StagedDump

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
    return [*lines, _next(files, finished.launch.options)]


def _next(files: WrittenFiles, options: LaunchOptions) -> str:
    root = message(str(files.root))
    if options.only_description:
        return f"descriptions without values; dump again without -sd to compare, {root}"
    if options.part == 0:
        return f"inputs alone; dump again without -stp 0 to compare what operators compute, {root}"
    if not files.files("tensors", "statistic.csv"):
        return f"no tensors, so nothing to compare, in {root}"
    if not files.files("model", "layer"):
        return f"no topology; dump again with --type tensor model to compare, {root}"
    return "compare with: " + shell(["pytest", "--acc-golden=GOLDEN", f"--acc-mine={files.root}"])


# `acc dump-info`: replace the tensors of a GE or FX dump by their minimum, maximum, mean and norm.


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
        failed = f", {len(conversion.failed)} failed" if conversion.failed else ""
        progress.show(done + number, total, f"files, {size(conversion.nbytes)}{failed}")


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """`kill` ends watching as Ctrl-C does: in a script that is the only way to end it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# `acc convert`: a dump of any kind as a few files that hold each tensor once, and back.


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
    group = parser.add_argument_group("a part of the dump (--to acc)")
    group.add_argument(
        "--step",
        action="append",
        default=[],
        metavar="N,...",
        help="keep these steps only: 0,3-5; warmup is the name of what ran before step 0",
    )
    group.add_argument(
        "--rank", action="append", default=[], metavar="N,...", help="keep these ranks only: 0,2-3"
    )
    group.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="GLOB",
        help="keep these nodes only, by path or name: 'root.model.layers.0*'",
    )
    parser.set_defaults(run=run_convert)


def run_convert(arguments: argparse.Namespace) -> int:
    """Convert, and say what became of it."""
    from ..remote.keeping import DumpPart, keep, restore

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


# `acc index`: the index of a dump, so that it opens without its directories listed and its files read.


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
    from ..remote.indexing import index

    summary = index(arguments.path, Cache(arguments.cache_dir))
    files, headers = f"{summary.files} files", f"{summary.headers} headers of tensors"
    print(f"acc: {message(summary.place)}: {files}, {headers}, {size(summary.nbytes)}")
    return 0


# `acc onnx`: topology reports of ATB dumps as ONNX files.


def add_onnx(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "onnx",
        help="write the topology of an ATB dump as ONNX",
        description="Write layer and model reports of an ATB dump as ONNX files, beside the reports.",
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a .json report, or a dump: all reports in it"
    )
    parser.add_argument(
        "--level",
        type=int,
        default=-1,
        metavar="N",
        help="depth whose operations become nodes: 0 the whole, 1 the layers, -1 the innermost (default)",
    )
    parser.add_argument(
        "--csv", default=None, metavar="FILE", help="take shapes from this operation CSV, not the dump's"
    )
    parser.add_argument(
        "-o", "--output", default="", metavar="OUT", help="the .onnx file, or a directory for several"
    )
    parser.set_defaults(run=run_onnx)


def run_onnx(arguments: argparse.Namespace) -> int:
    """Write the files and say what is in them; a broken report costs its own file and the exit code."""
    from ..topology.onnx_export import export

    cache: dict[str, Any] = {}
    failed = 0
    for report, target in _targets(arguments.paths, arguments.output):
        try:
            done = export(report, arguments.level, cache, csv_file=arguments.csv, output=target)
        except AccError as error:
            print(f"acc: error: {message(str(error))}", file=sys.stderr)
            failed += 1
        else:
            counts = f"{done.nodes} nodes, shapes of {done.shaped} of {done.tensors} tensors"
            print(message(f"{done.path}: {counts}"))
    return USAGE_ERROR if failed else 0


def _targets(paths: list[str], output: str) -> list[tuple[Path, Path]]:
    """Reports and the files to write. Raises `AccError` where two reports would get one file."""
    reports = [(report, base) for path in paths for report, base in _reports(Path(path_on_disk(path)))]
    single = len(paths) == 1 and len(reports) == 1 and not Path(paths[0]).is_dir()
    if output and single and not os.path.isdir(output):
        return [(reports[0][0], Path(output))]
    targets: dict[Path, Path] = {}
    for report, base in reports:
        target = (Path(output) / report.relative_to(base) if output else report).with_suffix(".onnx")
        first_report = targets.setdefault(target, report)
        if first_report.absolute() != report.absolute():
            raise AccError(
                f"{report}: {target} would be written for {first_report} too; give the reports one by one"
            )
    return [(report, target) for target, report in targets.items()]


def _reports(path: Path) -> list[tuple[Path, Path]]:
    """The reports that `path` means, each with the directory its place is told from."""
    from ..topology.onnx_export import REPORTS

    if not path.exists():
        raise AccError(f"{path}: no such file or directory; correct the path")
    if not path.is_dir():
        return [(path, path.parent)]
    reports = [
        (Path(home) / name, path)
        for home, _, names in os.walk(path)
        if Path(os.path.abspath(home)).parent.name in REPORTS
        for name in names
        if name.endswith(".json")
    ]
    if not reports:
        raise AccError(f"{path}: holds no topology of an ATB dump (model/PID/*.json, layer/PID/*.json)")
    return sorted(reports)
