"""The forward passes within one step of an msprobe dump, which lies between two `step()` of the program.

A program that generates, and one that accumulates gradients, calls its model several times in a step. msprobe
does not record the model itself but the modules that it calls. Where each of these was called once, and then
each of them once again, the model was called again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from .msprobe_names import CallName
from .passes import is_inside, pass_starts

Call = tuple[str, CallName]
_Key = tuple[str, str, str]


def passes(calls: Sequence[Call], parents: Mapping[str, str | None]) -> list[list[Call]]:
    """The calls of each pass, given in the order in which they ended; their numbers count within the pass.

    `parents` is `construct.json`. All calls are one pass where nothing shows that they are several.
    """
    modules = {call.path for _, call in calls if _is_forward_of_module(call)}
    outermost = list(_outermost(calls, parents, modules))
    began = pass_starts([calls[place][1].path for place in outermost], modules)
    if len(began) < 2:
        return [list(calls)]
    pass_of = dict(zip(outermost, _numbers(began, len(outermost))))
    split: list[list[Call]] = [[] for _ in began]
    for call, number in zip(calls, _places(calls, parents, pass_of)):
        split[number].append(call)
    return [_renumbered(one) for one in split]


def _outermost(
    calls: Sequence[Call], parents: Mapping[str, str | None], modules: Collection[str]
) -> Iterator[int]:
    """The places of forward calls of modules that no recorded module called."""
    for place, (name, call) in enumerate(calls):
        if _is_forward_of_module(call):
            inside = parents[name] is not None if name in parents else is_inside(call.path, modules)
            if not inside:
                yield place


def _is_forward_of_module(call: CallName) -> bool:
    return call.is_module and call.direction == "forward"


def _numbers(began: Sequence[int], count: int) -> Iterator[int]:
    """The number of the pass at each place."""
    for number, (begin, end) in enumerate(zip(began, [*began[1:], count])):
        yield from (number for _ in range(begin, end))


def _places(
    calls: Sequence[Call], parents: Mapping[str, str | None], pass_of: Mapping[int, int]
) -> list[int]:
    """The pass of each call: that of the outermost module around it, of a gradient that of its forward call.

    What nobody called runs after the module that ended last. Gradients of parameters are sums over all
    passes, so they belong to the last one.
    """
    ends = sorted(pass_of)
    last = pass_of[ends[-1]]
    forward: dict[tuple[str, str, str, int], int] = {}
    found: list[int] = []
    ended = 0
    for place, (name, call) in enumerate(calls):
        one = (*_key(call), call.number)
        if call.direction != "forward":
            found.append(last if _is_sum(call) else forward.get(one, last))
            continue
        alone = not call.is_module and name in parents and parents[name] is None
        around = max(ended - 1, 0) if alone else min(ended, len(ends) - 1)
        forward[one] = pass_of[ends[around]]
        found.append(forward[one])
        ended += place in pass_of
    return found


def _is_sum(call: CallName) -> bool:
    return call.direction == "parameters_grad"


def _key(call: CallName) -> _Key:
    return call.prefix, call.path, call.kind


def _renumbered(calls: Sequence[Call]) -> list[Call]:
    """Calls whose numbers begin with 0 in their pass; gradients have those of their forward calls."""
    first: dict[_Key, int] = {}
    for _, call in calls:
        if not _is_sum(call):
            first[_key(call)] = min(call.number, first.get(_key(call), call.number))
    return [
        (name, call if _is_sum(call) else call._replace(number=call.number - first[_key(call)]))
        for name, call in calls
    ]
