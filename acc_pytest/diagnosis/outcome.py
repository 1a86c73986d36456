"""The result of a run, from its rows: one text for a run of pytest and for its shards put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.vocabulary import REPEATED
from ..reporting.summary import coverage, summary_lines
from ..reporting.texts import message
from ..reporting.view import Result

if TYPE_CHECKING:
    from ..mapping.pair import Plan
    from ..reporting.recorder import Recorder
    from .summary import Ledger


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
    lines += [message(note) for note in (plan.notes if plan else ()) if note.startswith(REPEATED)]
    lines += map(message, () if diagnosis is None else diagnosis.peers)
    lines += map(message, (*recorder.lines, *problems))
    if plan is not None or recorder.tally.tried:
        lines.append(f"verdict hash: {recorder.hash}")
    return Result(
        exit_status,
        recorder.tally,
        None if plan is None else coverage(plan),
        str(recorder.hash),
        tuple(lines),
        tuple(problems),
        diagnosis,
    )
