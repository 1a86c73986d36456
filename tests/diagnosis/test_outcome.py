"""The result of a run from its rows: the lines of its end, its hash, its diagnosis."""

from __future__ import annotations

from dataclasses import replace

from acc_pytest.diagnosis.outcome import result_of
from acc_pytest.diagnosis.run import with_cause
from acc_pytest.diagnosis.summary import Ledger
from acc_pytest.mapping.pair import Plan
from acc_pytest.reporting.recorder import Recorder
from acc_pytest.reporting.row import Cause, Row
from acc_pytest.reporting.view import Result, Run, View

from .plans import plan_of, row_of


class Said(View):
    """A view with a line and a problem of its own."""

    def lines(self) -> list[str]:
        return ["a \x1b line"]

    def problems(self) -> list[str]:
        return ["a problem"]


def result(plan: Plan | None, *rows: Row, ledger: Ledger | None = None, view: View | None = None) -> Result:
    recorder = Recorder([each for each in (ledger, view) if each is not None])
    recorder.begin(Run(plan=plan))
    for row in rows:
        recorder.add(row)
    recorder.end()
    return result_of(recorder, ledger, plan, 0.25, 3)


PLAN = replace(plan_of(((), (0,))), golden_total=4, golden_mapped=2)
ROOT = with_cause(row_of(0, 5.0), Cause("root", "dataflow", root=0, root_name="Op_0"))
FED = with_cause(
    replace(row_of(1, 5.0), fed="mask"),
    Cause("root", "dataflow", root=1, root_name="Op_1", text="the mask differs"),
)


def test_a_run_says_its_verdicts_coverage_roots_and_hash() -> None:
    found = result(PLAN, ROOT, row_of(1, 0.1), ledger=Ledger(), view=Said())
    assert found.lines[0] == "partial: 50 % of golden's tensors were compared"
    assert found.lines[1] == "verdicts: 1 pass, 1 fail"
    assert found.lines[2].startswith(
        "coverage: golden 2 of 4 nodes (50%), mine 0 of 0 (0%); floor 25% reached"
    )
    assert found.lines[3].startswith("root cause: Op_0 ")
    assert found.lines[-3:] == ("a \\x1b line", "a problem", f"verdict hash: {found.verdict_hash}")
    assert (found.exit_status, found.coverage, found.problems) == (3, 0.5, ("a problem",))
    assert found.diagnosis is not None
    assert len(found.diagnosis.roots) == 1


def test_what_the_run_was_fed_stands_before_the_verdicts() -> None:
    pairs = (PLAN.pairs[0], replace(PLAN.pairs[1], fed="mask"))
    found = result(replace(PLAN, pairs=pairs), ROOT, FED, ledger=Ledger())
    assert [line.partition(":")[0] for line in found.lines[1:5]] == [
        "root cause", "verdicts", "coverage", "root cause",
    ]  # fmt: skip
    assert "the mask differs" in found.lines[1]


def test_without_a_plan_or_a_ledger_there_is_no_diagnosis() -> None:
    assert result(PLAN, ROOT).diagnosis is None
    alone = result(None, ROOT, ledger=Ledger())
    assert (alone.diagnosis, alone.coverage) == (None, None)
    assert alone.lines[-1] == f"verdict hash: {alone.verdict_hash}"
    assert result(None).lines == ("verdicts: none",), "nothing was tried, so nothing has a hash"
    assert result(PLAN).lines[-1].startswith("verdict hash: ")
