"""The end of a run whose rows have all come: one for runs of pytest, for those without it, and for shards
put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from ..base.reason import Reason, arguments
from ..base.vocabulary import REPEATED
from ..reporting.recorder import Recorder
from ..reporting.summary import coverage, shortfalls, summary_lines
from ..reporting.texts import message, near, on_screen
from ..reporting.view import Result
from ..tensors.ref import forget_headers

if TYPE_CHECKING:
    from ..mapping.pair import Plan
    from ..reporting.row import Row
    from ..reporting.summary import Tally
    from ..reporting.view import Run, View
    from .summary import Ledger


OK, FAILED, NOTHING = 0, 1, 5
"""Exit statuses of pytest. `NOTHING`: no test has run."""


def reported(
    run: Run,
    views: Sequence[View],
    rows: Iterable[Row],
    lacks: Sequence[str],
    status_of: Callable[[Tally], int] | None = None,
    notes: Sequence[str] = (),
    show: Callable[[str], None] = lambda line: None,
) -> tuple[Result, int]:
    """Hand all rows of a run to its views, end it (`ended`), and show its lines before the views close.

    `status_of` the tally of the rows is how it ends; else it is red where a test is.
    """
    ledger = None
    if run.plan is not None:
        from .summary import Ledger

        ledger = Ledger()
        views = [*views, ledger]
    with closing(Recorder(views)) as recorder:
        recorder.begin(run)
        for row in rows:
            recorder.add(row)
        tally = recorder.tally
        status = FAILED if tally.red_tests else OK if tally.compared else NOTHING
        status = status if status_of is None else status_of(tally)
        result, status = ended(recorder, ledger, run.plan, run.floor, status, lacks=lacks, notes=notes)
        for line in on_screen(result.lines):
            show(line)
    return result, status


def ended(
    recorder: Recorder,
    ledger: Ledger | None,
    plan: Plan | None,
    floor: float,
    exit_status: int,
    *,
    lacks: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> tuple[Result, int]:
    """End a run, and make its reports: the result as these have it, with all lines, and its exit status.

    A run is red in which a view found something wrong, or that falls short (`shortfalls`), lacks something
    or a report. `lacks` has a sentence for each thing that is not there, `notes` are lines of the summary.
    """
    recorder.end(lacks)
    if plan is not None:
        forget_headers()  # the room is for the reports
    if exit_status in (OK, NOTHING) and (recorder.problems or shortfalls(recorder.tally, plan, floor)):
        exit_status = FAILED
    result = result_of(recorder, ledger, plan, floor, exit_status)
    wrong = recorder.finish(result)
    if wrong and exit_status in (OK, NOTHING):
        exit_status = FAILED
    lines = (*notes, *wrong, *(Reason("report: {}", near(file)) for file in recorder.files))
    return replace(result, lines=(*result.lines, *map(message, lines))), exit_status


def result_of(
    recorder: Recorder, ledger: Ledger | None, plan: Plan | None, floor: float, exit_status: int
) -> Result:
    """The result of a run whose rows have all come to `recorder`, `ledger` (with a plan) among its views."""
    diagnosis, roots, input_roots = None, [], 0
    if ledger is not None and plan is not None:
        from .summary import MOST_LINES, root_lines  # imports torch, which a run without a plan does without

        diagnosis = ledger.diagnosis(plan)
        roots = root_lines(diagnosis)
        input_roots = sum(1 for root in diagnosis.roots[:MOST_LINES] if root.fed)
    problems = recorder.problems
    lines = summary_lines(recorder.tally, plan, floor, roots, input_roots)
    lines += [message(note) for note in (plan.notes if plan else ()) if arguments(note, REPEATED)]
    lines += map(message, () if diagnosis is None else diagnosis.peers)
    lines += map(message, (*recorder.lines, *problems))
    if plan is not None or recorder.tally.tried:
        lines.append(Reason("verdict hash: {}", str(recorder.hash)))
    return Result(
        exit_status,
        recorder.tally,
        None if plan is None else coverage(plan),
        str(recorder.hash),
        tuple(lines),
        tuple(problems),
        diagnosis,
    )
