"""The dataflow of a step of two torch dumps, from the tensors that both saw at the same places."""

from __future__ import annotations

from collections.abc import Iterable

from ...dumps.calls import Calls, NodeSlot
from ..module_flow import ModuleFlow, module_flow
from .nearest import SlotName, Upstream
from .steps import Flow


def modules_flow(golden: Calls, mine: Calls, places: Iterable[SlotName], unlike: bool) -> Flow:
    """The flow above `places`, which are compared. The flow of `unlike` modules is that of mine alone."""
    slot_names = frozenset(places)

    def compared(place: NodeSlot) -> bool:
        return _named(place) in slot_names

    copied = compared if unlike else lambda _: False
    flow = module_flow(mine if unlike else golden, mine, compared, copied)
    upstream = {
        _named(place): Upstream(
            dict.fromkeys(map(_named, sources), False),
            flow.between[place],
            keeps=place in flow.caches,
            unseen=_unseen(place, flow),
        )
        for place, sources in flow.upstream.items()
    }
    return Flow(
        upstream,
        frozenset(_named(place) for place, kind in flow.fed.items() if kind == "token ids"),
        {_named(place): gap for place, gap in flow.gaps.items()},
    )


def _unseen(place: NodeSlot, flow: ModuleFlow) -> tuple[str, ...]:
    """Inputs without a compared place, of the module whose code made the tensor."""
    gap = flow.gaps.get(place)
    if gap is None and place.slot.kind == "input":
        return ()
    return flow.unseen.get(gap.module if gap is not None else place.path, ())


def _named(place: NodeSlot) -> SlotName:
    return place.path, str(place.slot)
