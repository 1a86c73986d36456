"""`acc compare`: `pytest --acc-golden ... --acc-mine ...` under the old tool's flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.imports import import_numpy
from ..errors import AccError, DumpError
from ..options import of_one_test
from ..reporting.texts import message
from ..tensors.address import path_on_disk
from .arguments import LOG_LEVELS, add_output, add_reading, add_sides, run_pytest, values_of_sides

if TYPE_CHECKING:
    from ..dumps.base import Dump
    from ..gate.stored import Merged
    from ..mapping.attributes import Description
    from ..mapping.pair import Plan
    from ..reporting.view import View
    from .arguments import Commands


def add_compare(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "compare",
        aliases=["cc"],
        help="compare two dumps",
        description="Compare two dumps. GOLDEN MINE: without pytest, which prints the summary alone; -gp "
        "and -mp: by pytest, under the flags of the old tool. Exit code: pytest's.",
        epilog="Everything after -- is passed to pytest: acc compare -gp G -mp M -- -k SelfAttention -n 2",
    )
    parser.add_argument("sides", nargs="*", metavar="DUMP", help="the trusted dump and the one under test")
    add_sides(parser, required=False)
    add_output(parser)
    parser.add_argument("--html", default="", metavar="FILE", help="write the HTML report")
    parser.add_argument("--history", default="", metavar="DIR", help="add this run to the history there")
    parser.add_argument("--json", default="", metavar="FILE", help="write the run as JSON")
    parser.add_argument("-st", "--stats", action="store_true", help="not needed: statistics are recognised")
    parser.add_argument("-w", "--weight", action="store_true", help="not offered: weights are no dump")
    parser.add_argument("-r", "--rank", metavar="N", help="compare this rank only (default: all common ones)")
    parser.set_defaults(run=run_compare, refuse=parser.error, passes_on=True)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare the two dumps, by pytest where they were given by its flags; returns its exit code."""
    if arguments.weight:
        raise AccError(
            "-w: weights are compared beside the dumps of a run; leave -w out, and give files of weights "
            "with --acc-weights golden=PATH and --acc-weights mine=PATH"
        )
    if arguments.stats:
        print(
            "acc: -st is not needed: dumps of statistics are recognised and compared as such", file=sys.stderr
        )
    sides = arguments.sides
    if bool(sides) == bool(arguments.golden_path) or len(sides) > 2 or (sides and arguments.my_path):
        arguments.refuse("give two dumps, as in acc compare GOLDEN MINE, or with -gp GOLDEN -mp MINE")
    if sides:
        arguments.golden_path, arguments.my_path = [*sides, None][:2]
    values = values_of_sides(arguments) | {"metrics": tuple(arguments.custom_algorithms)}
    optional = ("output", "html", "json", "history", "rank")
    values |= {name: getattr(arguments, name) for name in optional if getattr(arguments, name)}
    words = [*LOG_LEVELS[arguments.log_level], *arguments.for_pytest]
    if not sides or words:
        return run_pytest({"output": ".", **values}, words)
    from ..running.comparison import ComparisonMode
    from ..running.direct import run_directly

    return run_directly(ComparisonMode, values, show=print).exit_status


# `acc map`: print what would be compared with what, and why.


def add_map(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "map",
        help="print what would be compared with what, and why",
        description="Print every pair of two dumps, and every tensor without a partner, with the reason.",
    )
    add_sides(parser)
    parser.add_argument(
        "--propose",
        action="store_true",
        help="propose pairs of equal values among the tensors without a partner, which are read for it",
    )
    parser.add_argument(
        "--write",
        default="",
        metavar="FILE",
        help="add what is proposed to this mapping file, for --acc-op-mapping-file",
    )
    parser.set_defaults(run=run_map)


def run_map(arguments: argparse.Namespace) -> int:
    """Print the plan line by line, and what is proposed."""
    from ..mapping.pair import explain
    from ..session import open_and_plan
    from ..settings import Settings

    golden, mine, plan = open_and_plan(Settings.from_values(values_of_sides(arguments)))
    for line in explain(plan):
        print(message(line))
    if arguments.propose or arguments.write:
        _propose(golden, mine, plan, arguments.write)
    return 0


