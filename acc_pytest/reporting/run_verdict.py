"""The verdict of a run in one sentence, which a report begins with, and one that counts.

Said in English, of parts that `html/script/phrases.js` knows to say in Chinese.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .printable import printable
from .summary import shortfalls, tests_that_fail

if TYPE_CHECKING:
    from .diagnosis import Root
    from .row import Row
    from .view import Result, Run

_NAME_WIDTH = 120
"""Characters of a name."""

SENTENCE = 300


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """`text` is the verdict, `lead` how many comparisons stand behind it (may be empty).

    `tone`: `good`, `bad`, or `open` where nothing fails but not everything ran.
    """

    tone: Literal["good", "bad", "open"]
    text: str
    lead: str = ""


def run_verdict(run: Run, result: Result, complete: bool = True, failures: int = 0) -> RunVerdict:
    """The verdict of a run. `complete`: all of its tests have run; `failures` counts the comparisons that
    fail for themselves, not for what they were computed from."""
    tally = result.tally
    all_roots = () if result.diagnosis is None else result.diagnosis.roots
    roots = [root for root in all_roots if any(row.red for row in (root.row, *root.also))]
    if roots:
        sentence = _broken(roots)
        lead = _counted(run, result, failures)
        if not complete:
            return RunVerdict(
                "bad", f"Incomplete, and already broken: {sentence[0].lower()}{sentence[1:]}", lead
            )
        return RunVerdict("bad", sentence, lead)
    if tally.first is not None:
        return _worst(run, result, tally.first, failures)
    if not tally.tried and result.exit_status in (0, 1, 5):
        return RunVerdict("open" if result.exit_status == 0 else "bad", "Nothing was compared")
    if not tally.compared and complete:
        return RunVerdict("bad", f"Nothing was compared: none of {tally.tried} {_units(run)} could be")
    return _green(run, result) if complete else _incomplete(run, result)


def _incomplete(run: Run, result: Result) -> RunVerdict:
    """Not all tests have run, and none of those that have fails."""
    every = f" of {len(run.plan.pairs)}" if run.plan is not None else ""
    sentence = f"Incomplete: {result.tally.compared}{every} {_units(run)} were compared, none fails"
    return RunVerdict("bad" if result.exit_status else "open", sentence)


def _green(run: Run, result: Result) -> RunVerdict:
    tally = result.tally
    sentence = f"No difference beyond its bound: {tally.compared} {_units(run)}"
    if result.exit_status == 0:
        accepted = tally.counts["known"]
        return RunVerdict(
            "good",
            sentence,
            f"{accepted} of them differ in a way that is known and accepted." if accepted else "",
        )
    why = (*result.problems, *shortfalls(tally, run.plan, run.floor))
    why += (f"pytest ended with exit status {result.exit_status}.",)
    return RunVerdict("bad", f"{sentence}, but the run fails", printable(why[0], SENTENCE))


def _broken(roots: list[Root]) -> str:
    """The sentence on the first root: its place, its excess, and the number of further roots."""
    first = roots[0]
    row = next(row for row in (first.row, *first.also) if row.red)
    remark = f"; and {len(roots) - 1} more" if len(roots) > 1 else ""
    if first.fed:
        what = "The models differ" if row.fed in ("weight", "buffer") else "The run was fed something else"
        return f"{what}: {printable(first.fed, SENTENCE)}{remark}"
    name = row.mine.op_type or row.golden.op_type or row.name
    if first.name != first.row.name:
        name = first.name
    return f"Breaks at {_where(name, row)}: {_how(row)}{remark}"


def _worst(run: Run, result: Result, first: Row, failures: int) -> RunVerdict:
    """Without roots: how many tests fail, and which comparison is farthest beyond its bound."""
    tally = result.tally
    row = tally.worst[0] if tally.worst else first
    if not failures:
        return RunVerdict("bad", f"Fails at {_named(row.name)}: {printable(row.excuse, SENTENCE)}")
    of = _where(row.mine.op_type or row.golden.op_type or row.name, row)
    if run.title == "opcheck":
        of = _named(row.name) + (f", {_named(row.mine.slot)}" if row.mine.slot else "")
    worst = f"{of}: {_how(row)}"
    if failures == 1:
        return RunVerdict("bad", f"Fails at {worst}", _counted(run, result, failures))
    return RunVerdict(
        "bad",
        tests_that_fail(tally),
        f"{failures} of {tally.tried} {_units(run)} fail, the worst: {worst}",
    )


def _counted(run: Run, result: Result, failures: int) -> str:
    tally = result.tally
    inherited = tally.counts["inherited"]
    sentence = f"{failures} of {tally.tried} {_units(run)} {'fails' if failures == 1 else 'fail'}"
    if not inherited:
        return f"{sentence}."
    pronoun = "its" if failures == 1 else "their"
    verb = "inherits" if inherited == 1 else "inherit"
    return f"{sentence} on {pronoun} own; {inherited} more {verb} from what fails."


def _where(name: str, row: Row) -> str:
    """The operator, its layer, and the step, as people say it."""
    labels = [name, "" if row.layer == row.graph else row.layer, row.graph, _step(row)]
    return ", ".join(_named(label) for label in labels if label)


def _step(row: Row) -> str:
    if row.step == "":
        return ""
    if row.graph:
        return f"step {row.step}"
    return "prefill" if row.step == 0 else f"decode {row.step}"


def _how(row: Row) -> str:
    """The excess of a comparison over its bound; its sentence where that is no number."""
    if not math.isfinite(row.excess) or not row.excess:
        return printable(row.sentence.partition("; ")[0], SENTENCE)
    if row.excess < 1.05:
        return "just beyond its bound"
    return f"{times(row.excess)} times its bound"


def times(excess: float) -> str:
    """`1.3`, `12`, `151`, `2e7`: no more digits than mean anything."""
    if excess >= 99.5:
        return f"{excess:.0f}" if excess < 1e5 else f"{excess:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{excess:.2g}"


def _units(run: Run) -> str:
    """The noun for what is counted: of people's own tests neither pairs nor outputs of operators."""
    if run.title == "opcheck":
        return "outputs"
    return "comparisons" if run.plan is None else "pairs"


def _named(text: str) -> str:
    return printable(text, _NAME_WIDTH)
