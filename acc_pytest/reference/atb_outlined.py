"""Is an operator of ATB right beside golden? By what golden's dump outlines of its model.

`recompute_atb` computes an operator with the weights and parameters of mine, so that these may be anything.
Here

* a linear layer is held against the projection of golden's weight (`projected`), on the input of mine:
whatever is wrong, the kernel, the weight or how it is shared out over ranks, it shows. Of several ranks the
input is put together as their outputs are;
* a number that golden's module was told otherwise (`golden_numbers`) is wrong where golden's tensor says so:
with d what golden has more than mine, and c what the operator makes more of golden's number than of its own,
both on the inputs of mine, the part of d that lies along c is 1 where the number is why the two differ, and 0
where a port has another number for a good reason (a query that was scaled before).
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ..base.reason import Reason
from ..dumps import open_dump
from ..dumps.torch_model import Outline
from ..errors import AccError, OperatorError
from ..mapping.operand_shards import open_shards, shards_of
from ..mapping.pair import Operand, Pair, Plan
from ..mapping.reconcile import open_pair, reconcile
from ..tensors.ref import TensorRef
from .atb import AtbRecomputer
from .case import Case
from .golden import Golden
from .golden_inputs import operator_directory
from .modules import DumpedCalls, golden_is_right
from .prepare import tensors_in
from .projected import ProjectedLinear, is_plain, judged_by_golden, layers_of, whole
from .recomputation import Recomputation, Recomputations, RecomputeBudget, Recomputer
from .twice import check_size

_LINEAR = "LinearOperation"
_FIRST = "output[0]"
_SIGMAS = 4.0
_DIRECTED = 0.25
"""The part of rounding that may make all of a tensor larger or smaller: at most 0.16 in clean networks."""
_LEANS = 0.25
"""The least part of golden's difference that speaks for golden's number."""


class OutlinedAtbRecomputer(AtbRecomputer):
    """Computes operators of the pairs of a plan again, and holds them against golden's `outline`.

    Linear layers of which more than `sampled` elements would be looked at are sampled.
    """

    def __init__(
        self, plan: Plan, outline: Outline, budget: RecomputeBudget, sampled: int, small: Recomputer | None
    ) -> None:
        super().__init__(plan.pairs, budget, plan.between, plan.parents, small)
        self._plan = plan
        self._outline = outline
        self._sampled = sampled
        self._to_golden = Recomputations()

    def of_pair(self, number: int) -> Recomputation:
        local = super().of_pair(number)
        if local.outcome == "wrong":
            return local
        pair = self._plan.pairs[number]
        doing = Reason("holding {} to golden", pair.id)
        return self._to_golden.of(number, lambda: self._against_golden(pair, local), doing)

    def _against_golden(self, pair: Pair, local: Recomputation) -> Recomputation:
        if pair.mine.slot != _FIRST or pair.fed:
            return local
        if pair.mine.op_type != _LINEAR:
            return self._by_numbers(pair, local)
        if pair.golden.node not in self._layers:
            return local
        try:
            inputs = [_first_input(ref) for ref in pair.mine.refs]
            by_weight = judged_by_golden(pair, self._layers, inputs, self._sampled)
            if by_weight.outcome == "wrong" and not golden_is_right(
                pair, self._layers, self._golden, self._sampled
            ):
                return local
        except AccError:
            return local
        return by_weight if not local.outcome else _weighed(local, by_weight)

    @cached_property
    def _layers(self) -> dict[str, ProjectedLinear]:
        return layers_of(self._outline)

    @cached_property
    def _golden(self) -> DumpedCalls:
        return DumpedCalls(open_dump(self._plan.golden_root))

    def _by_numbers(self, pair: Pair, local: Recomputation) -> Recomputation:
        """Whether a number that golden was told otherwise is why the two differ."""
        if pair.mine.op_type not in WITH_NUMBERS:
            return local
        places = [operator_directory(ref) for ref in pair.mine.refs]
        if not all(places) or not self._outline.numbers:
            return local
        cases = [self._case(place) for place in places]
        noted = local
        for difference in differing_numbers(self._outline, pair.golden, cases[0].name, cases[0].param):
            change = NumberChange(0.0, math.inf)  # nothing is known where rows or units are others
            if is_plain(pair.golden) and is_plain(pair.mine):
                with contextlib.suppress(AccError):
                    change = _change(pair, cases, difference)
            if change.speaks_for_golden or (difference.alone and not change.speaks_for_mine):
                wrong = replace(local, outcome="wrong", why=str(difference))
                return replace(wrong, golden_error=difference.distance, golden_allowed=0.0)
            if not change.speaks_for_mine:
                note = Reason("{}; what comes of it here cannot be told from rounding", difference)
                noted = replace(local, note=note)
        return noted


@dataclass(frozen=True)
class NumberChange:
    """The change of a tensor by another number: the `share` of it that golden has, and its `doubt`."""

    share: float
    doubt: float

    @property
    def speaks_for_golden(self) -> bool:
        return self.share - self.doubt > _LEANS

    @property
    def speaks_for_mine(self) -> bool:
        return self.share + self.doubt < 1 - _LEANS


def _change(pair: Pair, cases: Sequence[Case], difference: OtherNumber) -> NumberChange:
    """The change of the operator's result by golden's number, along the difference of golden and mine.

    Raises `AccError` where it cannot be computed.
    """
    for case in cases:
        check_size(case.tensors)
    opened = open_pair(pair).comparisons[0]
    golden, mine = whole(opened.golden).double(), whole(opened.mine).double()
    current = _viewed(pair, [Golden(case) for case in cases])
    change = _viewed(pair, [Golden(replace(case, param=difference.param)) for case in cases]) - current
    square = float(change.square().sum())
    if not square:
        return NumberChange(0.0, math.inf)
    missing, width = golden - mine, opened.golden.shape[-1] if opened.golden.shape else 1
    share = float((missing * change).sum()) / square
    left = missing - share * change
    spread = max(float((left * change).reshape(-1, length).sum(1).norm()) for length in (1, width))
    directed = float(left.norm()) * abs(float((current * change).sum())) / float(current.norm()) * _DIRECTED
    return NumberChange(share, (_SIGMAS * spread + directed) / square)


def _viewed(pair: Pair, computed: Sequence[Golden]) -> torch.Tensor:
    """The first result of each rank, in float64, as the pair is compared."""
    results = []
    for reference, ref in zip(computed, pair.mine.refs):
        exact = reference.exact(0)
        if exact is None or exact.numel() != ref.header().numel:
            raise OperatorError("it writes no such floats")
        results.append(exact.reshape(ref.header().shape))
    return whole(reconcile(open_shards(pair.golden), shards_of(pair.mine, results)).mine).double()


def _first_input(output: TensorRef) -> torch.Tensor:
    """The first input of the operator that wrote a tensor, as it was before. Raises `OperatorError`."""
    place = operator_directory(output)
    ref = tensors_in(os.path.join(place, "before"), output.root)[0].get(0) if place else None
    if ref is None:
        raise OperatorError("its input was not dumped")
    return ref.open()


def _weighed(local: Recomputation, by_weight: Recomputation) -> Recomputation:
    """An operator that is right with its own weights, beside what golden's weights make of it."""
    if not by_weight.measured:
        return local
    error, allowed = by_weight.furthest
    weighed = replace(local, golden_error=error, golden_allowed=allowed)
    if by_weight.outcome != "wrong":
        return weighed
    reason = Reason("its weights are other ones than golden's: {}", by_weight.detail)
    return replace(weighed, outcome="wrong", why=reason)


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
        """The distance of the two, as a share of the larger."""
        return abs(self.mine - self.golden) / max(abs(self.mine), abs(self.golden))

    def __str__(self) -> str:
        return Reason("its {} is {:g}, that of golden is {:g}", self.name, self.mine, self.golden)


