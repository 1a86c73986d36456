"""The tensors that a probe saves: by ranges of executions, ids, names, devices, files. Pure functions.

Every filter of ATB is a text in the environment or a config file; here it is parsed once, then asked.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Literal

Ranges = tuple[tuple[int, int], ...]
"""Pairs of first and last execution, both included."""
EVERY: Ranges = ((0, sys.maxsize),)
NONE: Ranges = ()
Side = Literal["in", "out"]
Place = tuple[Literal["before", "after"], Side]
"""A directory of an operation, and which tensors go there."""
IN_BEFORE_OUT_AFTER: tuple[Place, ...] = (("before", "in"), ("after", "out"))


def integer(name: str, text: str) -> int:
    """The value of an integer variable; 0, with a warning, when it holds something else, as in the probe."""
    try:
        return int(text)
    except ValueError:
        warnings.warn(f"{name}={text!r} is not a whole number; the probe takes 0", stacklevel=3)
        return 0


def comma_list(text: str) -> tuple[str, ...]:
    """The items of a comma list; empty ones are none."""
    return tuple(item for item in text.split(",") if item)


def parse_ranges(name: str, text: str) -> Ranges:
    """`0,1,5,5` -> two pairs; an odd number at the end is ignored. `all` and `none` mean what they say."""
    if text in ("all", "none"):
        return EVERY if text == "all" else NONE
    numbers = [integer(name, item) for item in comma_list(text)]
    return tuple(zip(numbers[::2], numbers[1::2]))


def in_ranges(ranges: Ranges, count: int) -> bool:
    """Whether execution `count` is in one of `ranges`."""
    return any(first <= count <= last for first, last in ranges)


def id_selected(selection: Sequence[str], ids: str, *, child: bool) -> bool:
    """Whether `ids` (`2_0_1`) is in `selection` or, with `child`, lies below an entry of it."""
    return any(ids == item or (child and ids.startswith(item + "_")) for item in selection)


def name_selected(prefixes: Sequence[str], name: str) -> bool:
    """Whether an operation's name starts with one of `prefixes`. Only the name is lower-cased."""
    return any(name.lower().startswith(item) for item in prefixes)


def device_selected(devices: Sequence[str], device: int) -> bool:
    """Whether `device` is one of `devices`; none means all."""
    return not devices or str(device) in devices


def places(time: int, side: int, *, in_before_out_after: bool) -> tuple[Place, ...]:
    """The places of tensors: `time` 0 before, 1 after, 2 both; `side` 0 inputs, 1 outputs, 2 both, else none.

    With `in_before_out_after`, inputs are saved before and outputs after, whatever `time` says.
    """
    chosen: list[Place] = []
    if in_before_out_after:
        chosen = list(IN_BEFORE_OUT_AFTER)
    else:
        for directory, times in (("before", (0, 2)), ("after", (1, 2))):
            if time in times:
                chosen += [(directory, "in"), (directory, "out")]  # type: ignore[list-item]
    sides = {0: ("in",), 1: ("out",), 2: ("in", "out")}.get(side, ())
    return tuple(place for place in chosen if place[1] in sides)
