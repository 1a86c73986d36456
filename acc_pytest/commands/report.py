"""`acc report`: files of rows of one run put together, or shown."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..reporting.printable import message

if TYPE_CHECKING:
    from ..gate.merged import Merged
    from ..reporting.view import View
    from .arguments import Commands

OF_REPORTS = ("rows", "csv", "html", "summary", "output", "shard")
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
    merge.add_argument("--summary", default="", metavar="FILE", help="write the summary as Markdown")
    merge.add_argument("--junit", default="", metavar="FILE", help="write all tests as JUnit XML")
    merge.add_argument("--rows", default="", metavar="FILE", help="write all rows into one file")
    merge.set_defaults(run=run_merge)
    show = actions.add_parser("show", help="print the summary of one file")
    show.add_argument("file", metavar="ROWS", help="what pytest --acc-rows wrote")
    show.set_defaults(run=run_show)


def run_merge(arguments: argparse.Namespace) -> int:
    """Read all files, write the reports that were asked for, print the summary; the run's exit code."""
    from ..gate.merged import merged
    from ..reporting.rows_reading import read_rows

    files = [read_rows(path) for path in dict.fromkeys(arguments.files)]
    run = merged(files)
    reports = {name: getattr(arguments, name) for name in ("csv", "html", "summary", "junit", "rows")}
    views = list(_views(run, reports, files[0].run.settings))
    return _print(run, views, files[0].run.environment)


def run_show(arguments: argparse.Namespace) -> int:
    """Print the summary of one file; always returns 0."""
    from ..gate.merged import merged
    from ..outputs.partial import is_held
    from ..reporting.rows_reading import read_rows

    file = read_rows(arguments.file)
    status = "was killed" if file.exit_status is None else f"ended with exit status {file.exit_status}"
    if file.exit_status is None and is_held(file.path):
        status = "still goes on"
    print(f"{message(str(file.path))}: {len(file.rows)} rows of a run that {status}")
    _print(merged([file]), [], file.run.environment)
    return 0


def _views(run: Merged, reports: Mapping[str, str], settings: Mapping[str, Any]) -> Iterator[View]:
    """The reports that were asked for."""
    from ..settings import Settings
    from ..views import open_views

    paths = {name: reports[name] for name in ("csv", "html", "summary") if reports[name]}
    columns = None
    if run.stored.title == "opcheck":
        from ..opcheck.report_columns import columns as opcheck_columns

        custom = tuple(metric.rpartition(":")[2] for metric in run.stored.metrics)
        columns = opcheck_columns((), custom)
    chosen = Settings.from_values({**paths, "metrics": run.stored.metrics})
    yield from open_views(chosen, csv=bool(reports["csv"]), columns=columns)
    if reports["junit"]:
        from ..reporting.junit_file import JunitFile

        yield JunitFile(reports["junit"], warns=settings.get("inherited") == "warn")
    if reports["rows"]:
        from ..reporting.rows_file import RowsFile

        run_settings = {name: value for name, value in settings.items() if name not in OF_REPORTS}
        yield RowsFile(reports["rows"], run_settings)


def _print(run: Merged, views: list[View], environment: Mapping[str, str]) -> int:
    """Feed the views and print what a run prints at its end; returns the exit code."""
    from ..diagnosis.outcome import result_of
    from ..diagnosis.summary import Ledger
    from ..reporting.recorder import Recorder
    from ..reporting.view import Run
    from ..reporting.wrapping import near, on_screen

    ledger = Ledger()
    with contextlib.closing(Recorder([*views, ledger])) as recorder:
        recorder.begin(
            Run(
                run.stored.title,
                run.plan,
                run.command,
                run.floor,
                environment,
                tuple(word.partition("=")[2] for word in run.command if word.startswith("--acc-opcheck=")),
            )
        )
        for row in run.rows:
            recorder.add(row)
        recorder.end(run.stored.incomplete)
        status = run.exit_status(recorder.tally)
        result = result_of(recorder, ledger if run.plan is not None else None, run.plan, run.floor, status)
        wrong = recorder.finish(result)
        reports = (f"report: {near(file)}" for file in recorder.files)
        for line in on_screen((*result.lines, *map(message, (*_lines(run), *wrong, *reports)))):
            print(line)
    return 1 if wrong and not status else status


def _lines(run: Merged) -> Iterator[str]:
    if run.without_row:
        yield f"of {run.without_row} pairs of the plan there is no row: deselected, or not run"
    yield from run.notes
