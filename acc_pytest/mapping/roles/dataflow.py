"""Values of an ATB tree: one `Value` per write, and every node that shows it.

Operators name their tensors, but a name is written more than once (the residual stream and the
rotary embedding work in place), so a tensor is a name *after a given operator*. A composite shows the
tensors that its last writers left behind: `Attention` has the output of its last linear, and whatever
is known of one is known of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...topology.tree import Node, Tree


@dataclass(slots=True, eq=False)
class Value:
    """A tensor as written by one operator.

    `producer` is the leaf operator that wrote it (`None` for weights and model inputs), `index` its
    output number there. `places` lists (node, output index) in completion order, the producer
    first, then the composites that give it to the outside. `read_by` lists (leaf, input index).
    """

    name: str
    producer: Node | None
    index: int
    places: list[tuple[Node, int]] = field(default_factory=list)
    read_by: list[tuple[Node, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Dataflow:
    """The values of a tree: what every leaf reads and writes, in execution order."""

    leaves: list[Node]
    inputs: dict[Node, list[Value]]
    outputs: dict[Node, list[Value]]


def trace(tree: Tree) -> Dataflow:
    """Follow the tensor names of a tree from operator to operator."""
    flow = Dataflow([], {}, {})
    current: dict[str, Value] = {}
    for child in tree.root.children:
        _run(child, current, flow)
    return flow


def _run(node: Node, current: dict[str, Value], flow: Dataflow) -> None:
    if node.is_leaf:
        flow.leaves.append(node)
        read = [current.setdefault(name, Value(name, None, 0)) for name in node.inputs]
        for position, value in enumerate(read):
            value.read_by.append((node, position))
        flow.inputs[node] = read
        results = [Value(name, node, index) for index, name in enumerate(node.outputs)]
        current.update((value.name, value) for value in results)
        flow.outputs[node] = results
    else:
        for child in node.children:
            _run(child, current, flow)
        results = [current.setdefault(name, Value(name, None, 0)) for name in node.outputs]
        flow.outputs[node] = results
    for index, value in enumerate(results):
        value.places.append((node, index))