def _propose(golden: Dump, mine: Dump, plan: Plan, file: str) -> None:
    from ..comparison.proposals import proposals, write_proposals

    pairs = proposals(golden, mine, plan)
    print(f"proposed by equal values, and not compared: {len(pairs)} pairs")
    for proposal in pairs:
        print(message(f"  {proposal}"))
    if file:
        count = write_proposals(file, pairs)
        print(message(f"{count} of them are in {file}; compare them with --acc-op-mapping-file {file}"))


# `acc noise-profile`: golden and noise runs of it in, a profile of their errors beside golden out.


SHOWN = 5
"""Reasons that are printed; the others are counted."""


def add_noise_profile(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "noise-profile",
        help="measure noise runs of golden, and keep their errors beside it",
        description="Compare golden with other right runs of the same model (lower precision, another "
        "attention, batch or device) and keep the errors of each tensor beside golden, where every later "
        "comparison finds them. The noise runs are not needed afterwards.",
    )
    parser.add_argument("golden", metavar="GOLDEN", help="the trusted dump")
    parser.add_argument("noise", nargs="+", metavar="NOISE_DUMP", help="a noise run of it")
    add_reading(parser, "as --acc-config, for mapping")
    parser.set_defaults(run=run_noise_profile)


def run_noise_profile(arguments: argparse.Namespace) -> int:
    """Measure the noise runs, write the profile, and say what it holds."""
    from ..dumps import open_dump
    from ..noise.profile import write_profile
    from ..noise.run import ProfileMaker
    from ..settings import Settings

    settings = Settings.from_values(
        {"token_policy": arguments.token_policy, "config": tuple(arguments.config)}
    )
    golden = open_dump(arguments.golden, token_policy=settings.token_policy)
    maker = ProfileMaker(golden, settings.mapping)
    for noise in arguments.noise:
        maker.add(open_dump(noise, token_policy=settings.token_policy, golden=golden))
    profile = maker.profile()
    write_profile(profile)
    for reason in maker.left_out[:SHOWN]:
        print(f"acc: left out: {message(reason)}", file=sys.stderr)
    if len(maker.left_out) > SHOWN:
        print(f"acc: and {len(maker.left_out) - SHOWN} more", file=sys.stderr)
    print(f"written: {message(profile.path)} ({profile.summary})")
    return 0


# `acc diff-config`: what two models state differently, from dumps or configurations alone.


def add_diff_config(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "diff-config",
        help="list the settings of two models that differ, without reading a tensor",
        description="List what two models, and modules of one name in them, state differently.",
        epilog="Exit code: 0 when no computed setting differs, 1 when one does, 4 when one is no model.",
    )
    for side in ("golden", "mine"):
        parser.add_argument(side, metavar=side.upper(), help="a dump, a config.json, or its directory")
    parser.set_defaults(run=run_diff_config)


def run_diff_config(arguments: argparse.Namespace) -> int:
    """Print the table; returns 1 where a difference is computed."""
    import_numpy()
    from ..mapping.attributes import differences

    golden, mine = _described(arguments.golden), _described(arguments.mine)
    different = differences(golden, mine, ((name, name) for name in golden.modules))
    rows = [(*entry.cells, "yes" if entry.computed else "no") for entry in different]
    rows = [("setting", "golden", "mine", "computed?"), *rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows if different else [("no setting differs",)]:
        print(message("  ".join(map(str.ljust, row, widths)).rstrip()))
    return int(any(entry.computed for entry in different))


def _described(path: str) -> Description:
    """The model of a dump, a directory or a file. Raises `AccError` where nothing is stated of one."""
    from ..dumps import open_dump
    from ..dumps.model_config import CONFIG_FILE, read_configuration, settings_of
    from ..mapping.attributes import Description

    place = Path(path_on_disk(path))
    file = place / CONFIG_FILE if place.is_dir() else place
    is_text = file.suffix == ".json" and file.is_file()
    model = Description(settings_of(read_configuration(file))) if is_text else Description.of(open_dump(path))
    if not model.settings and not model.modules:
        raise DumpError(f"{path}: states nothing of a model; give a config.json or a dump of register_hook")
    return model


# `acc report`: files of rows of one run put together, or shown.


OF_REPORTS = ("rows", "csv", "html", "json", "history", "summary", "output", "shard")
"""Settings of a run that say where its own reports went, or what share of it was run."""


def add_report(commands: Commands) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "report",
        help="put the rows of shards together, or show those of a run",
        description="Work on files that pytest --acc-rows wrote.",
    )
    actions = parser.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    merge = actions.add_parser(
        "merge",
        help="one report, one verdict and one exit code of all shards of a run",
        description="Prints what the run would have printed in one piece, and exits as it would have.",
    )
    merge.add_argument("files", nargs="+", metavar="ROWS", help="a file of rows for each shard, in any order")
    merge.add_argument("--csv", default="", metavar="FILE", help="write the CSV report")
    merge.add_argument("--html", default="", metavar="FILE", help="write the HTML report")
    merge.add_argument("--history", default="", metavar="DIR", help="add the run to the history there")
    merge.add_argument("--json", default="", metavar="FILE", help="write the run as JSON")
    merge.add_argument("--summary", default="", metavar="FILE", help="write the summary as Markdown")
    merge.add_argument("--junit", default="", metavar="FILE", help="write all tests as JUnit XML")
    merge.add_argument("--rows", default="", metavar="FILE", help="write all rows into one file")
    merge.set_defaults(run=run_merge)
    show = actions.add_parser("show", help="print the summary of one file")
    show.add_argument("file", metavar="ROWS", help="what pytest --acc-rows wrote")
    show.set_defaults(run=run_show)


