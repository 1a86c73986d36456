"""Where rows go when they arrive: tally, verdict hash, views. Lives in the controller (or only) process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import AccError
from .row import Row, Side, place
from .summary import Tally
from .verdict_hash import VerdictHash

if TYPE_CHECKING:
    from ..mapping.pair import Unmapped
    from .view import Result, Run, View


class Recorder:
    """Takes rows in any order and hands them to the views."""

    def __init__(self, views: Sequence[View]) -> None:
        self.tally = Tally()
        self.hash = VerdictHash()
        self._views = views

    @property
    def files(self) -> list[str]:
        """The reports that were written."""
        return [file for view in self._views for file in view.files]

    @property
    def lines(self) -> list[str]:
        """What the views add to the summary."""
        return [line for view in self._views for line in view.lines()]

    @property
    def problems(self) -> list[str]:
        """Why the run fails beside its tests."""
        return [problem for view in self._views for problem in view.problems()]

    def begin(self, run: Run) -> None:
        """Open the views."""
        for view in self._views:
            view.begin(run)

    def add(self, row: Row) -> None:
        """Count one row and hand it to every view."""
        self.tally.add(row)
        self.hash.add(row)
        for view in self._views:
            view.add(row)

    def end(self, complete: bool) -> None:
        """Tell the views that no row will follow."""
        for view in self._views:
            view.end(complete)

    def finish(self, result: Result) -> list[str]:
        """Finish the views; returns what went wrong, a sentence each. One that fails harms no other."""
        wrong = []
        for view in self._views:
            try:
                view.finish(result)
            except (AccError, OSError) as error:
                wrong.append(f"a report could not be written: {error}")
        return wrong

    def close(self) -> None:
        """Close the files; every row is in them already."""
        for view in self._views:
            view.close()


def unmapped_reason(node: Unmapped) -> str:
    """Why a node is compared with nothing, in a sentence."""
    nearest = f"; nearest: {node.nearest}" if node.nearest else ""
    return f"unmapped {node.side} node: {node.reason}{nearest}"


def unmapped_row(node: Unmapped, number: int, test_id: str = "", *, strict: bool = False) -> Row:
    """The row of a node without partner: its side is filled, the other is empty.

    `strict`: its test fails.
    """
    reason = unmapped_reason(node)
    where = "" if node.ref is None else place(node.ref)
    side = Side(node=node.node, name=node.name, op_type=node.op_type, slot=node.slot, path=where)
    return Row(
        test_id=test_id,
        verdict="unmapped",
        strict=strict,
        sentence=reason,
        number=number,
        step=node.step,
        rank="" if node.rank is None else str(node.rank),
        graph=node.graph,
        golden=side if node.side == "golden" else Side(),
        mine=side if node.side == "mine" else Side(),
        reasons=(reason,),
    )
