"""The layout of the tokens of a step, by headers and by the names of the tensors that describe it."""

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
_Condition = Callable[[TensorHeader], bool]
_Called = Mapping[str, Sequence[tuple[Node, Slot, TensorRef]]]


_Place = Union[tuple[str, Slot], None]
Layouts = tuple[Union[TokenLayout, None], Union[TokenLayout, None]]
"""The layouts of the tokens of a step, of golden and of mine."""
_LaidOut = tuple[DumpStep, list[Export], Union[TokenLayout, None]]
Places = dict[Shape, tuple[_Place, ...]]
"""Places of ids, mask, positions and lengths in all steps of a shape."""


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
    id_inputs = _id_inputs(side, embedding.node)
    handed = readable(id_inputs[0][1]) if id_inputs else None
    tokens = tokens_of(handed.shape, header.shape, len(side.dump.ranks)) if handed is not None else None
    shape, turned = tokens or (header.shape[:-1], False)
    by_shape = {} if places is None else places
    refs = _at(side, by_shape.get(shape, ()))
    if refs is None:
        ids = [(embedding.node.path, slot) for slot, ref in id_inputs if _numel(ref) == math.prod(shape)]
        by_shape[shape] = _places(side, shape, turned, ids[0] if ids else None)
        refs = _at(side, by_shape[shape]) or (None,) * 4
    id_ref, mask, positions, lengths = refs
    shared = len(side.dump.ranks) == 1 or _is_on_all_ranks(side, by_shape[shape][:1])
    return TokenLayout(shape, id_ref, mask, positions, lengths, before, turned=turned, shared=shared)


def _is_on_all_ranks(side: DumpStep, place: tuple[_Place, ...]) -> bool:
    refs = [ref for rank in side.dump.ranks for ref in _at(side, place, rank) or () if ref]
    return len(refs) == len(side.dump.ranks) and ranks_alike(refs)


def _id_inputs(side: DumpStep, embedding: Node) -> list[tuple[Slot, TensorRef]]:
    """The whole numbers that an embedding is handed."""
    handed = ((slot, ref) for slot, ref in side.slots(embedding).items() if slot.kind == "input")
    return [(slot, ref) for slot, ref in handed if _holds_integers(ref)]


def both_layouts(golden: _LaidOut, mine: _LaidOut) -> Layouts:
    """The layouts of both sides of a step, each given with the exports of its model and the layout before."""
    layouts = token_layout(*golden), token_layout(*mine)
    return _of_all_ranks(*golden[:2], *layouts), _of_all_ranks(*mine[:2], *reversed(layouts))


def _of_all_ranks(
    side: DumpStep, exports: list[Export], layout: TokenLayout | None, opposite: TokenLayout | None
) -> TokenLayout | None:
    """The layout of a step whose ids were not dumped, of which those of the other side tell: all ranks have
    the same if its ranks do, and the embedding may hand each a part of as many tokens."""
    if layout is None or opposite is None or layout.ids is not None:
        return layout
    layout = replace(layout, shared=opposite.shared)
    complete = replace(layout, shape=(math.prod(opposite.shape),))
    embedding = _embedding(exports)
    refs = side.refs(embedding, side.dump.ranks) if embedding is not None else ()
    shapes = [header.shape for header in map(readable, refs) if header is not None]
    split = split_of(shapes, complete) if layout.shared and len(shapes) > 1 == len(layout.shape) else None
    return complete if split is not None and split.joined and not ranks_alike(refs) else layout


def _embedding(exports: list[Export]) -> Export | None:
    return next((e for e in exports if e.role == "embed" and e.slot.kind == "output"), None)


def _places(side: DumpStep, shape: Shape, turned: bool, ids: _Place) -> tuple[_Place, ...]:
    count = math.prod(shape)
    batch = shape[1 if turned else 0] if len(shape) > 1 else 0

    def tokens(header: TensorHeader) -> bool:
        return header.numel == count

    def positions(header: TensorHeader) -> bool:
        return header.numel in (count, count // batch if batch else count)

    def mask(header: TensorHeader) -> bool:
        return len(header.shape) in (2, 4) and header.shape[0] == batch

    called = _by_name(side)
    return (
        ids or _named(called, _IDS, tokens),
        _named(called, _MASKS, mask, integers=False) if batch else None,
        _named(called, _POSITIONS, positions) or _first_of_rotary(side, positions),
        _named(called, _LENGTHS, lambda header: len(header.shape) == 1),
    )


def _at(
    side: DumpStep, places: tuple[_Place, ...], rank: Rank | None = None
) -> tuple[TensorRef | None, ...] | None:
    """The tensors at these places on a rank (the first by default); `None` where one is missing."""
    refs = []
    for place in places:
        node = side.tree.by_path.get(place[0]) if place is not None else None
        refs.append(side.slots(node, rank).get(place[1]) if node is not None and place is not None else None)
    missing = any(place is not None and ref is None for place, ref in zip(places, refs))
    return None if missing or not places else tuple(refs)


def _named(called: _Called, names: tuple[str, ...], condition: _Condition, integers: bool = True) -> _Place:
    """The first tensor that is called so, of the first name that there is."""
    for name in names:
        for node, slot, ref in called.get(name, ()):
            if (not integers or _holds_integers(ref)) and _fits(ref, condition):
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


def _first_of_rotary(side: DumpStep, condition: _Condition) -> _Place:
    """Positions that have no name, as rotary modules are handed them."""
    for node, slot, ref in _tensors(side):
        if "rotary" in node.path and slot.kind == "input" and _holds_integers(ref) and _fits(ref, condition):
            return node.path, slot
    return None


def _tensors(side: DumpStep) -> Iterator[tuple[Node, Slot, TensorRef]]:
    for node in sorted(side.tree.walk(), key=lambda node: node.depth):
        for slot, ref in side.slots(node).items():
            yield node, slot, ref


def _holds_integers(ref: TensorRef) -> bool:
    header = readable(ref)
    return header is not None and header.payload == "data" and header.dtype.name.startswith(("int", "uint"))


def _numel(ref: TensorRef) -> int:
    header = readable(ref)
    return header.numel if header is not None else 0


def _fits(ref: TensorRef, condition: _Condition) -> bool:
    header = readable(ref)
    return header is not None and header.payload == "data" and condition(header)