def run_merge(arguments: argparse.Namespace) -> int:
    """Read all files, write the reports that were asked for, print the summary; the run's exit code."""
    from ..gate.stored import merged
    from ..reporting.rows_file import read_rows

    files = [read_rows(path) for path in dict.fromkeys(arguments.files)]
    run = merged(files)
    names = "csv", "html", "json", "history", "summary", "junit", "rows"
    reports = {name: getattr(arguments, name) for name in names}
    views = list(_views(run, reports, files[0].run.settings))
    return _print(run, views, files[0].run.environment)


def run_show(arguments: argparse.Namespace) -> int:
    """Print the summary of one file; always returns 0."""
    from ..gate.stored import merged
    from ..outputs.writing import is_held
    from ..reporting.rows_file import read_rows

    file = read_rows(arguments.file)
    status = "was killed" if file.exit_status is None else f"ended with exit status {file.exit_status}"
    if file.exit_status is None and is_held(file.path):
        status = "still goes on"
    print(f"{message(str(file.path))}: {len(file.rows)} rows of a run that {status}")
    _print(merged([file]), [], file.run.environment)
    return 0


def _views(run: Merged, reports: Mapping[str, str], settings: Mapping[str, Any]) -> Iterator[View]:
    from ..running.run_report import open_views
    from ..settings import Settings

    paths = {name: reports[name] for name in ("csv", "html", "json", "history", "summary") if reports[name]}
    columns = None
    if run.stored.title == "opcheck":
        from ..opcheck.settings import columns as opcheck_columns

        custom = tuple(metric.rpartition(":")[2] for metric in run.stored.metrics)
        columns = opcheck_columns((), custom)
    chosen = Settings.from_values({**paths, "metrics": run.stored.metrics})
    yield from open_views(chosen, csv=bool(reports["csv"]), columns=columns)
    if reports["junit"]:
        from ..reporting.junit import JunitFile

        yield JunitFile(reports["junit"], warns=settings.get("inherited") == "warn")
    if reports["rows"]:
        from ..reporting.rows_file import RowsFile

        run_settings = {name: value for name, value in settings.items() if name not in OF_REPORTS}
        yield RowsFile(reports["rows"], run_settings)


def _print(run: Merged, views: list[View], environment: Mapping[str, str]) -> int:
    """Feed the views and print what a run prints at its end; returns the exit code."""
    from ..diagnosis.outcome import reported
    from ..reporting.view import Run

    sources = tuple(word.partition("=")[2] for word in run.command if word.startswith("--acc-opcheck="))
    rerun = of_one_test(run.command)
    described = Run(run.stored.title, run.plan, run.command, run.floor, environment, sources, rerun)
    lacks, notes = run.stored.incomplete, list(_lines(run))
    return reported(described, views, run.rows, lacks, run.exit_status, notes, print)[1]


def _lines(run: Merged) -> Iterator[str]:
    if run.without_row:
        yield f"of {run.without_row} pairs of the plan there is no row: deselected, or not run"
    yield from run.notes
