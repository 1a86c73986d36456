"""The head of a page, on the run: dumps, verdict, roots, environment. Small, and read first."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...tensors.stores.place import shown_at
from ..printable import printable, shell
from ..row import VERDICTS
from .columns import Place, place_of
from .row_details import plain

if TYPE_CHECKING:
    from ...mapping.pair import Plan
    from ..diagnosis import Diagnosis, Root
    from ..run_verdict import RunVerdict
    from ..view import Result, Run

_WIDTH = 400
LISTED_ROOTS = 200
"""Roots that are listed; the page says how many more there are."""

_REPORT_OPTIONS = ("--acc-html=", "--acc-csv=", "--acc-rows=", "--acc-summary=")
"""Words that a command for one test leaves out: it would replace the reports of the whole run."""


def head(run: Run, result: Result, places: Mapping[Place, int], verdict: RunVerdict) -> dict[str, Any]:
    """The run in JSON values. `places` are those of rows in the columns, `verdict` is that of the run."""
    tally = result.tally
    return {
        "title": run.title,
        "verdict": {"tone": verdict.tone, "text": verdict.text, "lead": verdict.lead},
        "made": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "plan": None if run.plan is None else _plan(run.plan),
        "exit": result.exit_status,
        "counts": {word: tally.counts[word] for word in VERDICTS if tally.counts[word]},
        "sources": [_fitting(source) for source in run.sources],
        "coverage": plain(result.coverage),
        "floor": plain(run.floor),
        "hash": result.verdict_hash,
        "caveats": [_fitting(caveat) for caveat in tally.caveats.first(run.plan)],
        "problems": [_fitting(problem) for problem in result.problems],
        "diagnosis": None if result.diagnosis is None else _diagnosis(result.diagnosis, places),
        "command": shell(run.command),
        "rerun": shell(word for word in run.command if not word.startswith(_REPORT_OPTIONS)),
        "environment": [[_fitting(name), _fitting(str(value))] for name, value in run.environment.items()],
        "lines": list(result.lines),
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "golden": {
            "root": _fitting(shown_at(plan.golden_root)),
            "kind": plan.golden_kind,
            "mapped": plan.golden_mapped,
            "total": plan.golden_total,
        },
        "mine": {
            "root": _fitting(shown_at(plan.mine_root)),
            "kind": plan.mine_kind,
            "mapped": plan.mine_mapped,
            "total": plan.mine_total,
        },
        "notes": [_fitting(note) for note in plan.notes],
    }


def _diagnosis(diagnosis: Diagnosis, places: Mapping[Place, int]) -> dict[str, Any]:
    return {
        "basis": _fitting(diagnosis.basis),
        "inherited": diagnosis.inherited,
        "notes": [_fitting(note) for note in (*diagnosis.notes, *diagnosis.peers)],
        "more": max(0, len(diagnosis.roots) - LISTED_ROOTS),
        "roots": [_root_data(root, places) for root in diagnosis.roots[:LISTED_ROOTS]],
    }


def _root_data(root: Root, places: Mapping[Place, int]) -> dict[str, Any]:
    row = root.row
    return {
        "places": [places[place] for place in map(place_of, (row, *root.also)) if place in places],
        "name": _fitting(name_of(root)),
        "type": "" if root.fed else _fitting(row.mine.op_type or row.golden.op_type),
        "step": _fitting(str(row.step)),
        "steps": _different(str(replica.step) for replica in (row, *root.also)),
        "ranks": _different(replica.rank for replica in (row, *root.also)),
        "excess": plain(row.excess),
        "layer": _fitting(row.layer),
        "sentence": _fitting(root.fed or row.sentence),
        "cause": "" if row.cause is None or root.fed else _fitting(row.cause.text),
        "inherited": root.inherited,
        "amplification": plain(root.amplification),
        "share": plain(root.share),
        "basis": _fitting(root.basis),
    }


def name_of(root: Root) -> str:
    """The operator; of what the run was fed the kind, and which where it is one."""
    feed_kind = root.row.fed
    is_one_name = all(also.name == root.row.name for also in root.also)
    return f"{feed_kind} {root.name}".strip() if is_one_name or not feed_kind else feed_kind


def _different(values: Iterable[str]) -> int:
    """The number of different values."""
    return len({value for value in values if value})


def _fitting(value: str) -> str:
    return printable(value, _WIDTH)
