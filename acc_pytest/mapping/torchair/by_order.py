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
from .operators import NO_TEXT, Operator
from .outcome import Alone, End, Matched, Outcome, class_of
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


def by_order(operators: Sequence[Operator], fx: FxSide, ge_side: str, fx_side: str) -> Iterator[Outcome]:
    """One outcome for each tensor of GE, and one for each output of FX that none of them is."""
    ran: dict[_Key, list[End]] = defaultdict(list)
    called: dict[_Key, list[End]] = defaultdict(list)
    for operator in operators:
        for end in operator.outputs:
            if (key := _key(_ge_word(operator.node.op_type), end)) is not None:
                ran[key].append(end)
    for node in fx.nodes:
        for slot, ref in fx.slots[node].items():
            end = End(node, slot, ref)
            if slot.kind == "input" or not_a_tensor(ref):
                continue
            if (key := _key(_fx_word(node.op_type), end)) is not None:
                called[key].append(end)
    uncertain = _uncertain(operators)
    ran = {key: ends for key, ends in ran.items() if key[0].partition(":")[0] not in uncertain}
    partners = _partners(ran, called)
    used: set[tuple[str, Slot]] = set()
    for order, operator in enumerate(operators):
        if operator.hands_on:
            yield from self_checks(operator, ge_side, order)
            continue
        ends = [*operator.inputs, *operator.outputs]
        if not ends:
            yield Alone(ge_side, operator.node, None, operator.broken or NO_TEXT)
        for number, end in enumerate(ends):
            golden = partners.get((end.node.path, end.slot))
            if golden is None:
                yield Alone(ge_side, end.node, end.slot, NO_TEXT)
                continue
            used.add((golden.node.path, golden.slot))
            said = "no graph text: as many operators of this kind and shape on both sides, taken in order"
            yield Matched(golden, end, "order", said, (order, number))
    for node in fx.nodes:
        for slot in fx.slots[node]:
            if slot.kind == "output" and (node.path, slot) not in used:
                yield Alone(fx_side, node, slot, f"{NO_TEXT} on the other side")


def _uncertain(operators: Sequence[Operator]) -> set[str]:
    """Kinds whose number says nothing: TorchAir builds them for other calls too, or some are fused away."""
    kinds = {operator.node.op_type for operator in operators}
    fused = [operator.node.name for operator in operators if _is_fused(operator)]
    hidden = {kind for kind in kinds if any(kind in name for name in fused)}
    return {_ge_word(kind) for kind in _AIDS | hidden}


def _is_fused(operator: Operator) -> bool:
    """Whether a name is not made of the type and a number, as those of TorchAir are, or no longer true."""
    plain = re.fullmatch(rf"{re.escape(operator.node.op_type)}(?:_\d+)?", operator.node.name)
    return not operator.inserted and (plain is None or operator.extended)


def _partners(
    ran: Mapping[_Key, Sequence[End]], called: Mapping[_Key, Sequence[End]]
) -> dict[tuple[str, Slot], End]:
    return {
        (end.node.path, end.slot): golden
        for key, ends in ran.items()
        if len(ends) == len(called.get(key, ()))
        for end, golden in zip(ends, called[key])
    }


def _key(word: str, end: End) -> _Key | None:
    header = end.header
    if header is None or not word:
        return None
    return f"{word}:{end.slot.index[0]}", class_of(header), header.shape


def _ge_word(op_type: str) -> str:
    word = _VERSION.sub("", op_type.lower())
    return _WORDS.get(word, word)


def _fx_word(target: str) -> str:
    parts = target.split(".")
    word = (parts[1] if len(parts) > 1 else "").replace("_", "")
    return _WORDS.get(word, word)
