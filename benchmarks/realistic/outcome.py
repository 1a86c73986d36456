"""What came of a run, whatever its network is made of: plain words and numbers for the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis, Root

ILL = 0.05
"""What right rounding may move the logits by; beyond it a network is ill-conditioned."""


@dataclass(frozen=True)
class Verdict:
    """What one way to judge makes of a run: pairs, those that fail (inherited or not), and its roots.

    `red` says that the run fails, `hit` that the first root is what has the fault, `alarm` that it is red
    without the fault.
    """

    way: str
    pairs: int
    failing: int
    red: bool
    roots: tuple[str, ...]
    hit: bool = False
    alarm: bool = False

    @classmethod
    def of(
        cls,
        way: str,
        rows: Sequence[Row],
        diagnosis: Diagnosis,
        is_fault: Callable[[Root], bool],
        clean: Outcome | None,
    ) -> Verdict:
        """Of the rows of a run; `clean` is the run of the same network without a fault."""
        roots = diagnosis.roots
        return cls(
            way,
            len(rows),
            sum(row.red or row.verdict == "inherited" for row in rows),
            any(row.red for row in rows),
            tuple(root.name for root in roots),
            bool(roots) and is_fault(roots[0]),
            clean is not None and clean.by(way).red,
        )

    @property
    def caught(self) -> bool:
        """Whether the fault is why the run is red."""
        return self.red and (self.hit or not self.alarm)


@dataclass(frozen=True)
class Placed:
    """A fault in its place: the operator or module that has it, and its amount.

    `size` is its effect there (relative L2, on equal inputs) over the noise there: how far a right run is
    from golden. `alone` is the same over the rounding noise of this module alone, where that was measured.
    """

    path: str
    amount: float
    size: float
    alone: float | None = None

    def __str__(self) -> str:
        amount = f"{self.amount:.3g} " if self.amount else ""
        alone = "" if self.alone is None else f" ({self.alone:.1f} of the module alone)"
        return f"{amount}at {self.path}, {self.size:.1f} times the noise{alone}"


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    `run` says what was run, `weights` of which style they were, `fault` the kind of the fault and its usual
    amount; that and `placed` are empty for a clean run. `moved` is how far right rounding alone moves the
    logits, as the clean run of the same network has it. `overflows` says that the dtype cannot hold what the
    network computes. `samples` are lines of JSON, one for each pair.
    """

    run: str
    weights: str
    dtype: str
    fault: str
    placed: Placed | None
    moved: float
    overflows: bool
    verdicts: tuple[Verdict, ...]
    samples: tuple[str, ...]
    seconds: float

    @property
    def ill(self) -> bool:
        """Whether the network is ill-conditioned in this dtype."""
        return self.moved > ILL

    @property
    def size(self) -> float:
        """Of the fault, over the noise."""
        return self.placed.size if self.placed else 0.0

    def by(self, way: str) -> Verdict:
        return next(one for one in self.verdicts if one.way == way)

    def __str__(self) -> str:
        return f"{self.fault} {self.placed}, {self.run}" if self.placed else self.run


def between(outcomes: Iterable[Outcome], least: float, below: float = float("inf")) -> list[Outcome]:
    """The runs whose fault has such a size."""
    return [one for one in outcomes if least <= one.size < below]
