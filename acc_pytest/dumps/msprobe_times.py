"""When the calls of an msprobe dump began. `dump.json` has them in the order in which they ended.

`construct.json` lists modules as they begin and functions as they end, with who called them. Where it is not
there, a module began no later than the first thing that ran in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .msprobe_names import CallName

_TICKS = 256
"""Times between two places in a list: what begins together begins from the outside to the inside."""


def began(calls: Sequence[tuple[str, CallName]], parents: Mapping[str, str | None]) -> list[int]:
    """A time for each call, given by name in the order in which they ended; `parents` is `construct.json`."""
    return _listed(calls, parents) if parents else _by_names(calls)


def _listed(calls: Sequence[tuple[str, CallName]], parents: Mapping[str, str | None]) -> list[int]:
    places = {name: number * _TICKS for number, name in enumerate(parents)}
    latest = 0
    times = []
    for name, call in calls:
        place = places.get(name)
        if place is not None and not call.is_module:
            # A function that ended before its module called another may be listed before its module.
            place = max(place, places.get(parents[name] or "", 0)) + 1
        elif call.direction == "parameters_grad":
            place = places.get(name.replace(".parameters_grad.", ".backward."), latest) + 2
        elif place is None:
            place = latest + 1
        latest = max(latest, place)
        times.append(place)
    return times


def _by_names(calls: Sequence[tuple[str, CallName]]) -> list[int]:
    first_inside: dict[str, int] = {}
    times = []
    for number, (_, call) in enumerate(calls):
        inner = call.is_module and call.direction == "forward"
        first = first_inside.pop(call.path, number) if inner else number
        names = call.path.split(".") if inner else []
        for depth in range(1, len(names)):
            first_inside.setdefault(".".join(names[:depth]), number)
        times.append(first * _TICKS + (min(len(names), _TICKS - 2) if inner else _TICKS - 1))
    return times