def differing_numbers(
    outline: Outline, golden: Operand, kind: str, param: Mapping[str, Any]
) -> list[OtherNumber]:
    """Numbers of the operator `kind` with the parameters `param` that the module of `golden` has otherwise.

    Empty where the two agree, or where nothing is known of either.
    """
    if kind in _NORMS and golden.slot == "output[0]":
        numbers = outline.numbers.get(golden.node, {})
        path = (_NORM_PARTS.get(param.get("layerType", 1), "normParam"), "epsilon")
        return list(_differences(param, path, [numbers[name] for name in _EPSILONS if name in numbers], 1.0))
    if kind in _ATTENTIONS:
        numbers = _of_attention(outline, golden)
        scales = [numbers[name] for name in _SCALES if numbers.get(name)]
        # A factor, or what scores are divided by; a query that was scaled before counts with it.
        before = _number(param, ("qScale",)) or 1.0
        factors = [factor for scale in scales for factor in (scale, 1 / scale)]
        return list(_differences(param, ("qkScale",), factors, before))
    return []


def _of_attention(outline: Outline, golden: Operand) -> Mapping[str, float]:
    """The numbers of the nearest module around a tensor that has a scale of scores."""
    node = golden.node if golden.slot.startswith("output") else golden.node.rpartition(".")[0]
    for _ in range(_AROUND):
        numbers = outline.numbers.get(node, {})
        if any(name in numbers for name in _SCALES):
            return numbers
        node = node.rpartition(".")[0]
    return {}


def _differences(
    param: Mapping[str, Any], path: tuple[str, ...], golden: list[float], factor: float
) -> Iterator[OtherNumber]:
    mine = _number(param, path)
    if mine is None or any(math.isclose(mine * factor, x, rel_tol=_SAME, abs_tol=_TINY) for x in golden):
        return
    for number in golden:
        changed = _with(param, path, number / factor)
        yield OtherNumber(".".join(path), mine, number / factor, changed, path[-1] == "epsilon")


def _number(param: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = param
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _with(param: Mapping[str, Any], path: tuple[str, ...], value: float) -> dict[str, Any]:
    changed = copy.deepcopy(dict(param))
    inner: Any = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return changed
