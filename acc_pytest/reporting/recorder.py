"""Where rows go when they arrive: the CSV and the tally. Lives in the controller (or only) process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .csv_report import CsvReport
from .row import Row, Side, place
from .summary import Tally

if TYPE_CHECKING:
    from ..mapping.pair import Plan, Unmapped


class Recorder:
    """Takes rows in any order. `open_report` makes the CSV file; without it rows are only counted.

    The file is made when a plan is begun or the first row comes, so that a run that compares nothing
    leaves none, and one that cannot write it stops before its first test.
    """

    def __init__(self, open_report: Callable[[], CsvReport] | None) -> None:
        self.tally = Tally()
        self._open = open_report
        self._report: CsvReport | None = None

    @property
    def files(self) -> list[str]:
        """The reports that were written."""
        return [self._report.path] if self._report is not None else []

    def add(self, row: Row) -> None:
        """Write and count one row."""
        self.tally.add(row)
        self._prepare()
        if self._report is not None:
            self._report.write(row)

    def _prepare(self) -> None:
        if self._report is None and self._open is not None:
            self._report = self._open()

    def begin(self, plan: Plan) -> None:
        """Write the nodes that no test stands for, numbered after the pairs."""
        if plan.pairs:
            self._prepare()
        for offset, node in enumerate(plan.unmapped):
            self.add(unmapped_row(node, len(plan.pairs) + offset))

    def close(self) -> None:
        """Close the files; every row is in them already."""
        if self._report is not None:
            self._report.close()


def unmapped_row(node: Unmapped, number: int) -> Row:
    """The row of a node without partner: its side is filled, the other is empty."""
    reason = f"unmapped {node.side} node: {node.reason}"
    if node.nearest:
        reason += f"; nearest: {node.nearest}"
    where = "" if node.ref is None else place(node.ref)
    side = Side(node=node.node, name=node.name, op_type=node.op_type, slot=node.slot, path=where)
    return Row(
        test_id="",
        verdict="unmapped",
        sentence=reason,
        number=number,
        step=node.step,
        rank="" if node.rank is None else str(node.rank),
        graph=node.graph,
        golden=side if node.side == "golden" else Side(),
        mine=side if node.side == "mine" else Side(),
        reasons=(reason,),
    )
