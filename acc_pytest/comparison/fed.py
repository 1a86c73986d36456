"""Sentences on what a run was fed: token ids, positions, masks or weights differ, and how."""

from __future__ import annotations

import math
from dataclasses import replace

from ..errors import AccError
from ..lazy_torch import torch
from ..mapping.fed import WEIGHTS
from ..mapping.pair import Operand, Pair
from ..reporting.row import Row
from ..vocabulary import number

NAMES = {"token ids": "token ids differ", "positions": "positions differ", "mask": "the mask differs"}
_LARGEST = 1 << 20
"""Elements up to which whole numbers are looked at one by one; prompts are shorter."""


def with_input_sentence(row: Row, pair: Pair) -> Row:
    """The row of what a run was fed with a sentence that says so, where it does not pass.

    Another shape of what was fed is a difference like any other: what follows cannot be compared for it.
    """
    if not pair.fed or row.skipped or row.verdict not in ("fail", "incomparable"):
        return row
    if row.verdict == "incomparable" and not row.shapes_differ:
        return row
    if row.shapes_differ and pair.fed == "mask":
        mask_sentence = f"masks in different forms: golden is {row.golden.shape}, mine {row.mine.shape}"
        return replace(row, sentence=mask_sentence, reasons=(mask_sentence, *row.reasons), skipped=True)
    where = "" if pair.fed in WEIGHTS else f" at step {pair.step}"
    sentence = f"{_what(pair)}{where}{_how(row, pair)}"
    reasons = (sentence, *(reason for reason in row.reasons if reason != row.sentence))
    return replace(row, verdict="fail", sentence=sentence, reasons=reasons)


def _what(pair: Pair) -> str:
    if pair.fed in WEIGHTS:
        module, _, last = pair.mine.name.removeprefix("root.").rpartition(".")
        return f"{last} of {module} differs" if module else f"{pair.fed} {last} differs"
    # An input of a compiled graph has a name of its own there.
    slot = "" if pair.graph else f"{pair.mine.slot} of "
    return NAMES.get(pair.fed, f"{pair.fed} {slot}{pair.mine.name} differs")


def _how(row: Row, pair: Pair) -> str:
    if row.shapes_differ:
        return f": {_lengths(row, pair)}"
    values = None if pair.fed in WEIGHTS or pair.fed == "input" else _whole_numbers(pair)
    if values is None:
        distance = row.metrics.get("relative_euclidean_distance")
        return f": relative L2 {number(distance)}" if isinstance(distance, float) else f": {row.sentence}"
    golden, mine = values
    where = (golden != mine).nonzero().flatten()
    if not len(where):
        return f": {row.sentence}"
    first = int(where[0])
    differing_values = f"golden {golden[first].item()}, mine {mine[first].item()}"
    if len(golden) == 1:
        return f": {differing_values}{_argmax(pair, int(golden), int(mine))}"
    return f": {len(where)} of {len(golden)}, the first at {first}: {differing_values}"


def _lengths(row: Row, pair: Pair) -> str:
    """`prompts have 7 and 9 tokens`, or the shapes."""
    shapes = [_shape(operand) for operand in (pair.golden, pair.mine)]
    if pair.fed == "token ids" and all(shapes):
        golden, mine = (shape[-1] for shape in shapes)
        if golden != mine and pair.step == 0:
            return f"prompts have {golden} (golden) and {mine} (mine) tokens"
    return f"golden is {row.golden.shape}, mine {row.mine.shape}"


def _shape(operand: Operand) -> tuple[int, ...]:
    try:
        return operand.refs[0].header().shape
    except (AccError, OSError):
        return ()


def _whole_numbers(pair: Pair) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The values of both sides in one order; `None` for others than whole numbers, or too many."""
    try:
        golden, mine = (_flat(operand) for operand in (pair.golden, pair.mine))
    except (AccError, OSError):
        return None
    if golden is None or mine is None or len(golden) != len(mine):
        return None
    return golden, mine


def _flat(operand: Operand) -> torch.Tensor | None:
    if math.prod(operand.refs[0].header().shape) > _LARGEST:
        return None
    tensor = operand.refs[0].open()
    return None if tensor.is_floating_point() else tensor.reshape(-1).to(torch.int64)


def _argmax(pair: Pair, golden: int, mine: int) -> str:
    """Why the token of a decode step is another one, as far as the logits of the step before tell."""
    best = [_last_argmax(operand) for operand in (pair.golden, pair.mine)]
    if None in best or not isinstance(pair.step, int):
        return ""
    if best == [golden, mine]:
        return f"; the argmax of step {pair.step - 1} diverged"
    if best[0] == golden and best[1] != mine:
        return f"; the argmax of mine at step {pair.step - 1} is {best[1]}"
    return ""


def _last_argmax(operand: Operand) -> int | None:
    """The token with the largest of the last logits; `None` where these are not at hand on one rank."""
    if len(operand.chosen_from) != 1:
        return None
    try:
        logits = operand.chosen_from[0].open()
    except (AccError, OSError):
        return None
    if not logits.is_floating_point() or not logits.dim() or not logits.shape[-1]:
        return None
    return int(logits.reshape(-1, logits.shape[-1])[-1].argmax())
