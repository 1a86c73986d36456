"""Passes of the Graph Engine over a graph before it runs: no idle casts, fused operators, device formats.

The text of the graph that TorchAir writes is that before these passes, which is why a dump has to be matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import CaptureError
from ...topology.ge_graph import Edge
from .operators import GeOperator, Values

FUSED = ("Mul_1", "Add_1")
"""The pair that becomes one: the scaled product of the second layer and its bias."""
IN_NZ = ("MatMulV2", "MatMulV2_1")
"""Products leave their result in fractal format; `trans_TransData_1` brings the input of the first to it."""


def compiled(operators: Sequence[GeOperator], *, fused: bool) -> list[GeOperator]:
    """The operators that run, in order."""
    running = insert_transdata(without_casts(operators), IN_NZ[0])
    return fuse(running, FUSED) if fused else running


def without_casts(operators: Sequence[GeOperator]) -> list[GeOperator]:
    """Casts to the type that their input has already are taken out; a `Mul` is where the demo has them."""
    types = {operator.name: operator.type for operator in operators}
    edges: dict[Edge, Edge] = {}
    result = []
    for operator in operators:
        if operator.type == "Cast" and types[operator.edges[0].producer] == "Mul":
            edges[Edge(operator.name, 0)] = operator.edges[0]
        else:
            result.append(operator.reading(edges))
    return result


def insert_transdata(operators: Sequence[GeOperator], reader: str) -> list[GeOperator]:
    """The first input of `reader` is brought to fractal format by an operator of the Graph Engine's own."""
    result = []
    for operator in operators:
        if operator.name == reader:
            source, *inputs = operator.inputs
            name = "trans_TransData_1"
            result.append(GeOperator(name, "TransData", (source,), list, storage="FRACTAL_NZ"))
            operator = replace(operator, inputs=(Edge(name, 0), *inputs))
        if operator.name in IN_NZ:
            operator = replace(operator, storage="FRACTAL_NZ")
        result.append(operator)
    return result


def fuse(operators: Sequence[GeOperator], names: tuple[str, str]) -> list[GeOperator]:
    """The two operators as one, under both names, where the second stood.

    Raises `CaptureError` where they are not there or the second does not read the first.
    """
    by_name = {operator.name: operator for operator in operators}
    if any(name not in by_name for name in names):
        raise CaptureError(f"{' and '.join(names)}: not in this graph, so they cannot be fused")
    first, second = (by_name[name] for name in names)
    inner = Edge(first.name, 0)
    if inner not in second.edges:
        raise CaptureError(f"{second.name} does not read {first.name}, so they cannot be fused")
    outer = tuple(edge for edge in second.edges if edge != inner)

    def compute(values: Values) -> Values:
        between = first.compute(values[: len(first.edges)])[0]
        rest = iter(values[len(first.edges) :])
        return second.compute([between if edge == inner else next(rest) for edge in second.edges])

    fused = replace(
        second,
        name="".join(names),
        type="AutomaticBufferFusionOp",
        inputs=(*first.edges, *outer),
        compute=compute,
        parts=names,
    )
    edges = {Edge(second.name, index): Edge(fused.name, index) for index in range(second.outputs)}
    result = [fused if operator is second else operator for operator in operators if operator is not first]
    return [operator.reading(edges) for operator in result]
