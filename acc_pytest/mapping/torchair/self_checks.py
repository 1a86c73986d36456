"""Operators that GE inserts to change type or layout: their output is compared with their own input."""

from __future__ import annotations

from collections.abc import Iterator

from .operators import Operator
from .outcome import Alone, Matched, Outcome, disagreement

POLICY = "self"


def self_checks(operator: Operator, side: str, order: int) -> Iterator[Outcome]:
    """Input i (as golden) against output i of one Cast or TransData: a check of the operator alone."""
    inputs, outputs = operator.inputs, operator.outputs
    reason = operator.broken or f"{operator.parts.reason}; it has no output to compare its input with"
    if not inputs and not outputs:
        yield Alone(side, operator.node, None, reason)
    for index, (one, other) in enumerate(zip(inputs, outputs)):
        doubt = disagreement(one, other)
        if doubt:
            yield Alone(side, operator.node, other.slot, f"input and output of {operator.node.name}: {doubt}")
            continue
        said = f"self-check, not GE against the other side: {operator.node.op_type} hands on its own input"
        yield Matched(one, other, POLICY, said, (order, 1, index), own=True)
    for end in (*inputs[len(outputs) :], *outputs[len(inputs) :]):
        yield Alone(side, operator.node, end.slot, reason)
