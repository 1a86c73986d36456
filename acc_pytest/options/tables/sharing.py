"""How a run is shared between machines, whatever it compares or checks: fields of `Settings`."""

from __future__ import annotations

from ..option import Option

SHARING = (
    Option(
        "shard",
        "shard",
        "run share I of N of the tests, balanced by file size; acc report merge joins the rows",
        metavar="I/N",
    ),
)
