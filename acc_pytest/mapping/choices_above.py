"""Which choices lie above each pair, and which of its tokens these may reach: known from the plan alone.

What a token chose changes that token, until attention reads it: then all later tokens of its sequence, and
every token of later steps. A choice says by itself which of its tokens differ, so what lies above one is
not looked for behind it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .pair import Pair, Plan

_OF_ALL_TOKENS = re.compile(r"atten|attn|mixer|mamba|conv|rwkv|scan|matmul|bmm|einsum", re.IGNORECASE)
"""Words in names and types of what reads other tokens than the one that it computes."""
_LINEAR = re.compile(r"linear|^conv1d$", re.IGNORECASE)
"""Types of products with weights, which read one token, whatever they are called (`c_attn`)."""
_OF_ONE_TOKEN = re.compile(
    r"mlp|ffn|feed_?forward|moe|expert|router|gate|gating|norm|act|lu$|swish|embed|head|_proj|linear"
    r"|elewise|split|concat|slice|cast|softmax|topk|sort|onehot|reduce|^(add|mul|sub|div|realdiv)",
    re.IGNORECASE,
)
"""Words in names and types of what computes each token from that token alone."""
_WITH_PARTS = re.compile(r"(layer|block|model|lm|decoder|encoder|stack)$", re.IGNORECASE)
"""Ends of types of what has parts that are compared, so that their names decide: `Qwen3MoeDecoderLayer`."""


@dataclass(slots=True)
class _Bits:
    """Choices as the bits of whole numbers: whose own tokens are reached, those and the later ones of their
    sequences, and every token of these."""

    same: int = 0
    later: int = 0
    every: int = 0

    def add(self, other: _Bits, *, mixes: bool, other_step: bool) -> None:
        """What is above a parent is above the pair."""
        if other_step:
            self.every |= other.same | other.later | other.every
        elif mixes:
            self.later |= other.same | other.later
            self.every |= other.every
        else:
            self.same |= other.same
            self.later |= other.later
            self.every |= other.every


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
        self._beside: dict[object, list[int]] = defaultdict(list)
        for number in self.choices:
            self._beside[_call(plan.pairs[number])].append(number)
        self._bits = self._followed() if self.choices else []

    def of(self, number: int) -> ReachingChoices:
        """Those above the pair `number`."""
        if not self._bits:
            return ReachingChoices()
        bits = self._bits[number]
        return ReachingChoices(
            *(tuple(self._numbers(those)) for those in (bits.same, bits.later, bits.every))
        )

    def beside(self, number: int) -> Sequence[int]:
        """The choices that the same call handed out beside the tensor of a pair, such as its values."""
        pair = self._plan.pairs[number]
        return self._beside.get(_call(pair), ()) if pair.mine.slot.startswith("output") else ()

    def mixes(self, number: int, parent: int) -> bool:
        """Whether a token of the pair may come from other tokens of its parent."""
        pair, gap = self._plan.pairs[number], self._plan.gaps.get(number)
        path = pair.mine.node if gap is None else gap.module
        # An input has the type of what reads it, which is not what made it.
        made = [side for side in (pair.mine, pair.golden) if gap is None and side.slot.startswith("output")]
        types = [side.op_type for side in made if side.op_type]
        if any(map(_LINEAR.search, types)):
            return False
        words = [re.split(r"[./]", path)[-1], *(one for one in types if not _WITH_PARTS.search(one))]
        if any(map(_OF_ALL_TOKENS.search, words)):
            return True
        if any(map(_OF_ONE_TOKEN.search, words)):
            return False
        above = self._plan.pairs[parent].mine.node
        return above != path and not above.startswith((f"{path}.", f"{path}/"))

    def _followed(self) -> list[_Bits]:
        plan = self._plan
        place = {number: place for place, number in enumerate(self.choices)}
        followed: list[_Bits] = []
        for number, pair in enumerate(plan.pairs):
            own = _Bits()
            for choice in () if number in place else self.beside(number):
                own.same |= 1 << place[choice]
            for parent in plan.parents[number] if number < len(plan.parents) else ():
                if parent >= number:
                    continue
                above = plan.pairs[parent]
                carried = _Bits(same=1 << place[parent]) if parent in place else followed[parent]
                other_step = (above.step, above.graph) != (pair.step, pair.graph)
                own.add(carried, mixes=self.mixes(number, parent), other_step=other_step)
            followed.append(own)
        return followed

    def _numbers(self, bits: int) -> Iterator[int]:
        while bits:
            lowest = bits & -bits
            yield self.choices[lowest.bit_length() - 1]
            bits ^= lowest


def _call(pair: Pair) -> object:
    return pair.step, pair.graph, pair.rank, pair.mine.node


def is_choice(pair: Pair) -> bool:
    """Whether the pair says what was chosen, and what from."""
    return bool(pair.golden.chosen_from and pair.mine.chosen_from)
