"""The dataflow of a step of two torch dumps, from the tensors that both saw at the same places."""

from __future__ import annotations

from collections.abc import Iterable

from ...dumps.calls import Calls, NodeSlot
from ..module_flow import ModuleFlow, module_flow
from .nearest import Above, SlotName
from .steps import Flow


def modules_flow(golden: Calls, mine: Calls, places: Iterable[SlotName], unlike: bool) -> Flow:
    """What is above `places`, which are those that are compared. Of `unlike` modules mine alone tells."""
    wanted = frozenset(places)

    def compared(place: NodeSlot) -> bool:
        return _named(place) in wanted

    copied = compared if unlike else lambda _: False
    flow = module_flow(mine if unlike else golden, mine, compared, copied)
    above = {
        _named(place): Above(
            dict.fromkeys(map(_named, others), False),
            flow.between[place],
            keeps=place in flow.caches,
            unseen=_unseen(place, flow),
        )
        for place, others in flow.above.items()
    }
    return Flow(
        above,
        frozenset(_named(place) for place, kind in flow.fed.items() if kind == "token ids"),
        {_named(place): gap for place, gap in flow.gaps.items()},
    )


def _unseen(place: NodeSlot, flow: ModuleFlow) -> tuple[str, ...]:
    """Inputs that nothing compared stands for, of the module whose code made the tensor."""
    gap = flow.gaps.get(place)
    if gap is None and place.slot.kind == "input":
        return ()
    return flow.unseen.get(gap.module if gap is not None else place.path, ())


def _named(place: NodeSlot) -> SlotName:
    return place.path, str(place.slot)
