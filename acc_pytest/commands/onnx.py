"""`acc onnx`: topology reports of ATB dumps as ONNX files."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AccError
from ..reporting.printable import message
from ..tensors.stores.address import path_on_disk
from .arguments import USAGE_ERROR

if TYPE_CHECKING:
    from .arguments import Commands


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
