"""How a dump lays out the tokens of a step: found by headers, and by the names of what tells it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Union

from ..dumps.base import Rank, Slot
from ..tensors.header import TensorHeader
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from .dump_step import DumpStep
from .engine_views import TokenLayout
from .roles.export import Export
from .shapes import Shape
from .token_split import ranks_alike, split_of, tokens_of

_IDS = ("input_ids", "input_tokens", "tokens")
_POSITIONS = ("positions", "position_ids", "cache_position")
_LENGTHS = ("extend_seq_lens", "query_start_loc", "cu_seqlens_q", "seq_lens", "seq_lengths", "seqlens")
_MASKS = ("attention_mask",)
_LOOKED_FOR = frozenset((*_IDS, *_POSITIONS, *_LENGTHS, *_MASKS))
_Wanted = Callable[[TensorHeader], bool]
_Called = Mapping[str, Sequence[tuple[Node, Slot, TensorRef]]]


_Place = Union[tuple[str, Slot], None]
Layouts = tuple[Union[TokenLayout, None], Union[TokenLayout, None]]
"""How golden and mine lay out the tokens of a step."""
_Told = tuple[DumpStep, list[Export], Union[TokenLayout, None]]
Places = dict[Shape, tuple[_Place, ...]]
"""Where steps of a shape have ids, mask, positions and lengths: other steps of that shape have them there."""


def token_layout(
    side: DumpStep, exports: list[Export], before: TokenLayout | None, places: Places | None = None
) -> TokenLayout | None:
    """The layout of a step by what its embedding hands out (`exports` of the model); `None` without one.

    `places` are those of steps before, and are added to.
    """
    embedding = _embedding(exports)
    header = readable(side.slots(embedding.node).get(embedding.slot)) if embedding is not None else None
    if embedding is None or header is None or len(header.shape) < 2:
        return None
    looked_up = _looked_up(side, embedding.node)
    handed = readable(looked_up[0][1]) if looked_up else None
    told = tokens_of(handed.shape, header.shape, len(side.dump.ranks)) if handed is not None else None
    shape, turned = told or (header.shape[:-1], False)
    known = {} if places is None else places
    refs = _at(side, known.get(shape, ()))
    if refs is None:
        ids = [(embedding.node.path, slot) for slot, ref in looked_up if _numel(ref) == math.prod(shape)]
        known[shape] = _places(side, shape, turned, ids[0] if ids else None)
        refs = _at(side, known[shape]) or (None,) * 4
    found, mask, positions, lengths = refs
    shared = len(side.dump.ranks) == 1 or _is_on_all_ranks(side, known[shape][:1])
    return TokenLayout(shape, found, mask, positions, lengths, before, turned=turned, shared=shared)


def _is_on_all_ranks(side: DumpStep, place: tuple[_Place, ...]) -> bool:
    refs = [ref for rank in side.dump.ranks for ref in _at(side, place, rank) or () if ref]
    return len(refs) == len(side.dump.ranks) and ranks_alike(refs)


def _looked_up(side: DumpStep, embedding: Node) -> list[tuple[Slot, TensorRef]]:
    """The whole numbers that an embedding is handed."""
    handed = ((slot, ref) for slot, ref in side.slots(embedding).items() if slot.kind == "input")
    return [(slot, ref) for slot, ref in handed if _is_whole(ref)]


def both_layouts(golden: _Told, mine: _Told) -> Layouts:
    """The layouts of both sides of a step, each given with the exports of its model and the layout before."""
    one, other = token_layout(*golden), token_layout(*mine)
    return _of_all_ranks(*golden[:2], one, other), _of_all_ranks(*mine[:2], other, one)


def _of_all_ranks(
    side: DumpStep, exports: list[Export], own: TokenLayout | None, other: TokenLayout | None
) -> TokenLayout | None:
    """The layout of a step whose ids were not dumped, of which those of the other side tell: all ranks have
    the same if its ranks do, and the embedding may hand each a part of as many tokens."""
    if own is None or other is None or own.ids is not None:
        return own
    own = replace(own, shared=other.shared)
    whole = replace(own, shape=(math.prod(other.shape),))
    embedding = _embedding(exports)
    refs = side.refs(embedding, side.dump.ranks) if embedding is not None else ()
    shapes = [header.shape for header in map(readable, refs) if header is not None]
    split = split_of(shapes, whole) if own.shared and len(shapes) > 1 == len(own.shape) else None
    return whole if split is not None and split.joined and not ranks_alike(refs) else own


def _embedding(exports: list[Export]) -> Export | None:
    return next((e for e in exports if e.role == "embed" and e.slot.kind == "output"), None)


def _places(side: DumpStep, shape: Shape, turned: bool, ids: _Place) -> tuple[_Place, ...]:
    count = math.prod(shape)
    batch = shape[1 if turned else 0] if len(shape) > 1 else 0

    def tokens(known: TensorHeader) -> bool:
        return known.numel == count

    def positions(known: TensorHeader) -> bool:
        return known.numel in (count, count // batch if batch else count)

    def mask(known: TensorHeader) -> bool:
        return len(known.shape) in (2, 4) and known.shape[0] == batch

    called = _by_name(side)
    return (
        ids or _named(called, _IDS, tokens),
        _named(called, _MASKS, mask, whole=False) if batch else None,
        _named(called, _POSITIONS, positions) or _first_of_rotary(side, positions),
        _named(called, _LENGTHS, lambda known: len(known.shape) == 1),
    )


def _at(
    side: DumpStep, places: tuple[_Place, ...], rank: Rank | None = None
) -> tuple[TensorRef | None, ...] | None:
    """The tensors at these places on a rank (the first one unless told); `None` where one is missing."""
    refs = []
    for place in places:
        node = side.tree.by_path.get(place[0]) if place is not None else None
        refs.append(side.slots(node, rank).get(place[1]) if node is not None and place is not None else None)
    missing = any(place is not None and ref is None for place, ref in zip(places, refs))
    return None if missing or not places else tuple(refs)


def _named(called: _Called, names: tuple[str, ...], wanted: _Wanted, whole: bool = True) -> _Place:
    """The first tensor that is called so, of the first name that there is."""
    for name in names:
        for node, slot, ref in called.get(name, ()):
            if (not whole or _is_whole(ref)) and _fits(ref, wanted):
                return node.path, slot
    return None


def _by_name(side: DumpStep) -> _Called:
    """The tensors that are called as one that is looked for: by the name of a field or an argument, else by
    the last one of their node."""
    called: dict[str, list[tuple[Node, Slot, TensorRef]]] = {}
    for node, slot, ref in _tensors(side):
        last = slot.index[-1] if slot.index else 0
        name = last if isinstance(last, str) else node.path.rpartition(".")[2]
        if name in _LOOKED_FOR:
            called.setdefault(name, []).append((node, slot, ref))
    return called


def _first_of_rotary(side: DumpStep, wanted: _Wanted) -> _Place:
    """Positions that have no name, as rotary modules are handed them."""
    for node, slot, ref in _tensors(side):
        if "rotary" in node.path and slot.kind == "input" and _is_whole(ref) and _fits(ref, wanted):
            return node.path, slot
    return None


def _tensors(side: DumpStep) -> Iterator[tuple[Node, Slot, TensorRef]]:
    for node in sorted(side.tree.walk(), key=lambda node: node.depth):
        for slot, ref in side.slots(node).items():
            yield node, slot, ref


def _is_whole(ref: TensorRef) -> bool:
    header = readable(ref)
    return header is not None and header.payload == "data" and header.dtype.name.startswith(("int", "uint"))


def _numel(ref: TensorRef) -> int:
    header = readable(ref)
    return header.numel if header is not None else 0


def _fits(ref: TensorRef, wanted: _Wanted) -> bool:
    header = readable(ref)
    return header is not None and header.payload == "data" and wanted(header)
