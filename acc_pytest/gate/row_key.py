"""The key of a row: files know it by that, and rules match it by its context."""

from __future__ import annotations

from ..judging.replay import context_of
from ..judging.threshold import JudgeContext
from ..reporting.row import Row

_SEPARATOR = "::"


def key_of(row: Row) -> str:
    """The row's place in files that are kept: its test and its slot, or its name where it has none.

    With `--dist loadgroup` xdist appends `@group` to the ids of tests; it is left out, so that the key is
    the same for every way to run.
    """
    slot = row.mine.slot or row.mine.name
    return f"{_without_group(row.test_id)} {slot}" if slot else _without_group(row.test_id)


def _without_group(test_id: str) -> str:
    head, separator, name = test_id.rpartition(_SEPARATOR)
    at = name.rfind("@")
    return f"{head}{separator}{name[:at]}" if at > name.rfind("]") else test_id


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
