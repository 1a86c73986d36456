"""Numbers that an operator of ATB was told and that golden's module has otherwise: an epsilon, a scale.

An operator computes faithfully with a wrong number, so replay on its own inputs does not see it. Golden's
dump outlines what its modules were told (`dumps.torch_outline`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..dumps.torch_outline import Outline
from ..mapping.pair import Operand

_NORM_PARTS = {2: "preNormParam", 3: "postNormParam"}
_NORMS = ("RmsNormOperation", "LayerNormOperation")
_ATTENTIONS = ("SelfAttentionOperation", "PagedAttentionOperation")
WITH_NUMBERS = frozenset((*_NORMS, *_ATTENTIONS))
"""Operators whose numbers golden's modules may have been told too."""
_EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_eps")
_SCALES = ("scaling", "scale", "softmax_scale", "inv_norm_factor", "norm_factor")
_AROUND = 2
"""Modules around a tensor that are asked for the scale: a core of attention, and the attention itself."""
_SAME, _TINY = 2.0**-8, 2.0**-25
"""Relative and absolute: a number that was rounded to bfloat16 or float16 on its way is the same one."""


@dataclass(frozen=True)
class OtherNumber:
    """A number of mine, that of golden, and the parameters of mine with golden's in its place.

    `alone`: nothing else of an operator can make up for another one. A scale may be in the weights instead.
    """

    name: str
    mine: float
    golden: float
    param: Mapping[str, Any]
    alone: bool

    @property
    def distance(self) -> float:
        """How far the two are apart, as a part of the larger one."""
        return abs(self.mine - self.golden) / max(abs(self.mine), abs(self.golden))

    def __str__(self) -> str:
        return f"its {self.name} is {self.mine:g}, that of golden is {self.golden:g}"


def other_numbers(
    outline: Outline, golden: Operand, kind: str, param: Mapping[str, Any]
) -> list[OtherNumber]:
    """What the operator `kind` with the parameters `param` was told otherwise than the module of `golden`.

    Empty where the two agree, or where nothing is known of either.
    """
    if kind in _NORMS and golden.slot == "output[0]":
        told = outline.numbers.get(golden.node, {})
        path = (_NORM_PARTS.get(param.get("layerType", 1), "normParam"), "epsilon")
        return list(_others(param, path, [told[name] for name in _EPSILONS if name in told], 1.0))
    if kind in _ATTENTIONS:
        told = _of_attention(outline, golden)
        scales = [told[name] for name in _SCALES if told.get(name)]
        # A factor, or what scores are divided by; a query that was scaled before counts with it.
        before = _number(param, ("qScale",)) or 1.0
        return list(
            _others(param, ("qkScale",), [one for each in scales for one in (each, 1 / each)], before)
        )
    return []


def _of_attention(outline: Outline, golden: Operand) -> Mapping[str, float]:
    """What the nearest module around a tensor was told that knows how to scale scores."""
    node = golden.node if golden.slot.startswith("output") else golden.node.rpartition(".")[0]
    for _ in range(_AROUND):
        told = outline.numbers.get(node, {})
        if any(name in told for name in _SCALES):
            return told
        node = node.rpartition(".")[0]
    return {}


def _others(
    param: Mapping[str, Any], path: tuple[str, ...], golden: list[float], factor: float
) -> Iterator[OtherNumber]:
    mine = _number(param, path)
    if mine is None or any(math.isclose(mine * factor, one, rel_tol=_SAME, abs_tol=_TINY) for one in golden):
        return
    for one in golden:
        changed = _with(param, path, one / factor)
        yield OtherNumber(".".join(path), mine, one / factor, changed, path[-1] == "epsilon")


def _number(param: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    held: Any = param
    for name in path:
        held = held.get(name) if isinstance(held, Mapping) else None
    return float(held) if isinstance(held, (int, float)) and not isinstance(held, bool) else None


def _with(param: Mapping[str, Any], path: tuple[str, ...], value: float) -> dict[str, Any]:
    changed = copy.deepcopy(dict(param))
    held: Any = changed
    for name in path[:-1]:
        held = held[name]
    held[path[-1]] = value
    return changed
