"""`Export`: a slot of a node with the role its tensor plays, the common language of both sides."""

from __future__ import annotations

from dataclasses import dataclass

from ...dumps.base import Slot
from ...topology.tree import Node


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """One place where a tensor of a known role can be read.

    Roles are words such as `q`, `attn_core`, `down`, `lm_head` (all in `tables.toml` and
    beside this module). `form` says what else to know of the tensor:

    - `plain`;
    - `table`: positions by features;
    - `cache`: batch, heads, tokens, size;
    - `paged`: a cache of blocks; the rows at the places in `companions` are meant;
    - `head_part`: piece `component` of every head, all pieces being `companions`;
    - `partial`: to be summed over ranks;
    - `unbiased`: a later operator adds the bias in `companions`;
    - `partial_unbiased`: both;
    - `passing`: moved around by an operator that computes nothing, perhaps fewer rows of it;
    - `repeated`: handed on by a container, and compared at the module that computed it;
    - `turned`: the position tables in `companions` have yet to turn it;
    - `largest`: the places of its largest values are meant;
    - `split`: what is in `companions` is to be added to it.
    """

    node: Node
    slot: Slot
    role: str
    form: str = "plain"
    component: int | None = None
    """Entry of the last dimension, for a table that holds cos and sin in one tensor; number of a piece."""
    companions: tuple[Export, ...] = ()
    """Other tensors of this side, needed to read this one: see `form`."""
    slots_by: Export | None = None
    """Choices of a router for each place of a row: places have no order of their own, so they are sorted."""
    onward: tuple[Export, ...] = ()
    """A tensor that its side multiplies by a number, the next one, and what else is added to that: the number
    is that of this tensor, too."""
