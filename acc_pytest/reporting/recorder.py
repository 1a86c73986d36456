"""The recorder of rows: tally, verdict hash, views. Lives in the controller (or only) process."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..base.reason import Reason
from ..base.vocabulary import INCOMPLETE
from ..errors import AccError, SettingsError, guarded
from .row import Row, RowSide, place
from .summary import Tally

if TYPE_CHECKING:
    from ..mapping.pair import Unmapped
    from .view import Result, Run, View


class Recorder:
    """Takes rows in any order and hands them to the views.

    A view that fails is left out from then on: it is told at the end, makes the run red, and harms no other.
    """

    def __init__(self, views: Sequence[View]) -> None:
        self.tally = Tally()
        self.hash = VerdictHash()
        self._views = list(views)
        self._left_out: list[View] = []
        self._wrong: list[str] = []
        self._lacks: Sequence[str] = ()

    @property
    def files(self) -> list[str]:
        """The reports that were written."""
        return [file for view in self._views for file in view.files]

    @property
    def lines(self) -> list[str]:
        """The lines that views add to the summary."""
        lines: list[str] = []
        self._for_views(lambda view: lines.extend(view.lines()))
        return lines

    @property
    def problems(self) -> list[str]:
        """Why the run fails beside its tests."""
        problems: list[str] = []
        self._for_views(lambda view: problems.extend(view.problems()))
        return [*self._wrong, *self._lacks, *problems]

    def begin(self, run: Run) -> None:
        """Open the views. Raises `AccError` where one cannot be written, or where two have one file."""
        files: set[str] = set()
        for view in self._views:
            view.begin(run)
            file = os.path.realpath(view.place) if view.place else ""
            if file in files:
                raise SettingsError(
                    f"{view.place}: two reports would be written to this file; give each its own"
                )
            if file and (os.path.isfile(file) or not os.path.exists(file)):
                files.add(file)

    def add(self, row: Row) -> None:
        """Count one row and hand it to every view."""
        self.tally.add(row)
        self.hash.add(row)
        self._for_views(lambda view: view.add(row))

    def end(self, lacks: Sequence[str] = ()) -> None:
        """Tell the views that no row will follow. `lacks`: a sentence for each thing that is not there."""
        self._lacks, self.tally.complete = lacks, not lacks
        self._for_views(lambda view: view.end(not lacks))

    def finish(self, result: Result) -> list[str]:
        """Make all reports, then put all into their places; returns what went wrong in here, a sentence each.

        A process that dies in here leaves the previous reports all as they were, but for the moment in which
        files are renamed.
        """
        before = len(self._wrong)
        self._for_views(lambda view: view.finish(result))
        self._for_views(lambda view: view.land())
        return self._wrong[before:]

    def close(self) -> None:
        """Close the files; every row is in them already."""
        self._for_views(lambda view: view.close())
        for view in self._left_out:
            with contextlib.suppress(AccError, OSError), guarded("closing a report", (OSError,)):
                view.close()

    def _for_views(self, do: Callable[[View], None]) -> None:
        """Have every view do something, and leave out those that fail."""
        for view in tuple(self._views):
            try:
                with guarded("writing it", (OSError,)):
                    do(view)
            except (AccError, OSError) as error:
                reason = str(error)
                if view.place not in reason:
                    reason = f"{view.place}: {reason}"
                self._wrong.append(Reason("a report could not be written: {}", reason))
                self._views.remove(view)
                self._left_out.append(view)


NO_PARTNER, ABSENT = "unmapped {} node: {}{}", "incomplete {}: {}{}"
"""The sentence on a node without a partner, and on what a dump states and does not hold."""


def unmapped_reason(node: Unmapped) -> str:
    """Why a node is compared with nothing, in a sentence."""
    nearest = Reason("; nearest: {}", node.nearest) if node.nearest else ""
    if node.why == INCOMPLETE:
        return Reason(ABSENT, node.side, node.reason, nearest)
    return Reason(NO_PARTNER, node.side, node.reason, nearest)


def unmapped_row(node: Unmapped, number: int, test_id: str = "", *, strict: bool = False) -> Row:
    """The row of a node without partner: its side is filled, the other is empty.

    `strict`: its test fails.
    """
    reason = unmapped_reason(node)
    where = "" if node.ref is None else place(node.ref)
    side = RowSide(node=node.node, name=node.name, op_type=node.op_type, slot=node.slot, path=where)
    return Row(
        test_id=test_id,
        verdict=INCOMPLETE if node.why == INCOMPLETE else "unmapped",
        strict=strict,
        sentence=reason,
        number=number,
        step=node.step,
        rank="" if node.rank is None else str(node.rank),
        graph=node.graph,
        golden=side if node.side == "golden" else RowSide(),
        mine=side if node.side == "mine" else RowSide(),
        reasons=(reason,),
    )


LENGTH = 16


class VerdictHash:
    """A hash of all rows that does not depend on their order: the sum of each row's own.

    A row counts by its test, its place, its verdict and where its error starts. Measured values are left
    out: sums over several threads may differ in their last bits.
    """

    def __init__(self) -> None:
        self._sum = 0

    def add(self, row: Row) -> None:
        """Take one row into account."""
        root = row.cause.root_name if row.cause is not None else ""
        golden, mine = row.golden, row.mine
        place = (golden.node, golden.slot, mine.node, mine.slot, str(row.step), row.rank, row.graph)
        text = "\0".join((row.test_id, *place, row.verdict, root))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        self._sum = (self._sum + int.from_bytes(digest, "big")) % 2**256

    def __str__(self) -> str:
        return hashlib.sha256(self._sum.to_bytes(32, "big")).hexdigest()[:LENGTH]
