"""The sources of each tensor in a run of modules, as far as two dumps tell.

A module reads its inputs and hands out its outputs; a tensor that its own code computes between calls of
other modules belongs to no module. It appears where it is handed on: as the input of a module, or as the
output of the module whose code made it. So a tensor that both dumps have seen before, at one place, is that
tensor. Any other is new: made by the code of the module around it, from all tensors at hand there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from ..base.reason import Reason
from ..base.vocabulary import EARLIER_CALLS
from ..dumps.base import NodeSlot, Slot
from ..topology.tree import SAVED, Node
from .pair import Gap, fed_kind

if TYPE_CHECKING:
    from ..dumps.modules import Calls, NodeCall

MOST_BETWEEN = 128
"""Modules on the way that are named, of more that are not compared."""
AT_HAND = 64
"""Number of latest tensors that count as read by the code of a module, beside its inputs."""
CACHES = ("past", "cache")
"""Words in the names of outputs that are caches of keys and values."""


@dataclass(frozen=True, slots=True)
class ModuleFlow:
    """The places that are compared, in the order of time, and the places `upstream` of each.

    `between` has the modules whose results lie on the way from there to a place and are not compared, `gaps`
    the places that the code of a module made, `fed` the kinds of the inputs of the run, `unseen`, by the
    path of a node, the inputs of its call that only one dump holds, and `earlier` the calls that ran before
    the code of a module made a tensor, and that no dump holds.
    """

    order: Mapping[NodeSlot, int]
    upstream: Mapping[NodeSlot, tuple[NodeSlot, ...]]
    between: Mapping[NodeSlot, tuple[str, ...]]
    gaps: Mapping[NodeSlot, Gap]
    fed: Mapping[NodeSlot, str]
    caches: frozenset[NodeSlot]
    unseen: Mapping[str, tuple[str, ...]]
    earlier: Mapping[NodeSlot, str]


def module_flow(
    golden: Calls,
    mine: Calls,
    compared: Callable[[NodeSlot], bool],
    copied: Callable[[NodeSlot], bool] = lambda _: False,
) -> ModuleFlow:
    """Follow the calls of mine. `compared` says whether a place that both dumps have is compared, `copied`
    whether an input is, although it holds a tensor that was seen before.

    With mine for golden, too, the flow is that of mine alone, whatever golden's modules are.
    """
    return _FlowBuilder(golden, mine, compared, copied).flow()


@dataclass(slots=True, eq=False)
class _Scope:
    """The tensors that the code of a running module has at hand. `open_ends` are the modules that it called
    whose results no other module was handed yet, by the place where such a result was seen first; `latest`
    are those since it last made a tensor; `hidden` are the modules that made tensors at hand that are not
    compared.
    """

    path: str
    inputs: dict[NodeSlot, None] = field(default_factory=dict)
    results: dict[NodeSlot, None] = field(default_factory=dict)
    open_ends: dict[NodeSlot, Node] = field(default_factory=dict)
    latest: dict[NodeSlot, None] = field(default_factory=dict)
    caches: list[NodeSlot] = field(default_factory=list)
    hidden: dict[str, None] = field(default_factory=dict)
    called: bool = False

    def at_hand(self) -> tuple[NodeSlot, ...]:
        latest = list(islice(reversed(self.results), AT_HAND))
        return (*self.inputs, *reversed(latest))

    def give(self, place: NodeSlot, node: Node) -> None:
        """A module that the code called hands out a tensor."""
        self.open_ends[place] = node
        self.latest[place] = None

    def hand_on(self, place: NodeSlot) -> None:
        """Another module is handed that tensor."""
        self.open_ends.pop(place, None)
        self.latest.pop(place, None)

    def gap(self, before: Node | None = None) -> Gap:
        """The gap where the code made a tensor. Of modules that were not dumped the innermost one is
        named."""
        callees = [self.open_ends[place] for place in self.latest or self.open_ends]
        module = _innermost_around([*callees, before] if before is not None else callees, self.path)
        names = (node.path.removeprefix(f"{module}.") for node in callees)
        return Gap(
            module,
            tuple(dict.fromkeys(names)),
            before.path.removeprefix(f"{module}.") if before is not None else "",
        )


def _innermost_around(nodes: Sequence[Node], path: str) -> str:
    """The innermost module at or below `path` that has all nodes in it."""
    ancestors = [_ancestors(node) for node in nodes]
    common = ancestors[0] if ancestors else []
    for paths in ancestors[1:]:
        common = [module for module in common if module in paths]
    inside = [module for module in common if not path or module == path or module.startswith(f"{path}.")]
    return inside[0] if inside else path


def _ancestors(node: Node) -> list[str]:
    """The paths of the modules that a node is in, the innermost first."""
    paths = []
    while node.parent is not None:
        node = node.parent
        paths.append(node.path)
    return paths


class _FlowBuilder:
    def __init__(
        self,
        golden: Calls,
        mine: Calls,
        compared: Callable[[NodeSlot], bool],
        copied: Callable[[NodeSlot], bool],
    ) -> None:
        self._copied = copied
        self._golden = golden
        self._mine = mine
        self._golden_inputs = golden.inputs()
        self._later = _later(mine)
        self._compared = compared
        self._scopes: dict[NodeCall | None, _Scope] = {None: _Scope("")}
        self._places: dict[NodeSlot, tuple[NodeSlot, ...]] = {}
        self._order: dict[NodeSlot, int] = {}
        self._upstream: dict[NodeSlot, tuple[NodeSlot, ...]] = {}
        self._between: dict[NodeSlot, tuple[str, ...]] = {}
        self._hidden: dict[NodeSlot, dict[str, None]] = {}
        self._gaps: dict[NodeSlot, Gap] = {}
        self._kinds: dict[NodeSlot, str] = {}
        self._caches: set[NodeSlot] = set()
        self._unseen: dict[str, tuple[str, ...]] = {}
        self._earlier: dict[NodeSlot, str] = {}
        self._overwritten: dict[str, str] = {}

    def flow(self) -> ModuleFlow:
        for call, ends in self._mine.events:
            if ends:
                self._end(call)
            else:
                self._begin(call)
        return ModuleFlow(
            self._order,
            self._upstream,
            self._between,
            self._gaps,
            self._kinds,
            frozenset(self._caches),
            self._unseen,
            self._earlier,
        )

    def _begin(self, call: NodeCall) -> None:
        caller, path = self._scopes[call.inside], call.node.path
        scope = self._scopes[call] = _Scope(path)
        scope.caches = [place for slot in call.outputs if is_cache(place := NodeSlot(path, slot))]
        for slot in call.inputs:
            place = NodeSlot(path, slot)
            scope.inputs.update(dict.fromkeys(self._places_of_input(call, place, caller)))
            scope.hidden.update(self._hidden[place])
        if not call.inputs and (call.inside is not None or caller.results):
            scope.inputs.update(dict.fromkeys(caller.at_hand()))
            scope.hidden.update(caller.hidden)
            self._unseen[path] = ("inputs, which were not dumped",)
        caller.called = True
        if unseen := self._unseen_inputs(call):
            self._unseen[path] = unseen
        for slot in call.inputs:
            place = NodeSlot(path, slot)
            writer = self._mine.overwritten.get(place)
            right = self._golden is not self._mine and place in self._golden.overwritten
            if writer and not right and not self._compared(place):
                self._overwritten[path] = writer
                name = Reason("{} of {}, in whose memory it wrote", slot, path)
                self._unseen[writer] = (*self._unseen.get(writer, ()), name)

    def _unseen_inputs(self, call: NodeCall) -> tuple[str, ...]:
        """The inputs of a call that only one side holds."""
        path, inputs = call.node.path, frozenset(call.inputs)
        golden_inputs = self._golden_inputs.get(path, frozenset())
        mine = [slot for slot in sorted(inputs - golden_inputs) if self._origin(NodeSlot(path, slot)) is None]
        golden = sorted(golden_inputs - inputs)
        return (
            *(Reason("{} (mine only)", slot) for slot in mine),
            *(Reason("{} (golden only)", slot) for slot in golden),
        )

    def _places_of_input(self, call: NodeCall, place: NodeSlot, caller: _Scope) -> tuple[NodeSlot, ...]:
        """The nearest compared places of an input: itself where it is compared."""
        origin = self._origin(place)
        if origin is not None:
            caller.hand_on(origin)
            if self._copied(place):
                return self._show_copy(place, origin)
            self._hidden[place] = self._hidden[origin]
            return self._places[origin]
        kind = self._fed_kind(call, place)
        if kind:
            self._kinds[place] = kind
            inputs = [earlier for earlier in self._kinds if earlier in self._order and earlier != place]
            return self._show(place, inputs if call.inside is not None else (), {}, place.path)
        if caller.called:
            self._store(caller)
        self._gaps[place] = gap = caller.gap(call.node)
        if call.node.path in self._mine.replaced:
            self._earlier[place] = Reason(EARLIER_CALLS, call.node.path)
        caller.latest.clear()
        places = self._show(place, caller.at_hand(), caller.hidden, gap.module or place.path)
        caller.results.update(dict.fromkeys(places))
        caller.hidden.update(self._hidden[place])
        return places

    def _fed_kind(self, call: NodeCall, place: NodeSlot) -> str:
        """The kind of a new input; where a module got it by position, by its name in a later call."""
        dtype = self._mine.dtypes.get(place, "")
        uses = [(call, place.slot), *self._later.get(place, ())]
        return next((kind for reader, slot in uses if (kind := fed_kind(reader.node, slot, dtype))), "")

    def _end(self, call: NodeCall) -> None:
        scope, caller = self._scopes.pop(call), self._scopes[call.inside]
        self._store(scope)
        if call.inputs and not call.outputs:
            # They were not dumped: they may hold all that was at hand.
            caller.results.update(dict.fromkeys(scope.at_hand()))
            caller.hidden.update({call.node.path: None, **scope.hidden})
            for place, node in scope.open_ends.items():
                caller.give(place, node)
        results: list[dict[str, None]] = []
        for slot in call.outputs:
            place = NodeSlot(call.node.path, slot)
            if place in scope.caches:
                continue
            origin = self._origin(place)
            if origin is None:
                if writer := self._overwritten.get(call.node.path):
                    self._gaps[place] = Gap(writer, (), call.node.path)
                elif scope.called or call.node.op_type == SAVED:
                    self._gaps[place] = (scope if scope.called else caller).gap()
                places = self._show(place, scope.at_hand(), scope.hidden, call.node.path)
            else:
                places = self._show_copy(place, origin)
            caller.results.update(dict.fromkeys(places))
            caller.give(origin or place, call.node)
            results.append(self._hidden[place])
        if all(results):  # else they are beside a compared result, as attention weights are
            for hidden in results:
                caller.hidden.update(hidden)

    def _store(self, scope: _Scope) -> None:
        """Show the caches of a scope as early as possible: they are written before the tensors made of them,
        and the dump does not say when."""
        for place in scope.caches:
            if place in self._places:
                continue
            self._caches.add(place)
            if scope.called:
                self._gaps[place] = scope.gap()
            scope.results.update(dict.fromkeys(self._show(place, scope.at_hand(), scope.hidden, place.path)))

    def _show_copy(self, place: NodeSlot, origin: NodeSlot) -> tuple[NodeSlot, ...]:
        """Show a tensor that was seen before; where it was not compared there, this place stands for it from
        now on."""
        places = self._show(place, self._places[origin], self._hidden[origin])
        if origin not in self._order and places == (place,):
            self._places[origin], self._hidden[origin] = places, {}
        return places

    def _show(
        self, place: NodeSlot, upstream: Iterable[NodeSlot], hidden: Mapping[str, None], maker: str = ""
    ) -> tuple[NodeSlot, ...]:
        """Note the sources of a place and return the places that stand for it; `maker` made it of `hidden`
        results."""
        sources = tuple(upstream)
        self._places[place] = sources
        if place in self._golden.dtypes and self._compared(place):
            self._order[place] = len(self._order)
            self._upstream[place] = sources
            self._between[place] = tuple(hidden)[:MOST_BETWEEN]
            self._places[place], self._hidden[place] = (place,), {}
        else:
            self._gaps.pop(place, None)
            self._hidden[place] = {maker: None, **hidden} if maker else dict(hidden)
        return self._places[place]

    def _origin(self, place: NodeSlot) -> NodeSlot | None:
        """The place where both dumps saw this tensor first; `None` where they do not agree on one."""
        mine = self._mine.origins.get(place)
        if mine is None or mine.place not in self._places:
            return None
        if place in self._golden.dtypes and self._golden.origins.get(place) != mine:
            return None
        return mine.place


def _later(calls: Calls) -> dict[NodeSlot, list[tuple[NodeCall, Slot]]]:
    """The inputs that are a whole tensor seen before, by the place where it was seen first."""
    reads: dict[NodeSlot, list[tuple[NodeCall, Slot]]] = {}
    for call in (event.call for event in calls.events if not event.ends):
        for slot in call.inputs:
            origin = calls.origins.get(NodeSlot(call.node.path, slot))
            if origin is not None and not origin.view:
                reads.setdefault(origin.place, []).append((call, slot))
    return reads


def is_cache(place: NodeSlot) -> bool:
    """Whether an output holds keys and values of earlier tokens, which the hooks name after their cache."""
    names = (index for index in place.slot.index if isinstance(index, str))
    return place.slot.kind == "output" and any(word in name for name in names for word in CACHES)
