"""`Gate`: what may change the verdict of a row after its thresholds."""

from __future__ import annotations

from ..judging.replay import context_of
from ..judging.threshold import JudgeContext
from ..reporting.row import Row
from ..reporting.view import Run, View


class Gate:
    """One gate. It is pure and the same in every process: a row goes in, a row comes out."""

    def apply(self, row: Row) -> Row:
        """The row as this gate sees it."""
        return row


# The key of a row: files know it by that, and rules match it by its context.


_SEPARATOR = "::"


def key_of(row: Row) -> str:
    """The row's place in files that are kept: its test and its slot, or its name where it has none.

    With `--dist loadgroup` xdist appends `@group` to the ids of tests; it is left out, so that the key is
    the same for every way to run.
    """
    slot = row.mine.slot or row.mine.name
    test_id = row.test_id
    name = test_id.rpartition(_SEPARATOR)[2]
    if name.rfind("@") > name.rfind("]"):
        test_id = test_id[: test_id.rfind("@")]
    return f"{test_id} {slot}" if slot else test_id


def root_of(key: str) -> str:
    """The first part of a test id: a file of tests, or the name of a plan."""
    return key.partition(_SEPARATOR)[0]


def context_of_row(row: Row) -> JudgeContext:
    """The context that rules match a row by; of single operators from what the row says of both sides."""
    if row.context:
        return context_of(row.context)
    return JudgeContext(
        id=row.name,
        golden_op_type=row.golden.op_type,
        mine_op_type=row.mine.op_type,
        golden_path=row.golden.node,
        golden_name=row.golden.name,
        mine_path=row.mine.node,
        mine_name=row.mine.name,
        level=row.level,
        layer=row.layer or "model",
        step=row.step,  # type: ignore[arg-type]
        policy=row.policy,
    )


def dtypes_of(row: Row) -> tuple[str, str]:
    """The dtypes of golden and mine by name; empty where unknown."""
    sides = (row.golden.dtype, row.mine.dtype)
    golden, mine = (dtype.partition(";")[0].removeprefix("torch.") for dtype in sides)
    return golden, mine


# Views that tell what is stale in a file: only a complete run of the whole plan can show that.


class PlanView(View):
    """Watches which pairs of the plan have a row."""

    def __init__(self) -> None:
        self._plan_name = ""
        self._without_row: set[int] = set()
        self._complete = False

    def begin(self, run: Run) -> None:
        """Note the plan."""
        if run.plan is not None:
            self._plan_name = run.plan.name
            self._without_row = set(range(len(run.plan.pairs)))

    def add(self, row: Row) -> None:
        """Note that a pair has its row."""
        if row.number is not None and not row.alone:
            self._without_row.discard(row.number)

    def end(self, complete: bool) -> None:
        """Whether what was asked for has run to its end."""
        self._complete = complete

    @property
    def _plan_ran(self) -> bool:
        return self._complete and bool(self._plan_name) and not self._without_row
