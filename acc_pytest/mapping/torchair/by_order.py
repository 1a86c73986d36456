"""GE against FX without a graph text: kinds of operators and shapes of outputs, counted as they ran.

Nothing in a record of GE says which FX call it is. The third `Gelu` of a shape is the third `aten.gelu` of
that shape, though, as long as both sides ran as many. Inputs stay alone: their order is another in FX.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ...dumps.base import Slot
from .fx_side import FxSide, not_a_tensor
from .operators import NO_TEXT, DumpedOperator
from .outcome import Matched, Outcome, SlotTensor, Unmatched, class_of
from .self_checks import self_checks

_WORDS = {
    "concat": "cat",
    "realdiv": "div",
    "batchmatmul": "bmm",
    "matmul": "mm",
    "softmax": "softmax",
    "reducesum": "sum",
    "reducemean": "mean",
    "nativelayernorm": "layernorm",
    "todcopy": "cast",
}
"""Words of GE (or aten) and the word that stands for both."""
_AIDS = {"Add", "Mul", "Cast", "Transpose", "Reshape", "Pack", "Identity", "Fill", "BroadcastTo", "ConcatV2"}
"""Types of operators that are built beside others, to convert, scale or shift what these compute."""
_VERSION = re.compile(r"(?:v\d+|d)$")
_Key = tuple[str, str, tuple[int, ...]]


def by_order(
    operators: Sequence[DumpedOperator], fx: FxSide, ge_side: str, fx_side: str
) -> Iterator[Outcome]:
    """One outcome for each tensor of GE, then one for each output of FX that was not matched."""
    partners = _partners(_ge_outputs(operators), _fx_outputs(fx))
    used: set[tuple[str, Slot]] = set()
    for order, operator in enumerate(operators):
        for outcome in _outcomes(operator, partners, ge_side, order):
            if isinstance(outcome, Matched):
                used.add((outcome.golden.node.path, outcome.golden.slot))
            yield outcome
    for node in fx.nodes:
        for slot in fx.slots[node]:
            if slot.kind == "output" and (node.path, slot) not in used:
                yield Unmatched(fx_side, node, slot, f"{NO_TEXT} on the other side")


def _outcomes(
    operator: DumpedOperator, partners: Mapping[tuple[str, Slot], SlotTensor], ge_side: str, order: int
) -> Iterator[Outcome]:
    if operator.hands_on:
        yield from self_checks(operator, ge_side, order)
        return
    tensors = [*operator.inputs, *operator.outputs]
    if not tensors:
        yield Unmatched(ge_side, operator.node, None, operator.broken or NO_TEXT)
    for number, tensor in enumerate(tensors):
        golden = partners.get((tensor.node.path, tensor.slot))
        if golden is None:
            yield Unmatched(ge_side, tensor.node, tensor.slot, NO_TEXT)
            continue
        reason = "no graph text: as many operators of this kind and shape on both sides, taken in order"
        yield Matched(golden, tensor, "order", reason, (order, number))


def _ge_outputs(operators: Sequence[DumpedOperator]) -> Mapping[_Key, Sequence[SlotTensor]]:
    """The outputs of GE by kind and shape, without the kinds whose number says nothing."""
    uncertain = _uncertain(operators)
    outputs: dict[_Key, list[SlotTensor]] = defaultdict(list)
    for operator in operators:
        word = _ge_word(operator.node.op_type)
        for tensor in operator.outputs if word not in uncertain else ():
            if (key := _key(word, tensor)) is not None:
                outputs[key].append(tensor)
    return outputs


def _fx_outputs(fx: FxSide) -> Mapping[_Key, Sequence[SlotTensor]]:
    """The outputs of FX by kind and shape."""
    outputs: dict[_Key, list[SlotTensor]] = defaultdict(list)
    for node in fx.nodes:
        for slot, ref in fx.slots[node].items():
            tensor = SlotTensor(node, slot, ref)
            if slot.kind == "input" or not_a_tensor(ref):
                continue
            if (key := _key(_fx_word(node.op_type), tensor)) is not None:
                outputs[key].append(tensor)
    return outputs


def _uncertain(operators: Sequence[DumpedOperator]) -> set[str]:
    """Kinds whose number says nothing: TorchAir builds them for other calls too, or some are fused away."""
    kinds = {operator.node.op_type for operator in operators}
    fused = [operator.node.name for operator in operators if _is_fused(operator)]
    hidden = {kind for kind in kinds if any(kind in name for name in fused)}
    return {_ge_word(kind) for kind in _AIDS | hidden}


def _is_fused(operator: DumpedOperator) -> bool:
    """Whether a name is not made of the type and a number, as those of TorchAir are, or no longer true."""
    plain = re.fullmatch(rf"{re.escape(operator.node.op_type)}(?:_\d+)?", operator.node.name)
    return not operator.inserted and (plain is None or operator.extended)


def _partners(
    ran: Mapping[_Key, Sequence[SlotTensor]], called: Mapping[_Key, Sequence[SlotTensor]]
) -> dict[tuple[str, Slot], SlotTensor]:
    return {
        (end.node.path, end.slot): golden
        for key, ends in ran.items()
        if len(ends) == len(called.get(key, ()))
        for end, golden in zip(ends, called[key])
    }


def _key(word: str, end: SlotTensor) -> _Key | None:
    header = end.header
    if header is None or not word:
        return None
    return f"{word}:{end.slot.index[0]}", class_of(header), header.shape


def _ge_word(op_type: str) -> str:
    word = _VERSION.sub("", op_type.lower())
    return _WORDS.get(word, word)


def _fx_word(target: str) -> str:
    segments = target.split(".")
    word = (segments[1] if len(segments) > 1 else "").replace("_", "")
    return _WORDS.get(word, word)
