"""The tokens that a step worked on, as its dump shows them: their ids where dumped, else their number.

The ids are the integer input of the embedding, the first operation of a model. They are the strongest
proof that a directory of one dump and a step of another are the same inference iteration. Reading them
is the only time a payload is touched while a dump is opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import AccError
from ..tensors.header import TensorHeader
from ..tensors.read_source import whole_numbers
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node, Tree
from .base import Slot

MAX_IDS = 1 << 16
"""Longest list of token ids read as evidence."""
_IDS = frozenset({"input_ids", "input", "tokens", "token_ids", "ids"})

SlotsOf = Callable[[Node], Mapping[Slot, TensorRef]]


@dataclass(frozen=True, slots=True)
class TokenEvidence:
    """`ids` in order, all batches in a row, or `None`; `length` is their number, or `None`."""

    ids: tuple[int, ...] | None = None
    length: int | None = None

    @property
    def constant(self) -> bool:
        """Whether all ids are one value, as in the made-up prompt of a warm-up (a single id says nothing)."""
        return self.ids is not None and len(self.ids) > 1 and len(set(self.ids)) == 1


def gather(tree: Tree, slots_of: SlotsOf) -> TokenEvidence:
    """Look at the first dumped operations of `tree`; unreadable or missing tensors simply say nothing."""
    for node in _embedding(tree):
        for slot, ref in slots_of(node).items():
            header = readable(ref) if _may_be_ids(slot) else None
            if header is not None and header.dtype.kind in {"int", "uint"}:
                return TokenEvidence(_ids(ref, header), header.numel)
    return TokenEvidence(length=_length(tree, slots_of))


def _may_be_ids(slot: Slot) -> bool:
    """By position, or by a name that tells them from positions, masks and lengths."""
    return slot.kind == "input" and (slot.positional or slot.index[0] in _IDS)


def _embedding(tree: Tree) -> Iterator[Node]:
    """The first level-1 operation that computes something, and what is inside it."""
    node = tree.root
    while node.children:
        yield node
        node = node.children[0]
    yield node


def _ids(ref: TensorRef, header: TensorHeader) -> tuple[int, ...] | None:
    if header.payload not in {"data", "alias"} or header.numel > MAX_IDS:
        return None
    try:
        return tuple(whole_numbers(ref))
    except AccError:
        return None


def _length(tree: Tree, slots_of: SlotsOf) -> int | None:
    """Rows of the first output of the first dumped operation; the last operations may keep one row only."""
    tops = tree.root.children
    while len(tops) == 1:
        tops = tops[0].children
    for node in tops[:-1]:
        for slot, ref in slots_of(node).items():
            header = readable(ref) if slot.kind == "output" else None
            if header is not None and len(header.shape) > 1 and header.shape[-1]:
                return math.prod(header.shape[:-1])
    return None
