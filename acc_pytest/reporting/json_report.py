"""The run as one JSON file, for programs: its verdict, what weakens it, and where errors start.

docs/json.md is the schema. `VERSION` counts changes that a reader must know: a field that goes, or means
something else. A new field is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..base.forms import pack_number
from ..base.reason import Reason
from ..judging.threshold import by_rule
from ..outputs import Staged, target_of
from ..tensors.location import shown_at
from .row import FACTOR, LIKENESS, SUSPECT, VERDICTS, Row
from .rows_json import codes_of, evidence
from .summary import accepted_line, allowances, coverage, replayed_line, run_verdict
from .texts import shell
from .view import FileView, Result, Root, Run

if TYPE_CHECKING:
    from ..mapping.pair import Plan


FORMAT = "acc-pytest run"
VERSION = 1
MOST = 1000
"""Roots that are listed, and failures without one: the first in execution order. The rows have all."""


class JsonReport(FileView[Staged]):
    """The view: keeps what fails without a root, and counts pairs."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._run = Run()
        self._failures: list[Row] = []
        self._failed = 0
        self._numbers: set[int] = set()
        self._by_rule = 0

    def begin(self, run: Run) -> None:
        """Check the place. Raises `SettingsError` where it cannot be written: before the first test."""
        self._run = run
        self._file = Staged(target_of(self._path, "--acc-json"))

    def add(self, row: Row) -> None:
        """Take a row into account, in any order."""
        if row.number is not None and not row.alone:
            self._numbers.add(row.number)
        self._by_rule += FACTOR in row.context or any(by_rule(check.reason) for check in row.checks)
        if not row.red or row.cause is not None:
            return
        self._failed += 1
        self._failures.append(row)
        if len(self._failures) > 2 * MOST:
            self._failures = self._first_failures()

    def _first_failures(self) -> list[Row]:
        def place(row: Row) -> tuple[bool, int, str]:
            return row.number is None, row.number or 0, row.test_id

        return sorted(self._failures, key=place)[:MOST]

    def finish(self, result: Result) -> None:
        """Make the file."""
        if self._file is not None:
            record = self._record(result)
            text = json.dumps({**record, "codes": codes_of(record)}, indent=1, allow_nan=False)
            self._file.write(f"{text}\n".encode("ascii"))

    def _record(self, result: Result) -> dict[str, Any]:
        run, tally, diagnosis = self._run, result.tally, result.diagnosis
        verdict = run_verdict(run, result)
        roots = () if diagnosis is None else diagnosis.roots
        return {
            "format": FORMAT,
            "version": VERSION,
            "title": run.title,
            "verdict": result.verdict,
            "exit_code": result.exit_status,
            "sentence": verdict.text,
            "details": verdict.lead,
            "complete": tally.complete,
            "caveats": [{"kind": kind, "text": text} for kind, text in self._caveats(result)],
            "problems": list(result.problems),
            "counts": {word: tally.counts[word] for word in VERDICTS},
            "tests": {"run": len(tally.tests), "failing": len(tally.red_tests)},
            "coverage": None if run.plan is None else _coverage(run.plan, run.floor),
            "roots": [self._root(root) for root in roots[:MOST]],
            "roots_left_out": max(0, len(roots) - MOST),
            "lineage": "" if diagnosis is None else diagnosis.basis,
            "failures": [self._failure(row) | {"evidence": evidence(row)} for row in self._first_failures()],
            "failures_left_out": max(0, self._failed - MOST),
            "notes": [] if run.plan is None else list(run.plan.notes),
            "sources": list(run.sources),
            "command": shell(run.command),
            "environment": dict(run.environment),
            "verdict_hash": result.verdict_hash,
            "summary": list(result.lines),
        }

    def _caveats(self, result: Result) -> Iterator[tuple[str, str]]:
        """All that a green run does not prove, each with its kind."""
        plan, tally = self._run.plan, result.tally
        yield from (("limit", sentence) for sentence in tally.caveats.first(plan))
        if not tally.complete:
            yield "incomplete", "the run is incomplete"
        if plan is not None and plan.golden_kind and len(self._numbers) < len(plan.pairs):
            absent = len(plan.pairs) - len(self._numbers)
            yield "not_run", Reason("{} of {} pairs were not compared in this run", absent, len(plan.pairs))
        yield from allowances(tally)
        if tally.replayed[False]:
            yield "replay", replayed_line(tally)
        yield from (("capped", line) for line in tally.caveats.at_cap)
        if self._by_rule:
            yield (
                "rule",
                Reason(
                    "{} comparisons were judged by bounds of a config, a marker, a hook or a call",
                    self._by_rule,
                ),
            )
        if accepted := accepted_line(tally):
            yield "known", accepted
        yield from (("outlier", line) for line in (result.diagnosis.peers if result.diagnosis else ()))

    def _root(self, root: Root) -> dict[str, Any]:
        return {
            **self._failure(root.row),
            "name": root.name,
            "sentence": root.sentence,
            "fed": root.fed,
            "basis": root.basis,
            "inherited": root.inherited,
            "amplification": pack_number(root.amplification),
            "share": pack_number(root.share),
            "again": root.again,
            "also": [row.test_id for row in root.also],
            "evidence": evidence(root.row),
        }

    def _failure(self, row: Row) -> dict[str, Any]:
        """A comparison that fails, and the command that repeats it."""
        rerun = self._run.rerun if row.number is not None or self._run.plan is None else ()
        return {
            "test_id": row.test_id,
            "name": row.name,
            "sentence": row.sentence,
            "hints": [hint for name in (LIKENESS, SUSPECT) if (hint := row.context.get(name))],
            "commands": [shell([*rerun, row.test_id])] if rerun and row.test_id else [],
        }


def _coverage(plan: Plan, floor: float) -> dict[str, Any]:
    record: dict[str, Any] = {"share": coverage(plan), "floor": floor}
    for side in ("golden", "mine"):
        root, kind, mapped, nodes = (
            getattr(plan, f"{side}_{n}") for n in ("root", "kind", "mapped", "total")
        )
        record[side] = {"path": shown_at(root), "kind": kind, "mapped": mapped, "nodes": nodes}
    return record
