"""Operators of the Graph Engine that the demo's models are made of: names, edges, and what they compute.

Only what the demo needs, in torch, and apart from `operators/`, which holds ATB's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ...topology.ge_graph import Edge

Values = Sequence[torch.Tensor]
GE_NAMES = {
    torch.float16: "DT_FLOAT16",
    torch.float32: "DT_FLOAT",
    torch.int64: "DT_INT64",
    torch.int32: "DT_INT32",
}
"""Element types as graph texts spell them."""


@dataclass(frozen=True, slots=True)
class GeOperator:
    """One operator. `inputs` has a gap where an optional input is absent; `fx` names output k's FX tensor.

    `parts` are the operators that were fused into this one, the last of which gives its outputs. A Data or
    Const operator computes nothing from nothing.
    """

    name: str
    type: str
    inputs: tuple[Edge | None, ...]
    compute: Callable[[Values], Values]
    outputs: int = 1
    fx: Mapping[int, str] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    storage: str = "ND"
    """The format in which the device keeps the outputs."""

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.inputs if edge is not None)

    def reading(self, edges: Mapping[Edge, Edge]) -> GeOperator:
        """This operator with other inputs."""
        return replace(
            self, inputs=tuple(None if edge is None else edges.get(edge, edge) for edge in self.inputs)
        )


def execute(
    operators: Sequence[GeOperator],
    feeds: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    spoil: Callable[[GeOperator, Values], Values],
) -> dict[Edge, torch.Tensor]:
    """The outputs of all operators. Numbers are computed in float32 and rounded to `dtype` once an operator.

    `feeds` are the Data operators. `spoil` gets each operator's results and may change them.
    """
    values: dict[Edge, torch.Tensor] = {}
    for operator in operators:
        if operator.type == "Data":
            results: Values = [feeds[operator.name]]
        else:
            results = operator.compute([_wide(values[edge]) for edge in operator.edges])
        for index, result in enumerate(spoil(operator, results)):
            values[Edge(operator.name, index)] = result.to(dtype) if result.is_floating_point() else result
    return values


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
