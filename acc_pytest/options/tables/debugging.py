"""What is printed of our own mistakes, whatever a run compares or checks."""

from __future__ import annotations

from ..option import Option

DEBUGGING = (
    Option(
        "debug",
        "debug",
        "print the traceback of an unexpected error, not only its message",
        kind="flag",
    ),
)
"""No fields of `Settings`: they change nothing of a run."""
