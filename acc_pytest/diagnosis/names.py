"""Names from dumps as they stand in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from ..reporting.printable import shortened

NAME_WIDTH = 120
NAMED = 3
"""Operators between a root and its parents that its sentence names."""


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    omitted = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(map(shown, names[:NAMED]))}{omitted}"


def shown(name: str) -> str:
    """A name from a dump as it stands in sentences: a row for every inherited failure repeats it."""
    return shortened(name, NAME_WIDTH)


def full_name(path: str) -> str:
    """The name of the operator at `path`, as ATB makes it of the ids above: `RopeOperation_2_0_1_0`."""
    segments = [segment.partition("_") for segment in path.split("/")]
    if not all(number.isdecimal() for number, _, _ in segments):
        return path
    return "_".join((segments[-1][2], *(number for number, _, _ in segments)))
