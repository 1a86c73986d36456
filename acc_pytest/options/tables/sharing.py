"""How a run is shared between machines, whatever it compares or checks: fields of `Settings`."""

from __future__ import annotations

from ..option import Option

SHARING = (
    Option(
        "shard",
        "shard",
        "run share I of N of the tests, dealt by bytes; acc report merge joins their rows",
        metavar="I/N",
    ),
)
