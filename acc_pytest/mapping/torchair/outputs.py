"""Outputs of the graph that dumped outputs of an operator are."""

from __future__ import annotations

from collections.abc import Sequence

from ...topology.ge_graph import Edge
from .graph import GraphIndex
from .operators import DumpedOperator
from .outcome import SlotTensor


def output_edges(
    operator: DumpedOperator, tensors: Sequence[SlotTensor], graph: GraphIndex
) -> list[tuple[Edge | None, str, str]]:
    """The output of the graph, the policy and the reason, for each dumped output.

    The origin in the record says it best. Otherwise outputs are those of the last part; where their number is
    another, those that anything outside of the fused operator reads.
    """
    fused = operator.parts
    last = fused.nodes[-1]
    results = [Edge(last.name, index) for index in range(last.output_count)]
    if len(fused.nodes) > 1 and len(tensors) != len(results):
        read = graph.results(fused.nodes)
        results = read if len(read) == len(tensors) else []
    edges: list[tuple[Edge | None, str, str]] = []
    for tensor in tensors:
        index = tensor.index
        edge = operator.origin(index)
        if edge is not None and graph.node(edge.producer) is not None:
            policy = fused.policy if edge.producer in fused.names and fused.inputs == "sure" else "origin"
            origin = "" if policy == "name" else f"; original_op {edge.producer}:{edge.index}"
            reason = f"{fused.reason}{origin}"
            edges.append((edge, policy, reason))
        elif index < len(results) and fused.policy != "origin":
            edges.append((results[index], fused.policy, fused.reason))
        else:
            edges.append((None, "", f"not known which tensor of the graph this output is ({fused.reason})"))
    return edges
