"""Mine as golden has it: the tensors of mine in the calls of golden, by what is compared with what.

Ports pack, share out over ranks and rename, so that golden's modules do not fit their calls. Each tensor of
mine that is a pair of golden's is put in its place, as the pair compares it: of these golden's code computes
what mine must have made of them, whatever the modules of mine are. A module that gave nothing that mine has
runs as a part of that around it. What a module was given is golden's where nothing of mine stands for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from ..base.reason import Reason
from ..dumps.base import Dump, NodeSlot, Rank, Slot, Step
from ..dumps.modules import CallEvent, Calls, NodeCall
from ..errors import OperatorError
from ..mapping.pair import Operand, Pair
from ..mapping.reconcile import open_pair
from ..mapping.token_order import pick_tokens
from ..mapping.views import Whole
from ..tensors.header import TensorHeader
from ..tensors.ref import TensorRef
from ..topology.tree import Node
from .golden_model.calls import GoldenInput
from .projected import is_plain, whole

if TYPE_CHECKING:
    from ..dumps.torch_model import SavedWeight


@dataclass(frozen=True, slots=True)
class TensorOfMine(TensorRef):
    """What mine has of the tensor of golden at this place: that of a pair."""

    pair: Pair = field(kw_only=True, compare=False)

    def header(self) -> TensorHeader:
        """The shape of golden's, and the dtype of mine's."""
        golden, mine = (side.refs[0].header() for side in (self.pair.golden, self.pair.mine))
        return replace(golden, dtype=mine.dtype)

    def open(self) -> torch.Tensor:
        """See `TensorRef.open`. Raises `OperatorError` where the pair compares a part of golden's."""
        shape, tokens = self.header().shape, self.pair.golden.tokens
        golden, mine_operand = (replace(side, onward=()) for side in (self.pair.golden, self.pair.mine))
        mine = whole(open_pair(replace(self.pair, golden=golden, mine=mine_operand)).mine).flatten()
        if mine.numel() != math.prod(shape):
            raise OperatorError(Reason("mine has a part of {}", self))
        if tokens is None:
            return mine.reshape(shape)
        places = pick_tokens(torch.arange(mine.numel()).reshape(shape), tokens).flatten()
        return torch.empty_like(mine).index_copy(0, places, mine).reshape(shape)


class MineAsGolden(Dump):
    """The dump of golden with the tensors of mine, which are those of `pairs`; some are golden's (above).

    `numbers` are those of the pairs in it, by the place of golden's tensor: others compare a part of that, or
    are the second one of it.
    """

    def __init__(self, golden: Dump, mine: Dump, pairs: Sequence[Pair]) -> None:
        self.kind, self.root, self.name = golden.kind, golden.root, golden.name
        self.ranks, self.steps = golden.ranks, golden.steps
        self.of_a_model, self.has_modules = golden.of_a_model, golden.has_modules
        self._golden, self._mine = golden, mine
        self.numbers: dict[tuple[str, str], int] = {}
        for number, pair in enumerate(pairs if golden.has_modules else ()):
            if _is_whole(pair.golden):
                self.numbers.setdefault(_key(pair.golden.refs[0]), number)
        self._pairs = {key: pairs[number] for key, number in self.numbers.items()}
        self._nodes = functools.cache(lambda step: {node.path: node for node in step.tree.walk()})
        self._calls = functools.cache(self._with_results)

    def number_of(self, ref: TensorRef) -> int | None:
        """The number of the pair whose tensor of mine a reference is; `None` of golden's."""
        return self.numbers[_key(ref.pair.golden.refs[0])] if isinstance(ref, TensorOfMine) else None

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        origins = self._golden.calls(step).origins
        tensors: dict[Slot, TensorRef] = {}
        for slot, ref in self._golden.tensors(step, rank, node).items():
            pair = self._pairs.get(_key(ref))
            origin = origins.get(NodeSlot(node.path, slot))
            if pair is None and origin is not None and not origin.view:
                first = self._golden.tensors(step, rank, self._nodes(step)[origin.place.path])
                pair = self._pairs.get(_key(first[origin.place.slot]))
            if pair is not None:
                tensors[slot] = tensor_of_mine(ref, pair)
            elif slot.kind == "input":
                tensors[slot] = GoldenInput(ref.path, ref.member, ref.root)
        return tensors

    def calls(self, step: Step) -> Calls:
        """Those of golden's calls that gave a tensor that mine has, too."""
        return self._calls(step)

    def _with_results(self, step: Step) -> Calls:
        golden = self._golden.calls(step)
        kept: dict[NodeCall, NodeCall] = {}
        events = []
        for call, ends in golden.events:
            if not ends:
                slots = self.tensors(step, self.ranks[0], call.node)
                around = call.inside
                while around is not None and around not in kept:
                    around = around.inside
                if any(slot.kind == "output" for slot in slots):
                    inside = None if around is None else kept[around]
                    kept[call] = replace(call, inside=inside)
            if call in kept:
                events.append(CallEvent(kept[call], ends))
        return replace(golden, events=tuple(events))

    def is_bare(self, ref: TensorRef) -> bool:
        return self._golden.is_bare(ref)

    def weights(self, rank: Rank) -> Mapping[str, SavedWeight]:
        """Those of mine, by its own names."""
        return self._mine.weights(self._mine.ranks[0])


def _key(ref: TensorRef) -> tuple[str, str]:
    return ref.path, ref.member


def tensor_of_mine(place: TensorRef, pair: Pair) -> TensorOfMine:
    """What mine has, by a pair, of golden's tensor at a place."""
    return TensorOfMine(place.path, place.member, place.root, pair=pair)


def _is_whole(golden: Operand) -> bool:
    """Whether a pair compares a tensor of golden as it was dumped."""
    return (
        len(golden.refs) == 1 and golden.view == Whole() and is_plain(replace(golden, tokens=None, onward=()))
    )
