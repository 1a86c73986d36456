"""Which output of the graph each dumped output of an operator is."""

from __future__ import annotations

from collections.abc import Sequence

from ...topology.ge_graph import Edge
from .graph import GraphIndex
from .operators import Operator
from .outcome import End


def output_edges(
    operator: Operator, ends: Sequence[End], graph: GraphIndex
) -> list[tuple[Edge | None, str, str]]:
    """For each dumped output the output of the graph that it is, the policy and the reason.

    The origin in the record says it best. Otherwise outputs are those of the last part; where their number is
    another, those that anything outside of the fused operator reads.
    """
    parts = operator.parts
    last = parts.nodes[-1]
    results = [Edge(last.name, index) for index in range(last.output_count)]
    if len(parts.nodes) > 1 and len(ends) != len(results):
        read = graph.results(parts.nodes)
        results = read if len(read) == len(ends) else []
    found: list[tuple[Edge | None, str, str]] = []
    for end in ends:
        index = end.index
        edge = operator.origin(index)
        if edge is not None and graph.node(edge.producer) is not None:
            own = parts.policy if edge.producer in parts.names and parts.inputs == "sure" else "origin"
            said = (
                parts.reason if own == "name" else f"{parts.reason}; original_op {edge.producer}:{edge.index}"
            )
            found.append((edge, own, said))
        elif index < len(results) and parts.policy != "origin":
            found.append((results[index], parts.policy, parts.reason))
        else:
            found.append((None, "", f"not known which tensor of the graph this output is ({parts.reason})"))
    return found
