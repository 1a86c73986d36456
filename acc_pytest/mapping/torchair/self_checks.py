"""Operators that GE inserts to change type or layout: their output is compared with their own input."""

from __future__ import annotations

from collections.abc import Iterator

from .operators import DumpedOperator
from .outcome import Matched, Outcome, Unmatched, disagreement

POLICY = "self"


def self_checks(operator: DumpedOperator, side: str, order: int) -> Iterator[Outcome]:
    """Input i (as golden) against output i of one Cast or TransData: a check of the operator alone."""
    inputs, outputs = operator.inputs, operator.outputs
    reason = operator.broken or f"{operator.parts.reason}; it has no output to compare its input with"
    if not inputs and not outputs:
        yield Unmatched(side, operator.node, None, reason)
    for index, (source, result) in enumerate(zip(inputs, outputs)):
        doubt = disagreement(source, result)
        if doubt:
            yield Unmatched(
                side, operator.node, result.slot, f"input and output of {operator.node.name}: {doubt}"
            )
            continue
        basis = f"self-check, not GE against the other side: {operator.node.op_type} hands on its own input"
        yield Matched(source, result, POLICY, basis, (order, 1, index), self_check=True)
    for tensor in (*inputs[len(outputs) :], *outputs[len(inputs) :]):
        yield Unmatched(side, operator.node, tensor.slot, reason)
