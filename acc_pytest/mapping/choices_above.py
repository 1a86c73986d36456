"""The choices above each pair, and the tokens of it that these may reach, by the plan alone.

The choice of a token changes that token, until attention reads it: then all later tokens of its sequence, and
every token of later steps. A choice says by itself which of its tokens differ, so choices above it are not
passed on to the pairs below it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .pair import Pair, Plan

_OF_ALL_TOKENS = re.compile(r"atten|attn|mixer|mamba|conv|rwkv|scan|matmul|bmm|einsum", re.IGNORECASE)
"""Words in names and types of modules that read other tokens than the one that they compute."""
_LINEAR = re.compile(r"linear|^conv1d$", re.IGNORECASE)
"""Types of products with weights, which read one token, whatever they are called (`c_attn`)."""
_OF_ONE_TOKEN = re.compile(
    r"mlp|ffn|feed_?forward|moe|expert|router|gate|gating|norm|act|lu$|swish|embed|head|_proj|linear"
    r"|elewise|split|concat|slice|cast|softmax|topk|sort|onehot|reduce|^(add|mul|sub|div|realdiv)",
    re.IGNORECASE,
)
"""Words in names and types of modules that compute each token from that token alone."""
_WITH_PARTS = re.compile(r"(layer|block|model|lm|decoder|encoder|stack)$", re.IGNORECASE)
"""Ends of types of modules whose submodules are compared, so that their names decide:
`Qwen3MoeDecoderLayer`."""


@dataclass(slots=True)
class _Bits:
    """Choices as the bits of integers: those that reach their own tokens, these and the later tokens of their
    sequences, and every token."""

    same: int = 0
    later: int = 0
    every: int = 0

    def add(self, parent: _Bits, *, mixes: bool, crosses_step: bool) -> None:
        """Add the choices above a parent: they are above the pair."""
        if crosses_step:
            self.every |= parent.same | parent.later | parent.every
        elif mixes:
            self.later |= parent.same | parent.later
            self.every |= parent.every
        else:
            self.same |= parent.same
            self.later |= parent.later
            self.every |= parent.every


@dataclass(frozen=True, slots=True)
class ReachingChoices:
    """The numbers of the choices above a pair."""

    same: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    every: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.same or self.later or self.every)


class ChoicesAbove:
    """The choices of a plan, and which of them lie above each pair."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.choices = tuple(number for number, pair in enumerate(plan.pairs) if is_choice(pair))
        self._by_call: dict[object, list[int]] = defaultdict(list)
        for number in self.choices:
            self._by_call[_call(plan.pairs[number])].append(number)
        self._bits = self._followed() if self.choices else []

    def of(self, number: int) -> ReachingChoices:
        """The choices above the pair `number`."""
        if not self._bits:
            return ReachingChoices()
        bits = self._bits[number]
        return ReachingChoices(
            *(tuple(self._numbers(flags)) for flags in (bits.same, bits.later, bits.every))
        )

    def beside(self, number: int) -> Sequence[int]:
        """The choices among the results of the call that made the tensor of a pair, such as its values."""
        pair = self._plan.pairs[number]
        return self._by_call.get(_call(pair), ()) if pair.mine.slot.startswith("output") else ()

    def mixes(self, number: int, parent: int) -> bool:
        """Whether a token of the pair may come from other tokens of its parent."""
        pair, gap = self._plan.pairs[number], self._plan.gaps.get(number)
        path = pair.mine.node if gap is None else gap.module
        # An input has the type of its reader, not of its writer.
        writers = (pair.mine, pair.golden) if gap is None else ()
        types = [side.op_type for side in writers if side.op_type and side.slot.startswith("output")]
        if any(map(_LINEAR.search, types)):
            return False
        name = re.split(r"[./]", path)[-1]
        names = [name, *(op_type for op_type in types if not _WITH_PARTS.search(op_type))]
        if any(map(_OF_ALL_TOKENS.search, names)):
            return True
        if any(map(_OF_ONE_TOKEN.search, names)):
            return False
        parent_node = self._plan.pairs[parent].mine.node
        return parent_node != path and not parent_node.startswith((f"{path}.", f"{path}/"))

    def _followed(self) -> list[_Bits]:
        plan = self._plan
        place = {number: place for place, number in enumerate(self.choices)}
        followed: list[_Bits] = []
        for number, pair in enumerate(plan.pairs):
            bits = _Bits()
            for choice in () if number in place else self.beside(number):
                bits.same |= 1 << place[choice]
            for parent in plan.parents[number] if number < len(plan.parents) else ():
                if parent >= number:
                    continue
                parent_pair = plan.pairs[parent]
                parent_bits = _Bits(same=1 << place[parent]) if parent in place else followed[parent]
                crosses_step = (parent_pair.step, parent_pair.graph) != (pair.step, pair.graph)
                bits.add(parent_bits, mixes=self.mixes(number, parent), crosses_step=crosses_step)
            followed.append(bits)
        return followed

    def _numbers(self, bits: int) -> Iterator[int]:
        while bits:
            lowest = bits & -bits
            yield self.choices[lowest.bit_length() - 1]
            bits ^= lowest


def _call(pair: Pair) -> object:
    return pair.step, pair.graph, pair.rank, pair.mine.node


def is_choice(pair: Pair) -> bool:
    """Whether the pair is a choice, with the tensors chosen from."""
    return bool(pair.golden.chosen_from and pair.mine.chosen_from)
