"""One test over hundreds of cases: all are checked, and the failure names each that fails with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def check_each(cases: Iterable[tuple[str, Case]], check: Callable[[Case], object]) -> None:
    """Check all cases, given with their names; fails once, with a paragraph for each that failed."""
    count, failures = 0, []
    for name, case in cases:
        count += 1
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - what a test may fail with
            failures.append(f"{name}: {type(error).__name__}: {error}")
    assert count, "there are no cases"
    if failures:
        pytest.fail("\n".join([f"{len(failures)} of {count} cases fail", *failures]), pytrace=False)
