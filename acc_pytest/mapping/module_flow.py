"""What each tensor of a run of modules was computed from, as far as two dumps tell.

A module reads its inputs and hands out its outputs; what its own code computes between the modules that it
calls is no tensor of any module. It shows where it is handed on: as the input of a module, or as the output
of the one whose code it is. So a tensor that both dumps have seen before, at one place, is that tensor. Any
other is new: made by the code of the module around it, from all that was at hand there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ..dumps.base import Slot
from ..dumps.calls import Calls, NodeCall, NodeSlot
from ..dumps.recorded import SAVED
from ..topology.tree import Node
from .fed import fed_kind
from .pair import Gap

MOST_BETWEEN = 128
"""Modules on the way that are named, of more that are not compared."""
AT_HAND = 64
"""How many of the latest tensors count as read by the code of a module, beside its inputs."""
CACHES = ("past", "cache")
"""What names of outputs hold that are caches of keys and values."""


@dataclass(frozen=True, slots=True)
class ModuleFlow:
    """The places that are compared, in the order of time, and what is above each of them.

    `between` has the modules whose results lie on the way from there to a place and are not compared, `gaps`
    the places that the code of a module made, `fed` the kind of what the run was given, and `unseen`, by the
    path of a node, the inputs of its call that only one dump holds.
    """

    order: Mapping[NodeSlot, int]
    above: Mapping[NodeSlot, tuple[NodeSlot, ...]]
    between: Mapping[NodeSlot, tuple[str, ...]]
    gaps: Mapping[NodeSlot, Gap]
    fed: Mapping[NodeSlot, str]
    caches: frozenset[NodeSlot]
    unseen: Mapping[str, tuple[str, ...]]


def module_flow(
    golden: Calls,
    mine: Calls,
    compared: Callable[[NodeSlot], bool],
    copied: Callable[[NodeSlot], bool] = lambda _: False,
) -> ModuleFlow:
    """Follow the calls of mine. `compared` says whether a place that both dumps have is compared, `copied`
    whether an input is, although it holds a tensor that was seen before.

    With mine for golden, too, it is what mine tells alone, whatever golden's modules are.
    """
    return _FlowBuilder(golden, mine, compared, copied).flow()


@dataclass(slots=True, eq=False)
class _Scope:
    """What the code of a running module has at hand. `open_ends` are the modules that it called whose results
    no other module was handed yet, by the place where such a result was seen first; `latest` are those since
    it last made a tensor; `hidden` are the modules that made what is at hand and not compared."""

    path: str
    given: dict[NodeSlot, None] = field(default_factory=dict)
    made: dict[NodeSlot, None] = field(default_factory=dict)
    open_ends: dict[NodeSlot, Node] = field(default_factory=dict)
    latest: dict[NodeSlot, None] = field(default_factory=dict)
    caches: list[NodeSlot] = field(default_factory=list)
    hidden: dict[str, None] = field(default_factory=dict)
    called: bool = False

    def at_hand(self) -> tuple[NodeSlot, ...]:
        latest = list(islice(reversed(self.made), AT_HAND))
        return (*self.given, *reversed(latest))

    def give(self, place: NodeSlot, node: Node) -> None:
        """A module that the code called hands out a tensor."""
        self.open_ends[place] = node
        self.latest[place] = None

    def hand_on(self, place: NodeSlot) -> None:
        """Another module is handed that tensor."""
        self.open_ends.pop(place, None)
        self.latest.pop(place, None)

    def gap(self, before: Node | None = None) -> Gap:
        """Where the code made a tensor. Of modules that were not dumped the innermost around it is named."""
        after = [self.open_ends[place] for place in self.latest or self.open_ends]
        module = _innermost_around([*after, before] if before is not None else after, self.path)
        names = (node.path.removeprefix(f"{module}.") for node in after)
        return Gap(
            module,
            tuple(dict.fromkeys(names)),
            before.path.removeprefix(f"{module}.") if before is not None else "",
        )


def _innermost_around(nodes: Sequence[Node], path: str) -> str:
    """The innermost module at or below `path` that has all nodes in it."""
    above = [_above(node) for node in nodes]
    common = above[0] if above else []
    for others in above[1:]:
        common = [module for module in common if module in others]
    inside = [module for module in common if not path or module == path or module.startswith(f"{path}.")]
    return inside[0] if inside else path


def _above(node: Node) -> list[str]:
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
        self._shown: dict[NodeSlot, tuple[NodeSlot, ...]] = {}
        self._order: dict[NodeSlot, int] = {}
        self._above: dict[NodeSlot, tuple[NodeSlot, ...]] = {}
        self._between: dict[NodeSlot, tuple[str, ...]] = {}
        self._hidden: dict[NodeSlot, dict[str, None]] = {}
        self._gaps: dict[NodeSlot, Gap] = {}
        self._fed: dict[NodeSlot, str] = {}
        self._caches: set[NodeSlot] = set()
        self._unseen: dict[str, tuple[str, ...]] = {}

    def flow(self) -> ModuleFlow:
        for call, ends in self._mine.events:
            if ends:
                self._end(call)
            else:
                self._begin(call)
        return ModuleFlow(
            self._order,
            self._above,
            self._between,
            self._gaps,
            self._fed,
            frozenset(self._caches),
            self._unseen,
        )

    def _begin(self, call: NodeCall) -> None:
        around, path = self._scopes[call.inside], call.node.path
        scope = self._scopes[call] = _Scope(path)
        scope.caches = [place for slot in call.outputs if is_cache(place := NodeSlot(path, slot))]
        for slot in call.inputs:
            place = NodeSlot(path, slot)
            scope.given.update(dict.fromkeys(self._arrived(call, place, around)))
            scope.hidden.update(self._hidden[place])
        if not call.inputs and (call.inside is not None or around.made):
            scope.given.update(dict.fromkeys(around.at_hand()))
            scope.hidden.update(around.hidden)
            self._unseen[path] = ("inputs, which were not dumped",)
        around.called = True
        if alone := self._alone(call):
            self._unseen[path] = alone

    def _alone(self, call: NodeCall) -> tuple[str, ...]:
        """The inputs of a call that nothing can be compared with."""
        path, own = call.node.path, frozenset(call.inputs)
        other = self._golden_inputs.get(path, frozenset())
        mine = [slot for slot in sorted(own - other) if self._origin(NodeSlot(path, slot)) is None]
        golden = sorted(other - own)
        return (*(f"{slot} (mine only)" for slot in mine), *(f"{slot} (golden only)" for slot in golden))

    def _arrived(self, call: NodeCall, place: NodeSlot, around: _Scope) -> tuple[NodeSlot, ...]:
        """The places that are compared nearest to an input, itself where it is one."""
        origin = self._origin(place)
        if origin is not None:
            around.hand_on(origin)
            if self._copied(place):
                return self._show_copy(place, origin)
            self._hidden[place] = self._hidden[origin]
            return self._shown[origin]
        kind = self._fed_kind(call, place)
        if kind:
            self._fed[place] = kind
            fed = [earlier for earlier in self._fed if earlier in self._order and earlier != place]
            return self._show(place, fed if call.inside is not None else (), {}, place.path)
        if around.called:
            self._store(around)
        self._gaps[place] = gap = around.gap(call.node)
        around.latest.clear()
        shown = self._show(place, around.at_hand(), around.hidden, gap.module or place.path)
        around.made.update(dict.fromkeys(shown))
        around.hidden.update(self._hidden[place])
        return shown

    def _fed_kind(self, call: NodeCall, place: NodeSlot) -> str:
        """The kind of a new input; where a module got it by position, what a later one calls it."""
        dtype = self._mine.dtypes.get(place, "")
        uses = [(call, place.slot), *self._later.get(place, ())]
        return next((kind for reader, slot in uses if (kind := fed_kind(reader.node, slot, dtype))), "")

    def _end(self, call: NodeCall) -> None:
        scope, around = self._scopes.pop(call), self._scopes[call.inside]
        self._store(scope)
        if call.inputs and not call.outputs:
            # They were not dumped: they may hold all that was at hand.
            around.made.update(dict.fromkeys(scope.at_hand()))
            around.hidden.update({call.node.path: None, **scope.hidden})
            for place, node in scope.open_ends.items():
                around.give(place, node)
        results: list[dict[str, None]] = []
        for slot in call.outputs:
            place = NodeSlot(call.node.path, slot)
            if place in scope.caches:
                continue
            origin = self._origin(place)
            if origin is None:
                if scope.called or call.node.op_type == SAVED:
                    self._gaps[place] = (scope if scope.called else around).gap()
                shown = self._show(place, scope.at_hand(), scope.hidden, call.node.path)
            else:
                shown = self._show_copy(place, origin)
            around.made.update(dict.fromkeys(shown))
            around.give(origin or place, call.node)
            results.append(self._hidden[place])
        if all(results):  # else they are beside a compared result, as attention weights are
            for hidden in results:
                around.hidden.update(hidden)

    def _store(self, scope: _Scope) -> None:
        """Caches are written before what is made of them; when is not dumped, so it is as early as can be."""
        for place in scope.caches:
            if place in self._shown:
                continue
            self._caches.add(place)
            if scope.called:
                self._gaps[place] = scope.gap()
            scope.made.update(dict.fromkeys(self._show(place, scope.at_hand(), scope.hidden, place.path)))

    def _show_copy(self, place: NodeSlot, origin: NodeSlot) -> tuple[NodeSlot, ...]:
        """The same of a tensor that was seen before: where it was not compared there, this place stands for
        it from now on."""
        shown = self._show(place, self._shown[origin], self._hidden[origin])
        if origin not in self._order and shown == (place,):
            self._shown[origin], self._hidden[origin] = shown, {}
        return shown

    def _show(
        self, place: NodeSlot, above: Iterable[NodeSlot], hidden: Mapping[str, None], maker: str = ""
    ) -> tuple[NodeSlot, ...]:
        """Note what is above a place, tell which places stand for it; `maker` made it of what is `hidden`."""
        others = tuple(above)
        self._shown[place] = others
        if place in self._golden.dtypes and self._compared(place):
            self._order[place] = len(self._order)
            self._above[place] = others
            self._between[place] = tuple(hidden)[:MOST_BETWEEN]
            self._shown[place], self._hidden[place] = (place,), {}
        else:
            self._gaps.pop(place, None)
            self._hidden[place] = {maker: None, **hidden} if maker else dict(hidden)
        return self._shown[place]

    def _origin(self, place: NodeSlot) -> NodeSlot | None:
        """The place where both dumps saw this tensor first; `None` where they do not agree on one."""
        mine = self._mine.origins.get(place)
        if mine is None or mine.place not in self._shown:
            return None
        if place in self._golden.dtypes and self._golden.origins.get(place) != mine:
            return None
        return mine.place


def _later(calls: Calls) -> dict[NodeSlot, list[tuple[NodeCall, Slot]]]:
    """The inputs that are a tensor seen before, whole, by the place where it was seen first."""
    reads: dict[NodeSlot, list[tuple[NodeCall, Slot]]] = {}
    for call in (event.call for event in calls.events if not event.ends):
        for slot in call.inputs:
            origin = calls.origins.get(NodeSlot(call.node.path, slot))
            if origin is not None and not origin.view:
                reads.setdefault(origin.place, []).append((call, slot))
    return reads


def is_cache(place: NodeSlot) -> bool:
    """Whether an output holds keys and values of earlier tokens, which the hooks name after their cache."""
    names = (part for part in place.slot.index if isinstance(part, str))
    return place.slot.kind == "output" and any(word in name for name in names for word in CACHES)
