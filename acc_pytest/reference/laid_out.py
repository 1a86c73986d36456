"""Mine as golden has it: the tensors of mine in the calls of golden, by what is compared with what.

Ports pack, share out over ranks and rename, so that golden's modules do not fit their calls. Each tensor of
mine that is a pair of golden's is put in its place, as the pair compares it: of these golden's code computes
what mine must have made of them, whatever the modules of mine are. A module in which nothing gave what mine
has runs as a part of that around it. Inputs, and rows of tokens, for which mine has nothing are golden's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from ..base.reason import Reason
from ..base.vocabulary import OF_POSITIONS
from ..dumps.base import Dump, NodeSlot, Rank, Slot, Step
from ..dumps.modules import Calls, NodeCall
from ..errors import OperatorError
from ..mapping.pair import Operand, Pair
from ..mapping.reconcile import open_pair
from ..mapping.token_order import pick_tokens, picked_rows
from ..mapping.views import Whole
from ..tensors.header import TensorHeader
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from .golden_model.calls import GoldenInput, ModuleCall
from .golden_model.replay import argument_of
from .projected import is_plain, whole
from .recomputation import DOUBTS, NOT_COMPUTED, Recomputation, Recomputations

if TYPE_CHECKING:
    from ..dumps.torch_model import SavedWeight
    from .modules import TorchRecomputer


@dataclass(frozen=True, slots=True)
class TensorOfMine(TensorRef):
    """What mine has of the tensor of golden at this place: that of a pair."""

    pair: Pair = field(kw_only=True, compare=False)

    def header(self) -> TensorHeader:
        """The shape of golden's, and the dtype of mine's; so are sums over ranks and of summands."""
        golden, mine = (side.refs[0].header() for side in (self.pair.golden, self.pair.mine))
        return replace(golden, dtype=mine.dtype)

    def open(self) -> torch.Tensor:
        """See `TensorRef.open`. Raises `OperatorError` where the pair compares a part of golden's, or what
        golden multiplies it to."""
        golden, opened = self.pair.golden.refs[0].open(), open_pair(self.pair)
        mine, places = whole(opened.mine).flatten(), torch.arange(golden.numel())
        if self.pair.golden.tokens is not None:
            places = pick_tokens(places.reshape(golden.shape), self.pair.golden.tokens).flatten()
        if len(mine) != len(places):
            raise OperatorError(Reason("mine has a part of {}", self))
        if self.pair.golden.onward and not torch.equal(
            whole(opened.golden).flatten(), golden.flatten()[places]
        ):
            raise OperatorError(Reason("mine has a multiple of {}", self))
        dtype = self.header().dtype
        if dtype.kind == "float" and mine.is_floating_point():
            mine = mine.to(dtype.torch_dtype())
        return golden.to(mine.dtype).flatten().index_copy(0, places, mine).reshape(golden.shape)

    @property
    def has_all_tokens(self) -> bool:
        """Whether mine has the rows of all tokens of golden's, but for padding."""
        tokens = self.pair.golden.tokens
        picked = None
        if tokens is not None:
            picked = picked_rows(torch.empty(self.header().shape, device="meta"), tokens)
        if tokens is None or picked is None or len(picked[0]) == len(picked[1]):
            return True
        mask = readable(tokens.golden.mask)
        if tokens.golden.mask is None or mask is None or mask.dtype.kind == "float":
            return False
        return int(tokens.golden.mask.open().count_nonzero()) == len(picked[1])


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
        """Those of golden's calls that gave a tensor that mine has, too, and the calls around them."""
        return self._calls(step)

    def _with_results(self, step: Step) -> Calls:
        golden = self._golden.calls(step)
        kept: set[NodeCall] = set()
        for call, ends in golden.events:
            gave = not ends and any(
                slot.kind == "output" for slot in self.tensors(step, self.ranks[0], call.node)
            )
            around = call if gave else None
            while around is not None and around not in kept:
                kept.add(around)
                around = around.inside
        return replace(golden, events=tuple(event for event in golden.events if event.call in kept))

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


class AsGolden:
    """Computes what mine gave in the calls of golden again, with the model of `modules`, which are those of
    mine. `pairs` are all of a plan."""

    def __init__(self, pairs: Sequence[Pair], golden: Dump, mine: Dump, modules: TorchRecomputer) -> None:
        self._dump = MineAsGolden(golden, mine, pairs)
        self._numbers = frozenset(self._dump.numbers.values())
        saved = mine.weights(mine.ranks[0]).items()
        coded = {name.rpartition(".")[0] for name, weight in saved if weight.digest and weight.digest.scale}
        weights = (pair for pair in pairs if pair.fed == "weight" and pair.mine.node not in coded)
        self._weighed = frozenset(pair.golden.node for pair in weights) - modules.linears
        self._pairs = [
            replace(pair, mine=replace(pair.golden, refs=(tensor_of_mine(pair.golden.refs[0], pair),)))
            for pair in pairs
        ]
        self._modules = modules.over(self._dump, self._pairs, golden)
        self._outcomes = Recomputations()

    def of_pair(self, number: int, unknown: Recomputation) -> Recomputation:
        """Whether golden's code makes the tensor of a pair of what mine has in its places; else `unknown`.

        It is wrong where nothing but mine can be the reason: golden's code took tensors of mine, tables of
        positions and masks, and weights that are compared, and mine is off by `DOUBTS` times the bound, of
        which the rounding was measured.
        """
        if number not in self._numbers or self._pairs[number].fed:
            return unknown
        outcome = self._outcomes.of(number, lambda: self._judged(number), "computing mine as golden")
        return outcome if outcome.outcome else unknown

    def _judged(self, number: int) -> Recomputation:
        """Raises `AccError` for what keeps golden's code from being computed."""
        recomputed = self._modules.of_pair(number)
        maker = self._modules.case(self._pairs[number].mine.refs[0]).call.maker
        if recomputed.outcome == "wrong" and not (
            recomputed.noise is not None
            and recomputed.is_beyond(DOUBTS)
            and self._modules.with_weights(maker) <= self._weighed
            and not any(self._lent(maker))
        ):
            return NOT_COMPUTED
        read = [*maker.inputs.values(), *(ref for call in maker.called for ref in call.outputs.values())]
        numbers = {source for ref in read if (source := self._dump.number_of(ref)) is not None}
        earlier = sorted(source for source in numbers if source < number)
        return replace(recomputed, reads=" ".join(map(str, earlier)))

    def _lent(self, call: ModuleCall) -> Iterator[TensorRef]:
        """Golden's activations, and tensors with rows of golden's, that the code of a call was given."""
        forward = self._modules.forward_of(call)
        for key, ref in call.inputs.items():
            words = "_".join([argument_of(key, forward), *map(str, key[1:])]).split("_")
            header = readable(ref)
            is_float = header is None or header.dtype.kind == "float"
            if isinstance(ref, GoldenInput) and is_float and OF_POSITIONS.isdisjoint(words):
                yield ref
        for inner in call.called:
            if not inner.outputs:
                yield from self._lent(inner)
        tensors = [*call.inputs.values(), *(ref for inner in call.called for ref in inner.outputs.values())]
        yield from (ref for ref in tensors if isinstance(ref, TensorOfMine) and not ref.has_all_tokens)
